"""Frames: however a stream of bytes is cut, the same frames come out of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.pipes.frames import (
    HEAD_BYTES,
    FrameKind,
    FrameReader,
    PipeFrame,
    PipeFrameError,
    credit_in,
    credit_of,
    head_of,
)

LIMIT = 64
FRAMES = st.builds(
    PipeFrame,
    st.sampled_from(FrameKind),
    st.integers(0, 0xFFFF_FFFF),
    st.binary(max_size=LIMIT),
)


def written(frames: list[PipeFrame]) -> bytes:
    return b"".join(
        head_of(each.kind, each.number, len(each.payload)) + each.payload for each in frames
    )


@given(st.lists(FRAMES, max_size=8), st.data())
def test_frames_come_out_whole_however_they_are_cut(
    frames: list[PipeFrame], data: st.DataObject
) -> None:
    whole = written(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    reader = FrameReader(LIMIT)
    found = []
    for start, end in itertools.pairwise([0, *cuts, len(whole)]):
        found += reader.feed(whole[start:end])
        reader.check_invariants()
        so_far = written(found)
        assert whole.startswith(so_far)
        rest = whole[len(so_far) : end]
        if len(rest) >= HEAD_BYTES:
            following = frames[len(found)]
            assert reader.partial_bytes == HEAD_BYTES + len(following.payload)
        else:
            assert reader.partial_bytes == 0
    assert found == frames


def test_the_layout_of_a_frame() -> None:
    assert head_of(FrameKind.DATA, 0x01020304, 5) == bytes([5, 0, 0, 0, 4, 3, 2, 1, 10])
    assert credit_of(1 << 16) == bytes([0, 0, 1, 0])
    assert credit_in(credit_of(70_000) + b"more") == 70_000


@pytest.mark.parametrize(
    "head", [head_of(FrameKind.ASK, 1, LIMIT + 1), b"\0" * 8 + b"\x63"], ids=["long", "kind"]
)
def test_what_no_shard_sends_is_an_error(head: bytes) -> None:
    with pytest.raises(PipeFrameError, match=f"the limit is {LIMIT}"):
        FrameReader(LIMIT).feed(head)


def test_a_credit_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(PipeFrameError, match="4 bytes, got 3"):
        credit_in(b"abc")
