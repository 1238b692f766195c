"""Bad input of every kind: a clear refusal, nothing stored, no other client disturbed.

After each test all topics are unchanged, and a bystander on each shard is served. At the end no
shard was restarted, and the log has no traceback.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.e2e.daemon import Answer, Daemon, running
from tests.e2e.wire import Wire, chunked, request, wire_of_each_shard
from tests.long import examples

KIB = 1024
BODY_MAX, RECORD_MAX, RECORDS_MAX = 256 * KIB, 64 * KIB, 1000
LIMITS = {
    "ring_bytes": 4 << 20, "object_bytes_target": 1 << 20, "body_bytes_max": BODY_MAX,
    "record_bytes_max": RECORD_MAX, "records_max": RECORDS_MAX,
}  # fmt: skip
TOPIC = "/v0/topics/victim"
NDJSON, MSGPACK, OCTETS = "application/x-ndjson", "application/msgpack", "application/octet-stream"

pack = msgspec.msgpack.encode


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("data"), shards=2, settings=LIMITS) as daemon:
        daemon.produce("victim", "kept")
        daemon.json("PUT", "/v0/topics/victim-of-two", {"partitions": 2})
        yield daemon
        assert daemon.get("/readyz").status == 200
        assert [shard["restarts"] for shard in daemon.status()["shards"]] == [0, 0]
        assert "Traceback" not in daemon.text


@pytest.fixture(scope="module")
def bystanders(daemon: Daemon) -> Iterator[list[Wire]]:
    with wire_of_each_shard(daemon, "bystander") as wires:
        yield wires


def all_topics(daemon: Daemon) -> list[Any]:
    page = daemon.get("/v0/topics?limit=1000").json
    return [state for state in page["topics"] if state["topic"] not in ("bystander", "fuzz")]


@pytest.fixture(autouse=True)
def nothing_happens(daemon: Daemon, bystanders: list[Wire]) -> Iterator[None]:
    """Compares before and after."""
    before = all_topics(daemon)
    yield
    for wire in bystanders:
        document = {"records": [{"data": "still here"}]}
        assert wire.json("POST", "/v0/topics/bystander", document).status == 200
    assert all_topics(daemon) == before


def refused(answer: Answer | None, status: int, code: str, **detail: object) -> None:
    """The answer is this error; of ``detail`` the given operands are compared."""
    assert answer is not None, "the connection ended without an answer"
    assert (answer.status, answer.code) == (status, code), answer.body
    error = answer.json["error"]
    assert set(error) == {"code", "message", "detail"}
    assert len(error["message"].split()) >= 4, "a sentence for people"
    assert {name: error["detail"].get(name) for name in detail} == detail


def post(
    body: bytes, content_type: str = "application/json", path: str = TOPIC, **more: str
) -> bytes:
    return request("POST", path, body, content_type, **more)


def record(text: bytes) -> bytes:
    return b'{"records":[{"data":1},%s]}' % text


MALFORMED: dict[str, tuple[bytes, dict[str, object]]] = {
    "line 3": (post(b'{"records":\n[{"data":1},\n{"data":oops}]}'), {"line": 3}),
    "no data": (post(record(b'{"key":"k"}')), {"record": 1}),
    "partition 1 of 1": (post(b"[1]", path=TOPIC + "?partition=1"), {"partition": 1}),
    "partition -1": (post(b"[1]", path=TOPIC + "?partition=-1"), {"parameter": "partition"}),
    "very deep": (post(b"[" * (200 * KIB)), {"limit_levels": 512}),
    "lines: one of three": (post(b'1\n{"a"}\n3', NDJSON), {"line": 2}),
    "msgpack: cut off": (post(pack({"records": [{"data": "abc"}]})[:-1], MSGPACK), {}),
    "bytes: none": (post(b"", OCTETS), {}),
    "gzip: cut off": (post(gzip.compress(b"[1]")[:-1], Content_Encoding="gzip"), {}),
    "deflate: raw": (post(zlib.compress(b"[1]")[2:-4], Content_Encoding="deflate"), {}),
    "zstd: cut off": (post(zstandard.compress(b"[1]")[:-1], Content_Encoding="zstd"), {}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_body_is_400_and_the_connection_goes_on(daemon: Daemon, name: str) -> None:
    data, detail = MALFORMED[name]
    with Wire(daemon.port) as wire:
        refused(wire.ask(data), 400, "invalid", **detail)
        assert wire.ask(request("GET", TOPIC)).status == 200


def test_a_malformed_body_makes_no_topic(daemon: Daemon) -> None:
    with Wire(daemon.port) as wire:
        for number, (data, _) in enumerate(MALFORMED.values()):
            elsewhere = data.replace(TOPIC.encode(), b"/v0/topics/unborn-%d" % number)
            refused(wire.ask(elsewhere), 400, "invalid")


BOMB = b"[" + b" " * (8 << 20) + b"1]"
TOO_LARGE = {
    "a record": post(b'[1,"%s"]' % (b"x" * RECORD_MAX)),
    "a count of lines": post(b"1\n" * (RECORDS_MAX + 1), NDJSON),
    "a gzip bomb": post(gzip.compress(BOMB), Content_Encoding="gzip"),
    "settings": request("PUT", TOPIC, b" " * (2 << 20)),
    "a question": request("POST", TOPIC + "/diff", b" " * (2 << 20)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_413(daemon: Daemon, name: str) -> None:
    with Wire(daemon.port) as wire:
        wire.send(TOO_LARGE[name])
        refused(wire.answer(), 413, "too_large")


def test_a_large_body_is_refused_before_it_is_sent(daemon: Daemon) -> None:
    for more in ({}, {"Expect": "100-continue"}):
        with Wire(daemon.port) as wire:
            wire.send(
                request("POST", TOPIC, Content_Type="application/json",
                        Content_Length=str(BODY_MAX + 1), **more)
            )  # fmt: skip
            refused(wire.answer(), 413, "too_large", limit_bytes=BODY_MAX)
            wire.half_close()
            assert wire.answers() == [], "the connection ends, because what comes next is unknown"


def test_a_chunked_body_may_not_grow_over_the_limit(daemon: Daemon) -> None:
    with Wire(daemon.port) as wire:
        wire.send(request("POST", TOPIC, Content_Type=NDJSON, Transfer_Encoding="chunked"))
        wire.send(chunked(b"1\n" * BODY_MAX, 1000, 100_000))
        refused(wire.answer(), 413, "too_large", limit_bytes=BODY_MAX)
        assert wire.answers() == []


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "unsupported_media_type"),
        ({"Content_Type": ""}, "unsupported_media_type"),
        ({"Content_Type": "text/plain"}, "unsupported_media_type"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, "unsupported_media_type"),
        ({"Content_Type": "application/jsonx"}, "unsupported_media_type"),
        ({"Content_Type": "\xff\xfe"}, "unsupported_media_type"),
        ({"Content_Type": "application/json", "Content_Encoding": "br"}, "unsupported_encoding"),
        ({"Content_Type": "application/json", "Content_Encoding": "gzip, gzip"},
         "unsupported_encoding"),
    ],
)  # fmt: skip
def test_an_unknown_type_or_encoding_is_415(
    daemon: Daemon, headers: dict[str, str], code: str
) -> None:
    for path in (TOPIC, "/v0/topics/unborn", "/v0/topics/victim-of-two"):
        with Wire(daemon.port) as wire:
            refused(wire.ask(request("POST", path, b"[1]", "", **headers)), 415, code)


NAMES = ["..", ".", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%2fb", "a%00b", "%ff", "a b", "a%20b",
         "-", "x" * 256, "%F0%9F%98%80", "CON%0d%0aX:%20y", "a;b", "a\\b", "''--"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", ["", "/diff"])
def test_a_name_that_leads_elsewhere_is_400(daemon: Daemon, name: str, suffix: str) -> None:
    with Wire(daemon.port) as wire:
        answer = wire.ask(request("POST", f"/v0/topics/{name}{suffix}", b"[1]"))
        assert answer.status == 400
        assert answer.code in ("invalid_topic", "bad_request")


HEAD = b"POST /v0/topics/victim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GARBAGE: dict[str, tuple[bytes, int, str]] = {
    "TLS": (bytes.fromhex("16030100f8010000f40303") + b"\x00" * 50, 400, "bad_request"),
    "a parameter twice": (
        HEAD.replace(b"victim ", b"victim?partition=0&partition=0 ")
        + b"Content-Length: 3\r\n\r\n[1]",
        400,
        "bad_request",
    ),
    "length and chunks": (
        HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"[1]"),
        400,
        "bad_request",
    ),
    "a chunk without a size": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        400,
        "bad_request",
    ),
    "a chunk of 4 GiB": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        413,
        "too_large",
    ),
    "another expectation": (
        HEAD + b"Expect: 200-ok\r\nContent-Length: 3\r\n\r\n[1]",
        417,
        "expectation_failed",
    ),
    "a long target": (
        b"GET /v0/topics?cursor=" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        414,
        "uri_too_long",
    ),
    "a long header": (
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 40_000 + b"\r\n\r\n",
        431,
        "head_too_large",
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_after_good_requests_costs_none_of_them(daemon: Daemon, name: str) -> None:
    data, status, code = GARBAGE[name]
    with Wire(daemon.port) as wire:
        wire.send(request("GET", TOPIC) * 3 + data + request("POST", TOPIC, b"[1]") * 3)
        answers = wire.answers()
    assert [a.status for a in answers[:3]] == [200, 200, 200]
    refused(answers[3], status, code)
    assert len(answers) == 4, "nothing after the garbage is taken for a request"


@pytest.mark.parametrize("body", [b"", b"[", b"[1,2"])
def test_a_body_that_is_cut_off_is_not_stored(daemon: Daemon, body: bytes) -> None:
    for head in (HEAD + b"Content-Length: 5\r\n\r\n" + body,
                 HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + body):  # fmt: skip
        with Wire(daemon.port) as wire:
            wire.send(head)
            wire.half_close()
            refused(wire.answer(), 400, "body_truncated")
            assert wire.answers() == []
        with Wire(daemon.port) as wire:
            wire.send(head)  # and away


def test_stalled_clients_affect_no_others(daemon: Daemon, bystanders: list[Wire]) -> None:
    """Half a request on many connections; the time limit itself is tested on the HTTP front."""
    parts = [b"", b"P", HEAD, HEAD + b"Content-Length: 100\r\n\r\n[1",
             HEAD + b"Transfer-Encoding: chunked\r\n\r\n64\r\n[1"]  # fmt: skip
    wires = [Wire(daemon.port) for _ in range(50)]
    try:
        for number, wire in enumerate(wires):
            wire.send(parts[number % len(parts)])
        for bystander in bystanders * 10:
            document = {"records": [{"data": "unimpressed"}]}
            assert bystander.json("POST", "/v0/topics/bystander", document).status == 200
    finally:
        for wire in wires:
            wire.close()


@pytest.mark.slow
def test_a_stalled_client_does_not_keep_the_daemon_from_stopping(data: Path) -> None:
    with running(data) as daemon, Wire(daemon.port) as wire:
        wire.send(HEAD + b"Content-Length: 100\r\n\r\n[1")
        assert daemon.get("/livez").status == 200
        assert daemon.stop() == 0


# Requests that are wrong in a random way, around the formats and the paths that there are. Some
# come out right, so they have a topic of their own, in which exactly what is acknowledged may be.
FUZZ = "/v0/topics/fuzz"
junk = st.binary(max_size=200)
paths = st.sampled_from([
    FUZZ, FUZZ + "?partition=0", FUZZ + "?key=a", FUZZ + "/diff", "/v0/topics", "/v0/status",
    "/livez", "/", FUZZ + "?create=false",
])  # fmt: skip
content_types = st.sampled_from(["application/json", NDJSON, MSGPACK, OCTETS, "", "x/y"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
bodies = st.one_of(
    junk,
    values.map(lambda value: json.dumps({"records": [{"data": value}]}).encode()),
    values.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda a, b: b'{"records":[{"data":' + a + b"}]}" + b, junk, junk),
)
requests = st.one_of(
    junk,
    st.builds(
        lambda method, path, body, kind, cut, extra: (
            request(method, path, body, kind)[: -cut or None] + extra
        ),
        st.sampled_from(["POST", "POST", "PUT", "GET", "PATCH", "OPTIONS"]),
        paths,
        bodies,
        content_types,
        st.integers(0, 8),
        junk | st.just(b""),
    ),
)


@settings(max_examples=examples(200))
@given(st.lists(requests, min_size=1, max_size=4))
@example([request("POST", FUZZ, b"0", NDJSON), b"\r\n"])
def test_random_requests_are_never_a_server_error_and_what_is_acknowledged_is_stored(
    daemon: Daemon, sent: list[bytes]
) -> None:
    def stored() -> int:
        state = daemon.json("PUT", FUZZ, {})
        return sum(partition["count"] for partition in state.json["partitions"])

    before = stored()
    acknowledged = 0
    with Wire(daemon.port) as wire:
        wire.send(b"".join(sent))
        wire.half_close()
        for answer in wire.answers():
            assert answer.status < 500, (sent, answer.body)
            if answer.status >= 400:
                assert set(answer.json["error"]) == {"code", "message", "detail"}
            elif b'"deduped"' in answer.body:  # the page, too, is an answer
                acknowledged += answer.json["count"]
    assert stored() == before + acknowledged
