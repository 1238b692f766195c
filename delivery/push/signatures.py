"""Signatures of requests, as Standard Webhooks 1.0.0 defines them (standardwebhooks.com).

What is signed is ``ID.SECONDS.BODY`` with HMAC-SHA256. A request has one signature for each secret,
so that a receiver may know any of them while a new one takes the place of an old one.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable

PREFIX = "whsec_"
# The limits of the specification, in bytes of the decoded secret.
SECRET_BYTES_MIN = 24
SECRET_BYTES_MAX = 64

# A rotation needs two; a few more are for receivers that take long to follow.
SIGNING_MAX = 4


class SecretRefused(ValueError):
    """A text that is not a secret for signatures. The message does not show it."""


def key_of(secret: str) -> bytes:
    """The key that a secret, ``whsec_`` and base64, stands for. Raises SecretRefused."""
    told = f"a signing secret must be {PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
    make = f"make one with: echo {PREFIX}$(openssl rand -base64 32)"
    if not secret.startswith(PREFIX):
        raise SecretRefused(f"{told} in base64, and this one begins differently; {make}")
    text = secret[len(PREFIX) :]
    try:
        if len(text) % 4:
            raise ValueError(text)
        key = b64decode(text, validate=True)
    except ValueError:
        raise SecretRefused(f"{told} in base64, and this one is not base64; {make}") from None
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise SecretRefused(f"{told} in base64, and this one has {len(key)} bytes; {make}")
    return key


def signature(secret: str, webhook_id: str, seconds: int, body: bytes) -> str:
    """One signature of a request."""
    signed = b"%b.%d.%b" % (webhook_id.encode(), seconds, body)
    return "v1," + b64encode(hmac.digest(key_of(secret), signed, "sha256")).decode()


def signature_headers(
    webhook_id: str, now_ms: int, body: bytes, secrets: Iterable[str]
) -> dict[str, str]:
    """The three headers of a signed request. ``now_ms`` is the time of the attempt;
    ``webhook_id`` is the same in all attempts, and has no full stop."""
    seconds = now_ms // 1_000
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(
            [signature(secret, webhook_id, seconds, body) for secret in secrets]
        ),
    }
