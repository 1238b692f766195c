"""The framing of a stream."""

from __future__ import annotations

from delivery.watch.wire import LAST_CHUNK, chunk


def test_a_chunk_has_its_length_in_hex() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


def test_no_bytes_do_not_end_the_stream() -> None:
    assert chunk(b"") == b""
    assert LAST_CHUNK == b"0\r\n\r\n"
