"""Fixtures for the tests of push."""

from __future__ import annotations

from tests.delivery.push.evil_process import evil

__all__ = ["evil"]
