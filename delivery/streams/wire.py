"""Chunks of HTTP/1.1: the framing of a stream's bytes (RFC 9112, section 7.1).

A chunk is framed once and written to all watchers that get the same bytes.
"""

from __future__ import annotations

LAST_CHUNK = b"0\r\n\r\n"  # ends a body


def chunk(data: bytes) -> bytes:
    """``data`` as one chunk. Without bytes it is empty: a chunk of none ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
