"""Secrets for the signatures of push, as tests give them to a receiver and to the daemon."""

from __future__ import annotations

from base64 import b64encode

from delivery.push.signatures import PREFIX


def secret_of(key: bytes) -> str:
    """The secret that stands for a key."""
    return PREFIX + b64encode(key).decode()
