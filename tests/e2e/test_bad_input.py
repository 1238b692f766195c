"""Random input on a real daemon: a clear refusal, and stored is exactly what was acknowledged.

What is refused, and with which words, is in ``tests/daemon/http`` and ``tests/daemon/intake``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.wire import Wire, request
from tests.long import examples

NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The shared one, none of whose shards is restarted."""
    before = [shard["restarts"] for shard in shared_daemon.status()["shards"]]
    yield shared_daemon
    wait_until(lambda: shared_daemon.get("/readyz").status == 200, "the daemon to be ready")
    assert [shard["restarts"] for shard in shared_daemon.status()["shards"]] == before


@pytest.mark.slow
def test_a_stalled_client_does_not_keep_the_daemon_from_stopping(data: Path) -> None:
    with running(data) as daemon, Wire(daemon.port) as wire:
        head = request(
            "POST", "/v0/topics/t", Content_Type="application/json", Content_Length="100"
        )
        wire.send(head + b"[1")
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
content_types = st.sampled_from(
    ["application/json", NDJSON, "application/msgpack", "application/octet-stream", "", "x/y"]
)
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
