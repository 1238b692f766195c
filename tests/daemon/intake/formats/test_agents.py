"""Requests as Vector's and Fluent Bit's http outputs send them, byte for byte, are taken.

The heads follow the agents' sources: hyper's lower-case names for Vector, the order in which
``flb_http_client`` writes its fields for Fluent Bit. docs/producers.md has the configurations.
"""

from __future__ import annotations

import gzip
import json
import tomllib
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from daemon.http.head import parse_head
from daemon.http.limits import HttpLimits
from daemon.http.request import Request
from daemon.http.server import Server
from daemon.intake.formats import BodyLimits, decompress, parse, payloads
from daemon.schemas.errors import ApiError
from tests.daemon.http.front import Script
from tests.daemon.http.memory_transport import connect
from uploader.l0.records import Record, decode

LIMITS = BodyLimits()
GUIDE = Path(__file__).parents[4] / "docs" / "producers.md"
HTTP_LIMITS = HttpLimits()

VECTOR_EVENTS = [
    '{"host":"web-1","message":"GET / 200","timestamp":"2026-01-02T03:04:05.678901234Z"}',
    '{"host":"web-2","message":"naïve \\"quoted\\" \\\\ path","source_type":"file"}',
]
FLUENT_BIT_EVENTS = [
    '{"date":1767322445.678901,"log":"GET / 200\\n","stream":"stdout"}',
    '{"date":1767322446.000001,"log":"na\\u00efve","kubernetes":{"pod_name":"p-1","labels":{}}}',
]
NDJSON = "application/x-ndjson"
JSON = "application/json"


def streamed_zstd(body: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(body) + stream.flush()


def fluent_bit_gzip(body: bytes) -> bytes:
    """flb_gzip writes its own header: no name, no time, unknown system, raw deflate, CRC, size."""
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = raw.compress(body) + raw.flush()
    size = len(body).to_bytes(4, "little")
    return (
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
        + data
        + zlib.crc32(body).to_bytes(4, "little")
        + size
    )


def vector(target: str, body: bytes, content_type: str, encoding: str = "") -> bytes:
    lines = [f"POST {target} HTTP/1.1", f"content-type: {content_type}"]
    if encoding:
        lines.append(f"content-encoding: {encoding}")
    lines += [
        "user-agent: Vector/0.43.1 (x86_64-unknown-linux-gnu e30bf1f 2024-12-10 16:14:47)",
        "accept-encoding: zstd,gzip,deflate,br",
        "host: 127.0.0.1:7440",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def fluent_bit(target: str, body: bytes, content_type: str, encoding: str = "") -> bytes:
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: 127.0.0.1:7440",
        f"Content-Length: {len(body)}",
        f"Content-Type: {content_type}",
    ]
    if encoding:
        lines.append(f"Content-Encoding: {encoding}")
    lines += ["User-Agent: Fluent-Bit", "Connection: keep-alive"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Taking(Script):
    """Parses every body as the daemon does and keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []

    def handle(self, request: Request, token: object | None) -> None:
        head = request.head
        body = decompress(request.body, head.content_encoding, LIMITS.body_bytes_max)
        produce = parse(head.content_type, head.query, body, LIMITS, 0)
        for _, _, payload, _, _ in payloads(produce, 1, lambda: 0):
            self.records += decode(payload)
        request.respond_ok_json(b"{}")


def taken(request: bytes) -> list[Record]:
    """The records that a whole request leaves behind; it must be answered with 200."""
    server = Server()
    server.application = script = Taking()
    connection, transport = connect(server)
    connection.data_received(request)
    connection.connection_lost(None)
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n"), transport.written
    return script.records


def array(events: list[str]) -> bytes:
    return ("[" + ",".join(events) + "]").encode()


def lines(events: list[str]) -> bytes:
    return "".join(event + "\n" for event in events).encode()


SHAPES: dict[str, tuple[Callable[[list[str]], bytes], str]] = {
    "array": (array, JSON),
    "lines": (lines, NDJSON),
}
PACKERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "plain": (bytes, ""),
    "gzip": (gzip.compress, "gzip"),
    "gzip of Fluent Bit": (fluent_bit_gzip, "gzip"),
    "zlib": (zlib.compress, "deflate"),
    "zstd": (streamed_zstd, "zstd"),
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("agent", "events"),
    [(vector, VECTOR_EVENTS), (fluent_bit, FLUENT_BIT_EVENTS)],
    ids=["vector", "fluent-bit"],
)
def test_each_event_of_an_agent_becomes_a_record_as_it_was_sent(
    agent: Callable[..., bytes], events: list[str], shape: str, packer: str
) -> None:
    write, content_type = SHAPES[shape]
    pack, encoding = PACKERS[packer]
    request = agent("/v0/topics/logs", pack(write(events)), content_type, encoding)
    assert taken(request) == [Record(event) for event in events]


def test_the_last_line_of_a_batch_may_lack_its_newline() -> None:
    body = lines(VECTOR_EVENTS)[:-1]
    assert len(taken(vector("/v0/topics/logs", body, NDJSON))) == 2


def test_a_field_of_an_event_becomes_its_key() -> None:
    request = vector("/v0/topics/logs?key=host", array(VECTOR_EVENTS), JSON)
    assert [record.key for record in taken(request)] == ["web-1", "web-2"]


def test_fluent_bits_content_type_with_a_charset_is_taken() -> None:
    request = fluent_bit("/v0/topics/logs", array(FLUENT_BIT_EVENTS), JSON + "; charset=utf-8")
    assert len(taken(request)) == 2


@pytest.mark.parametrize("join", ["\n", ""])
def test_lines_or_a_stream_sent_as_json_are_refused_with_the_way_out(join: str) -> None:
    """Fluent Bit before 3.1 sends json_lines, and any version json_stream, as application/json."""
    body = join.join(FLUENT_BIT_EVENTS).encode()
    with pytest.raises(ApiError) as caught:
        parse(JSON, {}, body, LIMITS, 0)
    assert caught.value.status == 400
    assert NDJSON in caught.value.message


def test_the_settings_in_the_guide_are_those_that_are_tried_here() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    sink = tomllib.loads(guide.split("```toml\n")[1].split("```")[0])["sinks"]["headgate"]
    assert sink["encoding"]["codec"] == "json"
    assert sink["compression"] in PACKERS
    assert sink["batch"]["max_events"] <= LIMITS.records_max
    assert sink["batch"]["max_bytes"] < LIMITS.body_bytes_max
    target = sink["uri"].removeprefix("http://127.0.0.1:7440")
    request = vector(target, streamed_zstd(array(VECTOR_EVENTS)), JSON, "zstd")
    assert [record.key for record in taken(request)] == ["web-1", "web-2"]
    output = guide.split("```ini\n")[1].split("```")[0]
    settings = dict(line.split() for line in output.splitlines()[1:])
    assert (settings["format"], settings["compress"]) == ("json", "gzip")
    request = fluent_bit(settings["uri"], fluent_bit_gzip(array(FLUENT_BIT_EVENTS)), JSON, "gzip")
    assert len(taken(request)) == 2


def test_vectors_health_check_is_a_head_request_that_parses() -> None:
    raw = b"HEAD /readyz HTTP/1.1\r\naccept: */*\r\nhost: 127.0.0.1:7440\r\n\r\n"
    assert parse_head(raw, HTTP_LIMITS).method == "HEAD"


def test_the_events_above_are_json() -> None:
    for event in VECTOR_EVENTS + FLUENT_BIT_EVENTS:
        json.loads(event)
