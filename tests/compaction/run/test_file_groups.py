"""A file group is sorted as a whole, wherever new extents and rows of small files lie."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.objects import ExtentBytes
from compaction.parquet.writer import FILE_BYTES_MAX, Syncs
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


sources = st.lists(st.integers(0, 3), min_size=1, max_size=8)
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
        result = write_file_group(
            place, syncs, topic, extents, joining, "run-1", 1, 0, 1, FILE_BYTES_MAX
        )
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
