"""Fixtures for the tests of push."""

from __future__ import annotations

from tests.delivery.push.evil_process import evil
from tests.delivery.subscriptions.conftest import node

__all__ = ["evil", "node"]
