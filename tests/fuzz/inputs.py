"""What the fuzzer sends: streams of valid requests and of requests that are wrong somewhere.

A *stream* is what one connection sends: consecutive requests, cut into pieces, perhaps cut off
before the end. Every record of a stream carries a *mark* in its data, which shows where a stored
record came from. Everything follows from the given random generator.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import zstandard

RECORD_TOPICS = ("records-a", "records-b")  # nothing but produce and reads is sent to these
SCRATCH_TOPICS = ("scratch-a", "scratch-b", "scratch-c")
_MARK = re.compile(r"~(\d+)\.(\d+)\.(\d+)\.(\d+)~")


def mark_of(stream: int, request: int, record: int) -> str:
    """The mark of a record; its checksum tells it from one that a damaged body happens to hold."""
    return f"~{stream}.{request}.{record}.{_checksum(stream, request, record)}~"


def marks_in(text: str) -> list[tuple[int, int, int]]:
    """Stream, request and record of each mark that is whole."""
    found = [tuple(map(int, each)) for each in _MARK.findall(text)]
    return [(a, b, c) for a, b, c, checksum in found if checksum == _checksum(a, b, c)]


def _checksum(stream: int, request: int, record: int) -> int:
    return zlib.crc32(f"{stream} {request} {record}".encode())


class End(Enum):
    """What a connection does when all is sent."""

    HALF_CLOSE = "half-close"  # and reads every answer
    CLOSE = "close"  # reads nothing
    RESET = "reset"  # reads nothing, and says so rudely


class Sent(NamedTuple):
    """One request as bytes, and what may come of it.

    ``framed``: head and framing are right, so its answer is the next one. ``exact``: its records
    are as made, so all of them are stored or none. ``marks``: how many records carry one.
    """

    data: bytes
    topic: str = ""
    marks: int = 0
    framed: bool = True
    exact: bool = True
    allowed: bool = True  # False: it has no token that is in force, or two


class Stream(NamedTuple):
    """``pieces`` are sent one by one; of the requests' bytes they may leave out the end."""

    number: int
    requests: tuple[Sent, ...]
    pieces: tuple[bytes, ...]
    end: End

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def stream_of(seed: int, number: int, body_bytes_max: int, tokens: Sequence[str] = ()) -> Stream:
    """The stream of that number; the same for the same arguments. Most requests have one of
    ``tokens``, if there are any."""
    rng = random.Random(f"{seed} {number}")
    return _Maker(rng, number, body_bytes_max, tokens).stream()


_INTEGERS = (
    0, 1, 2, 5, 20, 127, 128, 255, 1000, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1,
    2**63, 2**64, 10**30, -1, -(2**31), -(2**63), -(2**63) - 1,
)  # fmt: skip
_ODD: tuple[Any, ...] = (
    None, True, False, "", "x", "\0", "\x7f", "é", "\U0001f600", "x" * 300, 0.5, -0.0, 1e300, [],
    {}, [1], {"a": 1}, [[[[]]]], "2**63", "NaN",
)  # fmt: skip
_BYTES = (
    b"\x97", b"\xff", b"\xed\xa0\x80", b"\0", b"\r\n", b"\r\n\r\n", b'"', b"\\", b"\\ud800",
    b"[", b"]", b"{", b"}", b",", b"1e999", b"-", b"NaN", b" ", b"\xc0\x80", b"%00",
)  # fmt: skip
_NAMES = (
    "from_seq", "from_ts", "tail", "partition", "limit", "max_bytes", "wait_ms", "before_seq",
    "partitions", "cap_records", "cap_bytes", "ttl_ms", "discard", "columns", "priority", "topics",
    "from", "to", "plan", "records", "data", "key", "ts", "meta", "topic_id", "unknown", "",
)  # fmt: skip
_MEMBERS = (
    "partition", "expected_seq", "idempotency_key", "ack_timeout_ms", "dedupe", "advance",
    "unknown",
)  # fmt: skip
_CURSORS = ("c", "d", "d", "router/r")
_TEXTS = (
    "x", "..", "a/b", "%", "%zz", "%ed%a0%80", "%00", "%2f", "é", "x" * 255, "x" * 256, "a b",
    "a+b", "\\", "'", ";", "~", "-", "0", "CON", "a\r\nb", "\x7f",
)  # fmt: skip
_PARAMETERS = (
    "limit", "cursor", "partition", "key", "create", "expected_seq", "ts", "idempotency_key",
    "disable_backpressure", "tag", "node", "dedupe", "ack_timeout_ms",
)  # fmt: skip
_WATCHED = (
    "from_seq", "from_ts", "tail", "partition", "tag", "node", "key", "last_event_id", "unknown",
)  # fmt: skip
_STREAMS = (
    "text/event-stream", "application/x-ndjson", "application/msgpack", "*/*", "text/*;q=0.1",
    "image/png", "application/x-ndjson;q=0", ";", "", "a/b/c, */*;q=2",
)  # fmt: skip
_POSITIONS = (
    "1:0=1", "2:0=5", "1:0=0;2:0=0", "9:0=1", "1:0=18446744073709551615", "1:", "1:0=", ":",
    "1:0=1;", "1:0=1,0=2", "-1:0=1", "x", "1:0=1" * 500,
)  # fmt: skip
# Not HEAD: answers to it have no body, so that a reader of answers must know what was asked.
# Not PUT and DELETE: the topics of the records stay as they are.
_METHODS = ("GET", "POST", "PATCH", "OPTIONS", "CONNECT", "TRACE", "get",
            "PRI", "", "M-SEARCH", "POST\t")  # fmt: skip
