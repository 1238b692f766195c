"""A request's head: strict parsing once, then a cache keyed by its very bytes.

A producer on a keep-alive connection sends the identical head again and again. The cache maps
the bytes up to and including the empty line to the parsed Head, so that in the steady state no
parser runs at all. A Head depends on nothing but these bytes, so a hit is always right.

llhttp (through httptools) does the parsing. It refuses repeated or conflicting lengths, bad
tokens, obs-fold and bare LF; ``_check_request_line`` and ``check_framing`` refuse more. Requests
are smuggled where two parsers disagree about the end of a request, so whatever leaves a doubt is
refused and the connection is closed.

This module does no I/O and never looks at a body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from daemon.access.rights import EVERYTHING, Rights
from daemon.http.limits import HttpLimits
from daemon.schemas.decoding import REPEATED
from daemon.schemas.errors import ApiError

LENGTH_UNKNOWN = -1
# What is kept of a target, over its bytes: a character outside the BMP makes all take four.
TARGET_COPIES = 4
# Characters of what only messages name.
_PATH_KEPT = 512
_TYPE_KEPT = 128
_FORWARDED_KEPT = 512

SUPPORTED_ENCODINGS = ("gzip", "deflate", "zstd")
_ENCODING_NAMES = {"": "", "identity": "", "x-gzip": "gzip"} | {n: n for n in SUPPORTED_ENCODINGS}

# Fields that may appear only once, since a second one would leave open which counts.
_SINGLE_FIELDS = frozenset(
    {
        "authorization", "content-encoding", "content-length", "content-type", "expect", "host",
        "transfer-encoding", "x-api-key",
    }
)  # fmt: skip
# Parameters of a query that may be repeated. Their values are joined by REPEATED, which is in no
# value, because control characters are refused.
_REPEATABLE = frozenset({"filter", "header"})
_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_TLS_BEGINS = b"\x16\x03"
_HEAD_BEGINS = re.compile(rb"(?:\r\n){0,2}\r?(?:[A-Z-]{1,20} |[A-Z-]{0,20}\Z)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"[A-Za-z0-9.\-_~:\[\]%!$&'()*+,;=]*\Z")


def bad_request(message: str, **detail: Any) -> ApiError:
    """400 ``bad_request``: the HTTP itself is wrong, so the connection cannot continue."""
    return ApiError(400, "bad_request", message, detail, close=True)


class Head:
    """A parsed head, shared by all requests that sent the same bytes. Nothing in it changes after
    ``route`` was set and ``forget_fields`` was called, which happens before the head goes into the
    cache.

    ``path`` is percent-decoded; ``segments`` are its parts split at ``/`` before decoding, so
    that an encoded slash stays inside its segment, and ``raw_segments`` the same as they were
    sent; ``target_bytes`` is how long the target was, and any header that a handler gets.
    ``authority`` is that of an absolute target,
    None without one. ``query`` has decoded values; one that may be repeated has them joined by
    REPEATED. ``headers`` have lower-case names; repeated fields are joined by ``", "``.
    ``body_bytes`` is the length of the body that follows: 0 without one, LENGTH_UNKNOWN if it is
    chunked. ``content_encoding`` is "" or a supported name. ``client_names``: those of its sender's
    certificate. ``is_local``: it came through the Unix socket.
    ``is_followed_link``: a link on a page of another origin led here
    (``guard.py``). ``is_brief``: what it may do depends on the time, or it does not
    come again, so it is not kept in the cache.
    ``plain``: HTTP/1.1, not HEAD, not from a page of a browser, and the connection is kept, so
    the shortest answer will do. ``bare`` is the head without what an answer does not need.
    ``rights`` are its sender's, set with ``route``. ``shortcut``, set there too, takes a whole
    request of this head (connection, head, body, arrival) in one step and returns True, or does
    nothing and returns False (``Application.take``). So is ``reader``, which reads bodies that are
    in another format than produce's own. ``forwarded`` is what proxies say of whom it
    is (the end of X-Forwarded-For).
    """

    __slots__ = (
        "authority",
        "bare",
        "body_bytes",
        "chunked",
        "client_names",
        "content_encoding",
        "content_length",
        "content_type",
        "expect_continue",
        "forwarded",
        "headers",
        "http_1_1",
        "is_brief",
        "is_followed_link",
        "is_local",
        "keep_alive",
        "method",
        "path",
        "plain",
        "query",
        "raw_segments",
        "reader",
        "rights",
        "route",
        "segments",
        "shortcut",
        "target_bytes",
    )

    def __init__(
        self,
        method: str,
        path: str,
        segments: tuple[str, ...],
        query: dict[str, str],
        headers: dict[str, str],
        *,
        http_1_1: bool,
        content_length: int | None,
        chunked: bool,
        keep_alive: bool,
        expect_continue: bool,
        content_type: str,
        content_encoding: str,
        raw_segments: tuple[bytes, ...] = (),
        authority: str | None = None,
        target_bytes: int = 0,
    ) -> None:
        self.method = method
        self.path = path
        self.segments = segments
        self.query = query
        self.headers = headers
        self.http_1_1 = http_1_1
        self.content_length = content_length
        self.chunked = chunked
        self.keep_alive = keep_alive
        self.expect_continue = expect_continue
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.raw_segments = raw_segments
        self.authority = authority
        self.target_bytes = target_bytes
        self.is_local = False
        self.client_names: tuple[str, ...] = ()
        self.is_brief = False
        self.is_followed_link = False
        self.forwarded = ""
        self.body_bytes = LENGTH_UNKNOWN if chunked else (content_length or 0)
        self.plain = http_1_1 and keep_alive and method != "HEAD" and "origin" not in headers
        self.rights: Rights = EVERYTHING
        self.route: Any = None
        self.shortcut: Callable[[Any, Head, bytes, int], bool] | None = None
        self.reader: Any = None
        self.bare = self

    def forget_fields(self, origins: Container[str] = ()) -> None:
        """Lets go of what nobody reads once there is a route: a request may wait for its answer
        with a head of 32 KiB. ``origins``: those that an answer names."""
        self.forwarded = self.headers.get("x-forwarded-for", "")[-_FORWARDED_KEPT:]
        origin = self.headers.get("origin")
        self.headers = {"origin": origin} if origin in origins and origin is not None else {}
        self.path = self.path[:_PATH_KEPT]
        self.segments, self.raw_segments, self.authority = (), (), None
        self.bare = bare_head(
            self.method, origin if self.headers else None,
            http_1_1=self.http_1_1, keep_alive=self.keep_alive, plain=self.plain,
        )  # fmt: skip


@lru_cache(1024)
def bare_head(
    method: str, origin: str | None, *, http_1_1: bool, keep_alive: bool, plain: bool
) -> Head:
    """What an answer needs of a head. Methods are those that llhttp knows, and origins are
    configured, so that there are few of these."""
    head = Head(
        method,
        "",
        (),
        {},
        {} if origin is None else {"origin": origin},
        http_1_1=http_1_1,
        content_length=None,
        chunked=False,
        keep_alive=keep_alive,
        expect_continue=False,
        content_type="",
        content_encoding="",
    )
    head.plain = plain
    return head


def unreadable_head() -> Head:
    """Replaces a head that could not be parsed, so that the refusal keeps its place."""
    return bare_head("", None, http_1_1=True, keep_alive=False, plain=False)


class _Sink:
    """Collects what httptools calls back with."""

    __slots__ = ("complete", "fields", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(raw: bytes, limits: HttpLimits) -> Head:
    """The Head of ``raw``, which begins with the request line and ends with the first empty line.
    Raises ApiError, always with ``close``."""
    sink = _Sink()
    parser = httptools.HttpRequestParser(sink)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # the offer of another protocol may be ignored (RFC 9110, 7.8)
    except httptools.HttpParserError as error:
        raise bad_request(f"the request head is malformed: {error}") from error
    if not sink.complete:
        raise bad_request("the request head is malformed: it ends too early")
    method = parser.get_method().decode("ascii")
    http_1_1 = _check_request_line(raw, method, sink.target)
    if len(sink.target) > limits.target_bytes_max:
        raise ApiError(
            414,
            "uri_too_long",
            f"the request target has {len(sink.target)} bytes, the limit is"
            f" {limits.target_bytes_max}",
            {"limit_bytes": limits.target_bytes_max},
            close=True,
        )
    if len(sink.fields) > limits.headers_max:
        raise head_too_large(f"{len(sink.fields)} header fields", limits)
    headers = joined_fields(sink.fields)
    length, chunked = check_framing(headers, http_1_1=http_1_1)
    target = sink.target
    authority = None
    if target[:7].lower() == b"http://":  # absolute form, as through a proxy
        raw_authority, slash, target = target[7:].partition(b"/")
        if b"@" in raw_authority:
            raise bad_request(
                "the request target has a user or a password, which logs of proxies would show;"
                " send a token as `Authorization: Bearer TOKEN`"
            )
        authority = raw_authority.decode("latin-1")
        target = slash + target or b"/"
    path, segments, query = split_target(target, limits)
    options = {token.strip() for token in headers.get("connection", "").lower().split(",")}
    keep_alive = "close" not in options and (http_1_1 or "keep-alive" in options)
    return Head(
        method,
        path,
        segments,
        query,
        headers,
        http_1_1=http_1_1,
        content_length=length,
        chunked=chunked,
        keep_alive=keep_alive,
        expect_continue=_expects_continue(headers, http_1_1=http_1_1),
        content_type=headers.get("content-type", "").partition(";")[0].strip().lower()[:_TYPE_KEPT],
        content_encoding=_content_encoding(headers),
        raw_segments=tuple(target.partition(b"?")[0][1:].split(b"/")),
        authority=authority,
        target_bytes=len(sink.target),
    )


def check_partial_head(data: bytes, limits: HttpLimits) -> None:
    """Refuses the beginning of a head that is already too long, or that cannot become one: a
    client that speaks TLS learns it immediately, not after a timeout."""
    if len(data) > limits.head_bytes_max:
        raise head_too_large(f"more than {limits.head_bytes_max} bytes", limits)
    if _HEAD_BEGINS.match(data) is None:
        if data.startswith(_TLS_BEGINS):
            raise bad_request("the client speaks TLS, which this port does not: use tls_listen's")
        raise bad_request("the bytes that were received are not an HTTP/1.1 request")


def head_too_large(what: str, limits: HttpLimits) -> ApiError:
    """431: the head is over one of its limits."""
    return ApiError(
        431,
        "head_too_large",
        f"the request head has {what}; the limits are {limits.head_bytes_max} bytes and"
        f" {limits.headers_max} fields",
        {"limit_bytes": limits.head_bytes_max, "limit_fields": limits.headers_max},
        close=True,
    )


def _check_request_line(raw: bytes, method: str, target: bytes) -> bool:
    """Whether it is HTTP/1.1 (or 1.0). llhttp alone accepts two spaces, RTSP and HTTP/0.9."""
    line = raw[: raw.find(b"\r\n")]
    start = method.encode() + b" " + target + b" HTTP/"
    if line == start + b"1.1":
        return True
    if line == start + b"1.0":
        return False
    raise bad_request("the request line must be METHOD target HTTP/1.1 (or 1.0)")


def joined_fields(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Values by lower-case name. Raises ApiError for a repeated field that may appear only once;
    llhttp checks some of them, but another version may be lenient."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = raw_name.decode("ascii").lower()
        value = raw_value.decode("latin-1").strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE_FIELDS:
            raise bad_request(f"the header {name} appears twice", header=name)
        else:
            headers[name] += ", " + value
    return headers


def check_framing(headers: dict[str, str], *, http_1_1: bool) -> tuple[int | None, bool]:
    """Content length, and whether the body is chunked. Raises ApiError where the end of the request
    is in doubt. llhttp alone accepts a chunked HTTP/1.0 request and codings below chunked."""
    host = headers.get("host")
    if http_1_1 and host is None:
        raise bad_request("an HTTP/1.1 request needs a Host header")
    if host is not None and _HOST.match(host) is None:
        raise bad_request(f"the Host header must be a host name or address, got {host[:40]!r}")
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        if length is not None:
            raise bad_request("a request must not have both Content-Length and Transfer-Encoding")
        if coding.lower() != "chunked" or not http_1_1:
            raise bad_request(
                f"the transfer coding {coding[:40]!r} is not supported; send chunked over"
                " HTTP/1.1, or a Content-Length"
            )
        return None, True
    if length is None:
        return None, False
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise bad_request(f"Content-Length must be a number of bytes, got {length[:40]!r}")
    return int(length), False


def _expects_continue(headers: dict[str, str], *, http_1_1: bool) -> bool:
    expect = headers.get("expect")
    if expect is None or not http_1_1:
        return False
    if expect.lower() != "100-continue":
        raise ApiError(
            417,
            "expectation_failed",
            f"Expect must be 100-continue, got {expect[:40]!r}",
            close=True,
        )
    return True


def _content_encoding(headers: dict[str, str]) -> str:
    encoding = headers.get("content-encoding", "").lower()
    if encoding not in _ENCODING_NAMES:
        raise ApiError(
            415,
            "unsupported_encoding",
            f"Content-Encoding {encoding[:40]!r} is not supported; send one of"
            f" {', '.join(SUPPORTED_ENCODINGS)}, or none",
            {"supported": list(SUPPORTED_ENCODINGS)},
        )
    return _ENCODING_NAMES[encoding]


def split_target(target: bytes, limits: HttpLimits) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Path, segments and query of a target, decoded. Raises ApiError 400."""
    if not target.startswith(b"/"):
        if target == b"*":
            return "*", (), {}
        raise bad_request("the request target must be a path that begins with /")
    if b"#" in target:
        raise bad_request("the request target must not have a fragment (#)")
    raw_path, _, raw_query = target.partition(b"?")
    for what, count, limit in (
        ("path has {} segments", raw_path.count(b"/"), limits.segments_max),
        ("query has {} parameters", raw_query.count(b"&") + 1, limits.parameters_max),
    ):
        if count > limit:
            raise bad_request(f"the {what.format(count)}, the limit is {limit}", limit=limit)
    path = _decode(raw_path, "path")
    segments = tuple(_decode(part, "path") for part in raw_path[1:].split(b"/"))
    query: dict[str, str] = {}
    for pair in raw_query.split(b"&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.replace(b"+", b" ").partition(b"=")
        name = _decode(raw_name, "query")
        value = _decode(raw_value, "query")
        if name in query:
            if name not in _REPEATABLE:
                raise bad_request(f"the query parameter {name!r} appears twice", parameter=name)
            value = query[name] + REPEATED + value
        query[name] = value
    return path, segments, query


def _decode(raw: bytes, what: str) -> str:
    if b"%" in raw:
        if _BAD_PERCENT.search(raw):
            raise bad_request(f"the {what} has a % that is not followed by two hex digits")
        raw = unquote_to_bytes(raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(f"the {what} is not UTF-8: {error}") from error
    if _CONTROL.search(text):
        raise bad_request(f"the {what} has a control character")
    return text


class HeadCache:
    """Parsed heads by their bytes. Bounded in count and bytes, and cleared when it is full: that
    happens with heads that do not repeat, and a smarter eviction would slow down every hit."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_entry_bytes_max", "entries", "known")

    def __init__(
        self, count_max: int = 4096, bytes_max: int = 2 << 20, entry_bytes_max: int = 4096
    ) -> None:
        # The keys are bytes, or for a client with a certificate its names and bytes.
        self.entries: dict[Hashable, Head] = {}
        # Looks a head up; one bound method for all connections.
        self.known = self.entries.get
        self._bytes = 0
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._entry_bytes_max = entry_bytes_max

    def clear(self) -> None:
        """Forgets all heads: each is parsed and checked again."""
        self.entries.clear()
        self._bytes = 0

    def add(self, raw: bytes, head: Head) -> None:
        """Keeps a head that was parsed and routed. What it may do depends on the names of the
        client's certificate, which are not in its bytes."""
        size = len(raw)
        if size > self._entry_bytes_max:
            return
        if len(self.entries) >= self._count_max or self._bytes + size > self._bytes_max:
            self.clear()
        self.entries[(head.client_names, raw) if head.client_names else raw] = head
        self._bytes += size
