"""The bytes of an answer.

No Date header is sent, since no client of this API needs it. The most common answer, 200 with a
short JSON body, is one concatenation with a prefix that is made beforehand.
"""

from __future__ import annotations

from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = "application/json"

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_BODILESS = frozenset({204, 304})
OK_JSON_PREFIXES = tuple(
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
    for length in range(1024)
)
OK_JSON_BYTES_MAX = len(OK_JSON_PREFIXES) - 1


def encode_answer(
    status: int,
    body: bytes,
    content_type: str,
    headers: tuple[tuple[str, str], ...],
    *,
    head_only: bool,
    close: bool,
    http_1_0: bool,
) -> bytes:
    """The answer's bytes. ``head_only``: to HEAD, the body is announced and not sent.

    Raises ValueError for a header with a line break.
    """
    lines = []
    if body or status not in _BODILESS:
        if body:
            lines.append(f"Content-Type: {content_type}\r\n")
        lines.append(f"Content-Length: {len(body)}\r\n")
    _append_headers(lines, headers)
    if close:
        lines.append("Connection: close\r\n")
    elif http_1_0:
        lines.append("Connection: keep-alive\r\n")
    lines.append("\r\n")
    head = _STATUS_LINES[status] + "".join(lines).encode("latin-1")
    return head if head_only else head + body


def encode_stream_head(
    content_type: str, headers: tuple[tuple[str, str], ...], *, close: bool
) -> bytes:
    """The head of a stream; chunks follow (delivery/streams/wire.py).

    Proxies must neither store nor collect what comes. Raises ValueError like ``encode_answer``.
    """
    lines = [
        f"Content-Type: {content_type}\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Cache-Control: no-cache\r\n",
        "X-Accel-Buffering: no\r\n",
    ]
    _append_headers(lines, headers)
    if close:
        lines.append("Connection: close\r\n")
    lines.append("\r\n")
    return _STATUS_LINES[200] + "".join(lines).encode("latin-1")


def _append_headers(lines: list[str], headers: tuple[tuple[str, str], ...]) -> None:
    for name, value in headers:
        if "\n" in value or "\r" in value or "\n" in name or "\r" in name:
            raise ValueError(f"the answer's header {name!r} has a line break")
        lines.append(f"{name}: {value}\r\n")
