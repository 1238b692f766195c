"""Chunks come back in the order of their keys, with little memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.parquet.spill import local_file
from compaction.run.chunk_sort import ChunkSorter, by_key

keys = st.tuples(st.integers(0, 3), st.integers(-1, 3))


@given(st.lists(st.tuples(keys, st.binary(max_size=50))), st.integers(0, 200))
def test_chunks_come_in_the_order_of_their_keys_and_equal_ones_as_they_came(
    pairs: list[tuple[tuple[int, ...], bytes]], memory_bytes: int
) -> None:
    assert list(by_key(pairs, memory_bytes)) == sorted(pairs, key=lambda pair: pair[0])


def test_what_memory_does_not_hold_is_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    spool = ChunkSorter[tuple[int, ...]](memory_bytes=100)
    for at in range(10, 0, -1):
        spool.add((at,), bytes([at]) * 50)
    assert spool._held_bytes == 100 and spool._end == 400
    assert not list(tmp_path.iterdir())
    assert [chunk[0] for _, chunk in spool.sorted()] == list(range(1, 11))
    spool.close()


def test_a_chunk_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    spool = ChunkSorter[tuple[int, ...]](memory_bytes=0)
    spool.add((1,), b"chunk")
    assert spool._file is not None
    spool._file.flush()
    os.ftruncate(spool._file.fileno(), 3)
    with pytest.raises(OSError, match="2 bytes early"):
        list(spool.sorted())
    spool.close()


def test_a_file_is_in_sparks_local_directory_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (str(tmp_path), str(tmp_path / "gone"), ""):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folder)
        with local_file("headgate-") as file:
            where = os.readlink(f"/proc/self/fd/{file.fileno()}")
        assert where.startswith(f"{tmp_path}/") == (folder == str(tmp_path))
