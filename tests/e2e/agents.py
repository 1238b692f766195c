"""What Vector's http sink and Fluent Bit's http output put on the wire.

The requests are written out byte for byte as the agents make them (Fluent Bit: out_http and
flb_http_client; Vector: sinks/http over hyper, whose header names are in lower case). The agents
themselves are not run by any test: neither is in a package registry that tests may use.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

VECTOR_AGENT = "Vector/0.50.0 (x86_64-unknown-linux-gnu 9053198 2025-09-23 14:18:50.944442940)"
EVENTS: list[dict[str, Any]] = [
    {
        "file": "/var/log/app.log",
        "host": f"web-{number % 3}",
        "message": f'GET /item/{number} HTTP/1.1" 200 "Mozilla/5.0 (é) \\x16\\u0000"\ttab',
        "source_type": "file",
        "timestamp": f"2025-11-02T10:15:{number:02}.123456789Z",
    }
    for number in range(20)
]


def lines_of(events: list[dict[str, Any]]) -> list[bytes]:
    """Events as both agents write them: no blanks, text in UTF-8."""
    return [json.dumps(e, separators=(",", ":"), ensure_ascii=False).encode() for e in events]


def vector(path: str, body: bytes, content_type: str, encoding: str = "") -> bytes:
    """A request of Vector's http sink."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"content-type: {content_type}",
        *([f"content-encoding: {encoding}"] if encoding else []),
        f"user-agent: {VECTOR_AGENT}",
        "accept-encoding: identity",
        "host: 127.0.0.1:7440",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def fluent_bit(path: str, body: bytes, content_type: str, encoding: str = "") -> bytes:
    """A request of Fluent Bit's http output."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1:7440",
        f"Content-Length: {len(body)}",
        f"Content-Type: {content_type}",
        *([f"Content-Encoding: {encoding}"] if encoding else []),
        "User-Agent: Fluent-Bit",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


VECTOR_COMPRESSIONS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": ("", bytes),
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
}
