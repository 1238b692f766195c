"""A file group is sorted as a whole, wherever new extents and rows of small files lie."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.inputs.objects import ExtentBytes
from compaction.parquet import writer
from compaction.parquet.writer import Syncs
from compaction.run.file_groups import TopicWork, write_file_group
from shards.frame import CODEC_RECORDS, encode_batch
from tests.compaction.objects import NOON_MS, check_file, rows_in
from tests.compaction.run.test_executor import place_in, written
from tests.long import examples
from uploader.l0.records import Record, encode


def extent(partition: int, offset: int) -> ExtentBytes:
    """One record, whose data is its place."""
    payload = encode([Record(f"{partition}:{offset}")])
    data = encode_batch(1, NOON_MS, payload, CODEC_RECORDS)
    return ExtentBytes(partition, offset, offset, (), data, "l0/key")


sources = st.lists(st.integers(0, 3), min_size=1, max_size=16)
"""Where each offset of a partition is from, from 1 on: 0 and 1 new, 2 and 3 a small file."""


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(sources, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_new_rows_and_rows_of_small_files_are_one_sorted_file(
    partitions: list[list[int]], random: object
) -> None:
    rows = [
        (partition, offset, source)
        for partition, some in enumerate(partitions)
        for offset, source in enumerate(some, 1)
    ]
    new = [(partition, offset) for partition, offset, source in rows if source < 2]
    extents = [extent(*place) for place in new]
    random.shuffle(extents)  # type: ignore[attr-defined]  # hypothesis gives a Random
    with tempfile.TemporaryDirectory() as folder:
        place = place_in(folder)
        joining = [
            written(
                place, [(p, o, NOON_MS) for p, o, source in rows if source == file], number=file
            )
            for file in (2, 3)
            if any(source == file for *_, source in rows)
        ]
        topic = TopicWork(1, f"{place.lake}/t-1", (), tuple(joining))
        syncs = Syncs()
        result = write_file_group(place, syncs, topic, extents, joining, "run-1", 1, 0)
        syncs.wait()
        (file,) = result.files
        check_file(place, file)
        found = [(row[0], row[1], row[7]) for row in rows_in(place, [file])]
        assert found == [
            (partition, offset, '"old"' if source > 1 else f"{partition}:{offset}")
            for partition, offset, source in rows
        ]
        assert sorted(result.joined) == sorted(each.path for each in joining)
        place.store().close()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(sources, min_size=1, max_size=3), st.integers(1, 4))
def test_merged_files_are_one_sorted_file_whatever_their_row_groups(
    partitions: list[list[int]], group_rows: int
) -> None:
    rows = [
        (partition, offset, source)
        for partition, some in enumerate(partitions)
        for offset, source in enumerate(some, 1)
    ]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", group_rows)
        place = place_in(folder)
        joining = [
            written(
                place, [(p, o, NOON_MS) for p, o, source in rows if source == file], number=file
            )
            for file in range(4)
            if any(source == file for *_, source in rows)
        ]
        topic = TopicWork(1, f"{place.lake}/t-1", (), (), (tuple(joining),))
        syncs = Syncs()
        result = write_file_group(place, syncs, topic, [], joining, "run-1", 1, 0)
        syncs.wait()
        for file in result.files:
            check_file(place, file)
        assert len(result.files) == bool(rows)
        assert [row[:2] for row in rows_in(place, result.files)] == [row[:2] for row in rows]
        assert sorted(result.joined) == sorted(each.path for each in joining)
        bytes_before = sum(part.bytes for each in joining for part in each.ranges)
        assert bytes_before == sum(p.bytes for each in result.files for p in each.file.ranges)


def test_files_stay_when_one_of_a_merge_breaks_off(tmp_path: Path) -> None:
    place = place_in(str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP_ROWS", 100)
        joining = [
            written(place, [(n, o, NOON_MS) for o in range(1, 2_000)], number=n) for n in (0, 1)
        ]
    torn = Path(place.path_of(joining[1].path))
    content = bytearray(torn.read_bytes())
    page = pq.read_metadata(torn).row_group(9).column(1)
    content[page.data_page_offset + page.total_compressed_size - 1] ^= 1
    torn.write_bytes(content)
    topic = TopicWork(1, f"{place.lake}/t-1", (), (), (tuple(joining),))
    syncs = Syncs()
    result = write_file_group(place, syncs, topic, [], joining, "run-1", 1, 0)
    syncs.wait()
    assert (result.files, result.joined) == ([], [])
    assert [path for path, _ in result.kept] == [each.path for each in joining]
    assert all(torn.name in why for _, why in result.kept)
    assert sorted(p.name for p in tmp_path.rglob("run-1*.parquet")) == []
    place.store().close()
