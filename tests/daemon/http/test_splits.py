"""How received bytes are split changes nothing; nor does the order in which answers are given."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from tests.daemon.http.front import Script, chunked, get, post
from tests.daemon.http.memory_transport import connect
from tests.long import examples

bodies = st.binary(max_size=40)
wholes = st.one_of(
    st.builds(post, st.sampled_from(["/echo", "/full", "/missing", "/refuse", "/free"]), bodies),
    st.builds(
        lambda path, chunks: chunked(path, *chunks),
        st.sampled_from(["/echo", "/full", "/missing"]),
        st.lists(st.binary(min_size=1, max_size=20), max_size=4),
    ),
    st.builds(get, st.just("/echo?a=b")),
    st.just(b"\r\n" + get("/echo")),
)
lasts = st.sampled_from(
    [
        b"",
        b"GARBAGE HERE\r\n\r\n",
        b"\x00\x01",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        post("/echo", b"last", "Connection: close") + post("/echo", b"never"),
        post("/echo", b"x" * 2000),
        post("/echo", b"cut off")[:-1],
        b"POST /echo HTT",
    ]
)


def outcome(stream: bytes, cuts: list[int]) -> tuple[bytes, list[tuple[str, bytes]], bool]:
    """What is written, what the application saw, and whether our side ended."""
    server = Server()
    server.application = script = Script()
    server.limits = HttpLimits(body_bytes_max=1000)
    connection, transport = connect(server)
    previous = 0
    for cut in [*sorted(cuts), len(stream)]:
        if cut > previous:
            connection.data_received(stream[previous:cut])
            previous = cut
    held = len(script.tokens)
    connection.connection_lost(None)
    assert held <= 1
    assert not script.tokens
    return bytes(transport.written), script.handled, transport.ended


@given(st.lists(wholes, max_size=6), lasts, st.data())
@settings(max_examples=examples(100))
def test_any_split_of_a_stream_gives_the_same_answers(
    requests: list[bytes], last: bytes, data: st.DataObject
) -> None:
    stream = b"".join(requests) + last
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    whole = outcome(stream, [])
    assert outcome(stream, cuts) == whole
    assert outcome(stream, list(range(len(stream)))) == whole
    assert count_of_answers(whole[0]) == len(requests) + (last not in NO_ANSWER)


def count_of_answers(written: bytes) -> int:
    """By their lengths: an echoed body may look like an answer's first line."""
    count = 0
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 ")
        (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
        written = rest[int(length) :]
        count += 1
    return count


NO_ANSWER = (b"", post("/echo", b"cut off")[:-1], b"POST /echo HTT")


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["feed", "answer"]), st.integers(0, 99)), max_size=60),
)
@settings(max_examples=examples(300))
def test_answers_leave_in_order_and_outstanding_requests_stay_bounded(
    outstanding_max: int, steps: list[tuple[str, int]]
) -> None:
    server = Server()
    server.application = script = Script()
    server.limits = HttpLimits(requests_outstanding_max=outstanding_max)
    connection, transport = connect(server)
    sent = 0
    unanswered: list[int] = []
    seen = 0
    for what, number in steps:
        if what == "feed" and not transport.paused:
            count = number % 5
            connection.data_received(b"".join(post(f"/later/{sent + n}") for n in range(count)))
            sent += count
        elif unanswered:
            index = unanswered.pop(number % len(unanswered))
            script.later[index].respond(200, b"<%d>" % index)
        unanswered += range(seen, len(script.later))
        seen = len(script.later)
        assert len(connection.queue) <= outstanding_max
        assert transport.paused or not connection.buffer
    while unanswered:
        index = unanswered.pop()
        script.later[index].respond(200, b"<%d>" % index)
        unanswered += range(seen, len(script.later))
        seen = len(script.later)
    assert not transport.paused
    assert [path for path, _ in script.handled] == [f"/later/{n}" for n in range(sent)]
    answers = [int(part.split(b">")[0]) for part in transport.written.split(b"<")[1:]]
    assert answers == list(range(sent))
