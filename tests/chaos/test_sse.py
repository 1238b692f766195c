"""The parser of event streams follows the HTML standard, whatever the pieces that arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.sse import ChunkDecoder, Event, Position, SseParser

# The examples of the standard, and what they dispatch.
EXAMPLES: list[tuple[bytes, list[Event | Position]]] = [
    (b"data: YHOO\ndata: +2\ndata: 10\n\n", [Event("message", "YHOO\n+2\n10")]),
    (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event",
        [Event("message", "first event"), Position("1"), Event("message", "second event"),
         Position("")],
    ),
    (b"data\n\ndata\ndata\n\ndata:", [Event("message", ""), Event("message", "\n")]),
    (b"data:test\n\ndata: test\n\n", [Event("message", "test"), Event("message", "test")]),
    (b"event: add\r\ndata: 7\r\n\r\nevent: x\r\r", [Event("add", "7")]),
    (b"\xef\xbb\xbfretry: 1000\n\nid: 4:0=7\n\n", [Position("4:0=7")]),
    (b"id: a\0b\n\ndata: x\n\n", [Event("message", "x")]),
    (b"id: 5\ndata: half of a block", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), EXAMPLES)
def test_examples_of_the_standard(text: bytes, wanted: list[Event | Position]) -> None:
    assert SseParser().feed(text + b" ") == wanted


@given(st.sampled_from(EXAMPLES), st.integers(1, 7))
def test_pieces_of_any_size_give_the_same_events(
    example: tuple[bytes, list[Event | Position]], size: int
) -> None:
    text, wanted = example[0] + b" ", example[1]
    parser = SseParser()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert [event for piece in pieces for event in parser.feed(piece)] == wanted


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.integers(1, 9))
def test_chunks_in_pieces_of_any_size_give_their_content(chunks: list[bytes], size: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    decoder = ChunkDecoder()
    pieces = [wire[start : start + size] for start in range(0, len(wire), size)]
    assert b"".join(decoder.feed(piece) for piece in pieces) == b"".join(chunks)
    assert decoder.ended


@pytest.mark.parametrize("wire", [b"3\r\nabcd\r\n", b"zz\r\n", b"1" * 65])
def test_what_is_not_a_chunk_is_refused(wire: bytes) -> None:
    with pytest.raises(ValueError):
        ChunkDecoder().feed(wire)
