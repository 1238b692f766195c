"""The chunked coding: every split is the same, and nothing lenient gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.http.body import ChunkedBody
from daemon.schemas.errors import ApiError


def decode(stream: bytes, cuts: list[int], limit: int = 10_000) -> tuple[bytes, int, bool]:
    decoder = ChunkedBody(limit)
    previous = stopped = 0
    for cut in [*sorted(cuts), len(stream)]:
        piece = stream[previous:cut]
        if piece and not decoder.done:
            stopped = previous + decoder.feed(piece, 0)
        previous = cut
    return decoder.take(), stopped, decoder.done


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.sampled_from(["", ";a", ";a=b"]))),
    st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: 1\r\nB:\r\n"]),
    st.binary(max_size=10),
    st.data(),
)
def test_any_split_gives_the_chunks_joined_and_stops_after_them(
    chunks: list[tuple[bytes, str]], trailers: bytes, after: bytes, data: st.DataObject
) -> None:
    coded = b"".join(
        (b"%X" % len(chunk)) + ext.encode() + b"\r\n" + chunk + b"\r\n" for chunk, ext in chunks
    )
    coded += b"0\r\n" + trailers + b"\r\n"
    cuts = data.draw(st.lists(st.integers(0, len(coded)), max_size=8))
    body = b"".join(chunk for chunk, _ in chunks)
    assert decode(coded + after, cuts) == (body, len(coded), True)
    assert decode(coded, list(range(len(coded)))) == (body, len(coded), True)
    assert not decode(coded[:-1], cuts)[2]


MALFORMED = {
    "bare LF after the size": b"1\na\r\n0\r\n\r\n",
    "bare LF after the data": b"1\r\na\n0\r\n\r\n",
    "data longer than its size": b"1\r\nab\r\n0\r\n\r\n",
    "a space before the size": b" 1\r\na\r\n0\r\n\r\n",
    "a space after the size": b"1 \r\na\r\n0\r\n\r\n",
    "a signed size": b"+1\r\na\r\n0\r\n\r\n",
    "a prefixed size": b"0x1\r\na\r\n0\r\n\r\n",
    "an underscore in the size": b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n",
    "no size": b"\r\na\r\n0\r\n\r\n",
    "an overlong size": b"000000001\r\na\r\n0\r\n\r\n",
    "a CR in an extension": b"1;a\rb\r\na\r\n0\r\n\r\n",
    "a folded trailer": b"0\r\nA: 1\r\n b\r\n\r\n",
    "a trailer without a colon": b"0\r\nabc\r\n\r\n",
    "a trailer with a bare LF": b"0\r\nA: 1\nB: 2\r\n\r\n",
    "an overlong line": b"1;" + b"a" * 5000 + b"\r\na\r\n0\r\n\r\n",
    "an endless line": b"1" * 5000,
    "many extensions": (b"1;" + b"e" * 1000 + b"\r\na\r\n") * 20,
    "many trailers": b"0\r\n" + b"A: 1\r\n" * 5000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_coding_is_400_and_the_end_however_it_is_split(name: str) -> None:
    stream = MALFORMED[name]
    single_cuts = [[cut] for cut in range(1, min(len(stream), 100))]
    for cuts in ([], *single_cuts, list(range(len(stream)))):
        with pytest.raises(ApiError) as caught:
            decode(stream, cuts)
        assert (caught.value.status, caught.value.code) == (400, "bad_request")
        assert caught.value.close


def test_the_limit_is_for_the_sum_and_strikes_at_the_size_line() -> None:
    assert decode(b"5\r\nabcde\r\n5\r\nabcde\r\n0\r\n\r\n", [], limit=10)[2]
    for stream in (b"5\r\nabcde\r\n6\r\n", b"ffffffff\r\n"):
        with pytest.raises(ApiError) as caught:
            decode(stream, [], limit=10)
        assert (caught.value.status, caught.value.close) == (413, True)


def test_a_decoder_that_keeps_nothing_still_counts() -> None:
    decoder = ChunkedBody(10, keep=False)
    assert decoder.feed(b"5\r\nabcde\r\n0\r\n\r\n", 0) == 15
    assert (decoder.done, decoder.size, decoder.take()) == (True, 5, b"")
