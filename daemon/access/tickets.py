"""Tickets: text in a URL that opens one stream, for a page whose EventSource can send no header.

    base64url( id of the token, 8 bytes | expires_ms u64 | HMAC-SHA256 of these and the target )

A ticket stands for the token that asked for it, and only for the path and the query that were
named then. It is not kept anywhere: every shard has the key, which the supervisor makes when the
daemon starts and which is never written, so that a ticket ends with the daemon too.
"""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

LIFETIME_MS = 60_000  # to begin with: a stream that it opened goes on
KEY_BYTES = 32
_HEAD = struct.Struct(">8sQ")
_BYTES = _HEAD.size + sha256().digest_size


class Tickets:
    """Signs tickets, and says whose they are."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(
        self, token_id: str, segments: Sequence[str], query: Mapping[str, str], now_ms: int
    ) -> tuple[str, int]:
        """A ticket for a stream's target, and when it expires."""
        expires_ms = now_ms + LIFETIME_MS
        head = _HEAD.pack(bytes.fromhex(token_id), expires_ms)
        signed = head + self._signature(head, segments, query)
        return urlsafe_b64encode(signed).decode(), expires_ms

    def token_id(
        self, ticket: str, segments: Sequence[str], query: Mapping[str, str], now_ms: int
    ) -> str | None:
        """Whose ticket this is; None unless it was made for this target and has not expired.
        ``query`` has the ticket itself, which is not signed."""
        try:
            data = urlsafe_b64decode(ticket.encode("ascii"))
        except ValueError:
            return None
        if len(data) != _BYTES:
            return None
        head = data[: _HEAD.size]
        token_id, expires_ms = _HEAD.unpack(head)
        rest = {name: value for name, value in query.items() if name != "ticket"}
        if not hmac.compare_digest(data[_HEAD.size :], self._signature(head, segments, rest)):
            return None
        return token_id.hex() if now_ms < expires_ms else None

    def _signature(self, head: bytes, segments: Sequence[str], query: Mapping[str, str]) -> bytes:
        target = msgspec.json.encode((segments, sorted(query.items())))
        return hmac.digest(self._key, head + target, "sha256")
