"""The framing of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.http.body import ChunkedBody
from delivery.streams.wire import LAST_CHUNK, chunk


def test_a_chunk_has_its_length_in_hex() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_no_bytes_do_not_end_the_stream() -> None:
    assert chunk(b"") == b""
    assert LAST_CHUNK == b"0\r\n\r\n"


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_a_strict_decoder_gets_the_data_back(parts: list[bytes]) -> None:
    body = ChunkedBody(10_000)
    stream = b"".join(map(chunk, parts)) + LAST_CHUNK
    assert body.feed(stream, 0) == len(stream)
    assert body.done
    assert body.take() == b"".join(parts)
