"""Files of one day each, sorted and described as they are, however many days there are."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.inputs.place import Place
from compaction.parquet import spill
from compaction.parquet import writer as writer_module
from compaction.parquet.writer import (
    SYNCED_LATE_BYTES_MAX,
    FileNames,
    PartitionSizes,
    Syncs,
    TopicWriter,
    WrittenFile,
)
from compaction.tables.schema import TIMESTAMP, Column, arrow_schema, field_ids_of, typed_columns
from ledger.lake.types import LakeRange
from tests.compaction.objects import DAY_MS, NOON_MS, check_file, rows_in, table_of


def batch_of(
    rows: list[tuple[int, int, int]], columns: tuple[Column, ...] = (), data: str = "{}"
) -> tuple[pa.Table, PartitionSizes]:
    """Rows (partition, offset, milliseconds); a row is 10 bytes of L0."""
    schema = arrow_schema(columns)
    count = len(rows)
    arrays = [
        pa.array([row[0] for row in rows], pa.int32()),
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array([row[2] * 1000 for row in rows], pa.int64()).cast(TIMESTAMP),
        *(pa.nulls(count, pa.string()) for _ in range(4)),
        pa.array([data] * count, pa.string()),
        pa.repeat(False, count),
        *(pa.nulls(count, schema.field(column.name).type) for column in columns),
    ]
    sizes: PartitionSizes = {}
    for partition, _, _ in rows:
        size = sizes.setdefault(partition, [0, 0])
        size[0] += 1
        size[1] += 10
    return pa.Table.from_arrays(arrays, schema=schema), sizes


def writer_in(
    folder: Path, syncs: Syncs, file_bytes_max: int = 1 << 30
) -> tuple[Place, TopicWriter]:
    """A writer for topic 7 in run r1."""
    place = Place((folder / "store").as_uri())
    names = FileNames(f"{place.lake}/orders-7", 7, "r1", 12)
    return place, TopicWriter(place, names, syncs, file_bytes_max=file_bytes_max)


def written_of(
    folder: Path, *batches: list[tuple[int, int, int]], file_bytes_max: int = 1 << 30
) -> list[WrittenFile]:
    """The files of these batches, each checked."""
    syncs = Syncs()
    place, writer = writer_in(folder, syncs, file_bytes_max)
    for rows in batches:
        writer.write(*batch_of(rows))
    files = writer.close()
    syncs.wait()
    for written in files:
        check_file(place, written)
    every = [row for rows in batches for row in rows]
    assert [row[:3] for row in rows_in(place, files)] == [
        (partition, offset, ms * 1000) for partition, offset, ms in sorted(every)
    ]
    assert sum(part.bytes for each in files for part in each.file.ranges) == 10 * len(every)
    return files


def test_a_file_says_of_itself_what_it_holds(tmp_path: Path) -> None:
    (written,) = written_of(tmp_path, [(0, 1, NOON_MS), (0, 2, NOON_MS + 1), (3, 9, NOON_MS - 5)])
    assert written.topic_id == 7 and written.day == NOON_MS // DAY_MS
    assert written.file.ranges == (
        LakeRange(0, 1, 2, 2, 20, NOON_MS, NOON_MS + 1),
        LakeRange(3, 9, 9, 1, 10, NOON_MS - 5, NOON_MS - 5),
    )
    day = datetime.fromtimestamp(NOON_MS / 1000, UTC).date().isoformat()
    assert written.file.path.endswith(f"/orders-7/data/timestamp_day={day}/r1-12-0.parquet")
    metadata = pq.read_metadata(io.BytesIO(written.footer))
    assert metadata.num_rows == 3
    told = metadata.metadata
    assert told[b"headgate.topic_id"] == b"7" and told[b"headgate.run"] == b"r1"
    ranges = [LakeRange(*each) for each in json.loads(told[b"headgate.ranges"])]
    assert tuple(ranges) == written.file.ranges


def test_columns_have_field_ids_zstd_and_statistics_where_they_help(tmp_path: Path) -> None:
    syncs = Syncs()
    place = Place(tmp_path.as_uri())
    columns = typed_columns({"price": "double"})
    names = FileNames(f"{place.lake}/t-1", 1, "r", 1)
    writer = TopicWriter(place, names, syncs, columns)
    writer.write(*batch_of([(0, 1, NOON_MS)], columns))
    (written,) = writer.close()
    syncs.wait()
    schema = table_of(place, written).schema
    assert list(field_ids_of(schema)) == [*range(1, 10), 1000]
    assert schema.field("timestamp").type == TIMESTAMP
    group = pq.read_metadata(io.BytesIO(written.footer)).row_group(0)
    found = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert {column.compression for column in found.values()} == {"ZSTD"}
    assert {name for name, column in found.items() if not column.is_stats_set} == {"data", "meta"}
    assert "RLE_DICTIONARY" not in found["data"].encodings
    assert "RLE_DICTIONARY" in found["key"].encodings


def test_rows_of_several_days_go_to_a_file_each(tmp_path: Path) -> None:
    rows = [(at % 2, at, NOON_MS + (at * 7 % 3) * DAY_MS) for at in range(1, 40)]
    files = written_of(tmp_path, sorted(rows)[:20], sorted(rows)[20:])
    assert len(files) == 3 and len({each.day for each in files}) == 3


def test_times_before_1970_have_their_own_days(tmp_path: Path) -> None:
    files = written_of(tmp_path, [(0, 1, -1), (0, 2, 0), (0, 3, -DAY_MS), (0, 4, -DAY_MS - 1)])
    assert sorted(each.day for each in files) == [-2, -1, 0]


@given(
    st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=30), min_size=1, max_size=6).map(
        lambda batches: [
            [
                (0, 1 + sum(map(len, batches[:index])) + at, NOON_MS + day * DAY_MS)
                for at, day in enumerate(days)
            ]
            for index, days in enumerate(batches)
        ]
    )
)
def test_days_beyond_the_open_ones_are_spilled_and_written_all_the_same(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int, int]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "OPEN_DAYS_MAX", 3)
        patch.setattr(spill, "SPILL_BYTES", 1000)
        files = written_of(tmp_path_factory.mktemp("days"), *batches)
    assert len(files) == len({row[2] for rows in batches for row in rows})


@pytest.mark.slow
def test_a_thousand_days_open_no_thousand_files_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    at_once = 0
    usual_init, usual_finish = writer_module._File.__init__, writer_module._File.finish

    def counted_init(self: writer_module._File, *arguments: object) -> None:
        nonlocal at_once
        usual_init(self, *arguments)  # type: ignore[arg-type]  # passed on as they came
        at_once += 1
        opened.append(at_once)

    def counted_finish(self: writer_module._File, topic_id: int, run: str) -> object:
        nonlocal at_once
        at_once -= 1
        return usual_finish(self, topic_id, run)

    monkeypatch.setattr(writer_module._File, "__init__", counted_init)
    monkeypatch.setattr(writer_module._File, "finish", counted_finish)
    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 2)  # a file is opened for its second row
    rows = [(0, at, NOON_MS + (at * 271 % 1000) * DAY_MS) for at in range(1, 3001)]
    files = written_of(tmp_path, rows[:1500], rows[1500:])
    assert len(files) == 1000 == len(opened)
    assert max(opened) <= writer_module.OPEN_DAYS_MAX


def test_a_file_that_is_large_enough_is_rolled(tmp_path: Path) -> None:
    batches = [[(0, 100 * at + i, NOON_MS) for i in range(100)] for at in range(6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROW_GROUP_ROWS", 100)
        files = written_of(tmp_path, *batches, file_bytes_max=1500)
    assert 1 < len(files) < 6
    assert [each.file.path.rpartition("-")[2] for each in files] == [
        f"{at}.parquet" for at in range(len(files))
    ]


def test_row_groups_keep_their_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 100)
    (written,) = written_of(tmp_path, [(0, at, NOON_MS) for at in range(250)], [(0, 250, NOON_MS)])
    metadata = pq.read_metadata(io.BytesIO(written.footer))
    sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
    assert sizes == [100, 100, 50, 1]


def test_small_batches_wait_for_a_row_group(tmp_path: Path) -> None:
    (written,) = written_of(tmp_path, *[[(0, at, NOON_MS)] for at in range(20)])
    assert pq.read_metadata(io.BytesIO(written.footer)).num_row_groups == 1


def test_a_writer_that_gives_up_leaves_nothing(tmp_path: Path) -> None:
    syncs = Syncs()
    place, writer = writer_in(tmp_path, syncs, file_bytes_max=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROW_GROUP_ROWS", 1)
        writer.write(*batch_of([(0, 1, NOON_MS)]))
        patch.setattr(writer, "_file_bytes_max", 1 << 30)
        writer.write(*batch_of([(0, 2, NOON_MS)]))
    found = list(Path(place.path_of(place.lake)).rglob("*.parquet"))
    assert len(found) == 2, "one is closed, one is open"
    writer.abort()
    syncs.wait()
    assert not list(Path(place.path_of(place.lake)).rglob("*.parquet"))


@pytest.mark.parametrize("size_bytes", [SYNCED_LATE_BYTES_MAX - 1, SYNCED_LATE_BYTES_MAX])
def test_what_cannot_be_made_durable_is_no_success(tmp_path: Path, size_bytes: int) -> None:
    syncs = Syncs()
    syncs.folder(tmp_path / "a" / "b")
    syncs.file(tmp_path / "a" / "b" / "gone.parquet", size_bytes)
    with pytest.raises(FileNotFoundError):
        syncs.wait()