_TYPES = ("application/json", "application/x-ndjson", "application/msgpack",
          "application/octet-stream", "text/plain", "application/json; charset=utf-16", "", "\xff",
          "APPLICATION/JSON")  # fmt: skip
_FIELDS = (
    "Content-Length: 5", "Content-Length: 0", "Content-Length: -1", "Content-Length: 5, 5",
    "Content-Length:", "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding:",
    "Transfer-Encoding: \x0bchunked", "Expect: 100-continue", "Expect: 200-ok", "Connection: close",
    "Connection: upgrade", "Upgrade: h2c", "Connection: keep-alive, close", "Host: other", "Host:",
    "Host: a b", "Content-Encoding: gzip", "Content-Encoding: br", "Content-Encoding: zstd",
    "Content-Type: text/plain", "X: " + "y" * 5000, " folded: 1", "no colon", "A\0: b", ": empty",
    "X: a\rb", "Trailer: X", "Accept-Encoding: zstd", "\x80: 1", "If-Match: *", "Range: bytes=0-1",
)  # fmt: skip


class _Maker:
    def __init__(
        self, rng: random.Random, number: int, body_bytes_max: int, tokens: Sequence[str]
    ) -> None:
        self.rng = rng
        self.tokens = tokens
        self.number = number
        self.body_bytes_max = body_bytes_max
        self.requests: list[Sent] = []

    def stream(self) -> Stream:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 12))):
            self.requests.append(self.request())
        data = b"".join(request.data for request in self.requests)
        end = rng.choices((End.HALF_CLOSE, End.CLOSE, End.RESET), (8, 1, 1))[0]
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data) + 1)]
        return Stream(self.number, tuple(self.requests), tuple(self.pieces(data)), end)

    def pieces(self, data: bytes) -> list[bytes]:
        rng = self.rng
        if rng.random() < 0.4:
            return [data]
        if rng.random() < 0.1 and len(data) < 600:
            return [data[at : at + 1] for at in range(len(data))]
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(1, 6)))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]

    def request(self) -> Sent:
        kind = self.rng.random()
        if kind < 0.4:
            return self.produce()
        if kind < 0.75:
            return self.question()
        if kind < 0.82:
            return self.watch()
        if kind < 0.95:
            return self.wander()
        return Sent(self.garbage(), framed=False)

    # -- produce -------------------------------------------------------------------------------

    def produce(self) -> Sent:
        rng = self.rng
        topic = rng.choice(RECORD_TOPICS)
        count = rng.choice((1, 1, 2, 3, 10, 100))
        padding = "p" * rng.choice((0, 0, 10, 1000, 20_000 if count < 4 else 100))
        texts = [self.mark(record) + padding for record in range(count)]
        kind = rng.choice(("object", "array", "lines", "msgpack", "bytes"))
        query: list[str] = []
        if kind == "object":
            document: dict[str, Any] = {"records": [{"data": text} for text in texts]}
            self.spice(document["records"], 0.1)
            if rng.random() < 0.2:
                document[rng.choice(_MEMBERS)] = self.odd()
            if rng.random() < 0.1:
                document["advance"] = self.advance()
            exact = document.keys() == {"records"} and all(
                each.keys() == {"data"} for each in document["records"]
            )
            body, content_type = json.dumps(document).encode(), "application/json"
        elif kind == "msgpack":
            document = {"records": [{"data": text} for text in texts]}
            self.spice(document["records"], 0.1)
            exact = all(each.keys() == {"data"} for each in document["records"])
            if rng.random() < 0.1:
                document["advance"], exact = self.advance(), False
            body, content_type = _packed(document), "application/msgpack"
        elif kind == "bytes":
            texts, exact = texts[:1], True
            body, content_type = texts[0].encode(), "application/octet-stream"
        else:
            exact = True
            content_type = "application/json" if kind == "array" else "application/x-ndjson"
            body = (
                json.dumps(texts).encode() if kind == "array"
                else "\n".join(json.dumps(text) for text in texts).encode()
            )  # fmt: skip
            if rng.random() < 0.2:
                query.append(self.parameter())
        if rng.random() < 0.3:
            body, exact = self.damaged(body), False
        fields = [f"Content-Type: {content_type}"]
        if rng.random() < 0.3:
            encoding, body, whole = self.compressed(body)
            exact = exact and whole
            fields.append(f"Content-Encoding: {encoding}")
        target = f"/v0/topics/{topic}" + ("?" + "&".join(query) if query else "")
        sent = self.framed("POST", target, fields, body)
        return sent._replace(topic=topic, marks=len(texts), exact=exact and not query)

    def advance(self) -> dict[str, Any]:
        """Of a cursor that may exist; now and then with something odd in it."""
        rng = self.rng
        expected = rng.choice((0, 0, 1, 2, 5))
        found: dict[str, Any] = {
            "cursor": rng.choice(_CURSORS), "expected": expected, "next": expected + 1
        }  # fmt: skip
        if rng.random() < 0.3:
            found[rng.choice(("cursor", "partition", "expected", "next", "odd"))] = self.odd()
        return found

    def mark(self, record: int) -> str:
        return mark_of(self.number, len(self.requests), record)

    def spice(self, records: list[dict[str, Any]], chance: float) -> None:
        """Members other than the data of some records."""
        for each in records:
            if self.rng.random() < chance / len(records):
                each[self.rng.choice(("key", "tag", "node", "ts", "meta", "data_b64", "odd"))] = (
                    self.odd()
                )

    # -- questions -----------------------------------------------------------------------------

    def question(self) -> Sent:
        rng = self.rng
        topic = rng.choice((*RECORD_TOPICS, *SCRATCH_TOPICS, "missing", self.text()))
        scratch = rng.choice((*SCRATCH_TOPICS, "..", self.text()))
        questions: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("POST", f"/v0/topics/{topic}/diff", {"from_seq": self.odd(), "limit": 5}),
            ("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 5, "tail": True}),
            ("POST", f"/v0/topics/{scratch}/trim", {"before_seq": self.odd()}),
            ("PUT", f"/v0/topics/{scratch}", {"partitions": rng.choice((1, 2, self.odd()))}),
            ("PUT", f"/v0/topics/{scratch}", {"columns": {self.text(): self.odd()}}),
            ("PUT", f"/v0/cursors/{rng.choice(_CURSORS)}", {"positions": [{"seq": self.odd()}]}),
            ("PUT", f"/v0/cursors/{rng.choice((*_CURSORS, self.text()))}", {}),
            ("PUT", f"/v0/routers/{self.text()}", {"source": topic, "dest": scratch}),
            ("PUT", "/v0/routers/r", {"paused": self.odd(), "filter": {"tag": self.odd()}}),
            ("POST", "/v0/plans", {"topics": [topic, scratch]}),
            ("POST", "/v0/plans", {"topics": [topic], "from": {topic: {"0": self.odd()}}}),
        )
        method, target, document = rng.choice(questions)
        for _ in range(rng.choice((0, 0, 1, 3))):
            name = rng.choice(_NAMES)
            document[name] = rng.choice((0, 5, 50)) if name == "wait_ms" else self.odd()
        body = json.dumps(document).encode()
        if rng.random() < 0.3:
            body = self.damaged(body)
        return self.framed(method, _quoted(target), ["Content-Type: application/json"], body)

    def wander(self) -> Sent:
        """Paths and queries without a body."""
        rng = self.rng
        scratch = rng.choice((*SCRATCH_TOPICS, self.text()))
        method, path = rng.choice(
            (
                ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/v0/status"), ("GET", "/metrics"),
                ("GET", "/openapi.json"), ("GET", "/v0/topics"), ("GET", f"/v0/topics/{scratch}"),
                ("GET", "/v0/routers"), ("DELETE", f"/v0/routers/{rng.choice(('r', self.text()))}"),
                ("GET", "/v0/cursors"), ("GET", f"/v0/cursors/{rng.choice(_CURSORS)}"),
                ("DELETE", f"/v0/cursors/{rng.choice((*_CURSORS, self.text()))}"),
                ("DELETE", f"/v0/topics/{scratch}"), ("PUT", f"/v0/plans/{self.text()}"),
                ("DELETE", f"/v0/plans/{self.text()}"), ("GET", "/" + self.text()),
                ("PUT", f"/v0/topics/{scratch}"), ("GET", f"/v0/{self.text()}/{self.text()}"),
            )
        )  # fmt: skip
        target = _quoted(path)
        if rng.random() < 0.4:
            target += "?" + "&".join(self.parameter() for _ in range(rng.randint(1, 3)))
        return self.framed(method, target, [], None)

    def watch(self) -> Sent:
        """A stream, or the description of one. What is pipelined after a stream is dropped."""
        rng = self.rng
        topic = rng.choice((*RECORD_TOPICS, *RECORD_TOPICS, *SCRATCH_TOPICS, self.text()))
        if rng.random() < 0.3:
            asked: dict[str, Any] = {"topic": topic}
            document: dict[str, Any] = {"topics": [asked] * rng.choice((1, 1, 2, 65))}
            for _ in range(rng.choice((0, 1, 3))):
                place = rng.choice((asked, document))
                place[rng.choice(_WATCHED)] = self.odd()
            body = json.dumps(document).encode()
            return self.framed("POST", "/v0/watch", ["Content-Type: application/json"], body)
        path = f"/v0/topics/{topic}/watch" if rng.random() < 0.9 else f"/v0/watch/{self.text()}"
        target = _quoted(path)
        if rng.random() < 0.6:
            values = (str(rng.choice(_INTEGERS)), "0", "0", "true", "*", "a?", "\\\\", self.text())
            target += "?" + "&".join(
                _quoted(f"{rng.choice(_WATCHED)}={rng.choice(values)}")
                for _ in range(rng.choice((1, 1, 2)))
            )
        fields = []
        if rng.random() < 0.5:
            fields.append(f"Accept: {rng.choice(_STREAMS)}")
        if rng.random() < 0.2:
            fields.append(f"Last-Event-ID: {rng.choice(_POSITIONS)}")
        return self.framed("GET", target, fields, None)

    # -- HTTP ----------------------------------------------------------------------------------

    def framed(self, method: str, target: str, fields: list[str], body: bytes | None) -> Sent:
        """A request; sometimes its head or its chunks are not as they should be."""
        rng = self.rng
        framed = True
        given, allowed = self.authorized()
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *given, *fields]
        payload = body or b""
        if body is not None and rng.random() < 0.3:
            lines.append("Transfer-Encoding: chunked")
            payload = self.chunked(payload)
            if rng.random() < 0.2:
                payload, framed = self.damaged(payload), False
        elif body is not None:
            length = len(payload)
            if rng.random() < 0.05:
                length, framed = max(0, length + rng.choice((-5, -1, 1, 7))), False
            lines.append(f"Content-Length: {length}")
        if rng.random() < 0.1:
            lines.insert(rng.randint(1, len(lines)), rng.choice(_FIELDS))
            framed = False
        if rng.random() < 0.03:
            lines[0] = f"{rng.choice(_METHODS)} {target} HTTP/{rng.choice(('1.1', '1.0', '2.0'))}"
            framed = False
        if rng.random() < 0.03:
            lines = [line if rng.random() < 0.9 else rng.choice(_FIELDS) for line in lines]
            framed, allowed = False, True  # one of two tokens may be gone
        head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        if rng.random() < 0.05:
            head, framed, allowed = self.damaged(head), False, True
        return Sent(head + payload, framed=framed, allowed=allowed)

    def authorized(self) -> tuple[list[str], bool]:
        """The fields with a token, and whether it lets anybody in."""
        rng = self.rng
        if not self.tokens:
            return [], True
        token = rng.choice(self.tokens)
        bearer, key = f"Authorization: Bearer {token}", f"X-Api-Key: {token}"
        if rng.random() < 0.8:
            return [rng.choice((bearer, bearer, key))], True
        wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
        return rng.choice((
            [], [bearer, key], [bearer, bearer], [f"X-Api-Key: {wrong}"],
            [f"Authorization: Bearer {wrong}"], [f"Authorization: Basic {token}"],
            [f"Authorization: {token}"], ["Authorization:"], [f"X-Api-Key: {self.text()}"],
            [f"Authorization: Bearer {token[:40]}"], [f"Cookie: token={token}"],
        )), False  # fmt: skip

    def chunked(self, body: bytes) -> bytes:
        rng = self.rng
        pieces: list[bytes] = []
        while body:
            size = len(body) if len(pieces) > 100 else rng.choice((1, 2, 10, 1000, len(body)))
            piece, body = body[:size], body[size:]
            extension = rng.choice((b"", b"", b"", b";a=b", b";"))
            pieces.append(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece))
        trailer = rng.choice((b"", b"", b"X: y\r\n"))
        return b"".join([*pieces, b"0\r\n", trailer, b"\r\n"])

    def compressed(self, body: bytes) -> tuple[str, bytes, bool]:
        """Encoding, bytes, and whether they are whole."""
        rng = self.rng
        if rng.random() < 0.05:
            body = body + b" " * rng.choice((self.body_bytes_max, 8 * self.body_bytes_max))
        encoding = rng.choice(("gzip", "deflate", "zstd"))
        if encoding == "gzip":
            data = gzip.compress(body, 1, mtime=0)
        elif encoding == "deflate":
            data = zlib.compress(body, 1)
        else:
            data = zstandard.compress(body)
        if rng.random() < 0.2:
            return encoding, self.damaged(data), False
        return encoding, data, len(body) <= self.body_bytes_max

    def damaged(self, data: bytes) -> bytes:
        """A few bytes flipped, put in, left out, doubled, or the end cut off."""
        rng = self.rng
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data) + 1)
            to = min(len(data), at + rng.choice((1, 1, 2, 8, 100)))
            kind = rng.randrange(6)
            if kind == 0:
                data = data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
            elif kind == 1:
                data = data[:at] + rng.choice(_BYTES) + data[at:]
            elif kind == 2:
                data = data[:at] + data[to:]
            elif kind == 3:
                data = data[:to] + data[at:to] * rng.choice((1, 3)) + data[to:]
            elif kind == 4:
                data = data[:at] + rng.choice(_BYTES) * rng.choice((1, 600)) + data[to:]
            else:
                data = data[:at]
        return data

    def garbage(self) -> bytes:
        rng = self.rng
        return rng.choice(
            (
                rng.randbytes(rng.choice((1, 10, 1000))),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
                b"\r\n" * rng.randint(1, 6),
                b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * rng.choice((99, 101, 9000)),
                b"GET /"
                + b"a" * rng.choice((8000, 9000, 40_000))
                + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            )
        )

    # -- values --------------------------------------------------------------------------------

    def odd(self) -> Any:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(_INTEGERS)
        if rng.random() < 0.05:
            deep: Any = 1
            for _ in range(rng.choice((100, 300))):
                deep = [deep]
            return deep
        return rng.choice(_ODD)

    def text(self) -> str:
        rng = self.rng
        if rng.random() < 0.8:
            return rng.choice(_TEXTS)
        return "".join(chr(rng.randrange(33, 127)) for _ in range(5))

    def parameter(self) -> str:
        rng = self.rng
        name = rng.choice((*_PARAMETERS, self.text()))
        value = rng.choice((str(rng.choice(_INTEGERS)), self.text(), "true", "", "0", "1"))
        return rng.choice((f"{name}={value}", name, f"{name}={value}={value}", "&", "=")).replace(
            " ", "+"
        )


def _packed(document: dict[str, Any]) -> bytes:
    """msgpack has no integers beyond 64 bits; those go as text."""

    def smaller(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: smaller(each) for name, each in value.items()}
        if isinstance(value, list):
            return [smaller(each) for each in value]
        too_large = isinstance(value, int) and not -(2**63) <= value < 2**64
        return str(value) if too_large else value

    return msgspec.msgpack.encode(smaller(document))


def _quoted(target: str) -> str:
    """What a request line cannot hold as it is; percent signs stay, right or wrong."""
    return "".join(
        each if "!" <= each <= "~" and each not in "#?" else f"%{ord(each) & 0xFF:02x}"
        for each in target
    )
