"""Rows are read from Parquet as they were written, in order, and little more is read."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.inputs.objects import ExtentBytes
from compaction.inputs.place import Place
from compaction.parquet import reader, writer
from compaction.parquet.file_bytes import LakeFileDamaged, Window
from compaction.parquet.merge import EVER_MS, NeedFooter, NeedRows, RowRange, merged, records
from compaction.parquet.reader import BlockRows, ParquetFooter, open_rows, read_footer, read_rows
from compaction.parquet.row_builder import RowBuilder
from compaction.parquet.rows import COLUMNS, Rows
from compaction.parquet.writer import FileNames, Syncs, TopicWriter
from compaction.tables import schema
from compaction.tables.schema import typed_columns
from ledger.lake.types import FileRange, LakeRange, NewFile
from shards.frame import CODEC_RECORDS, encode_batch
from tests.long import examples
from uploader.l0.records import TIMESTAMP_MS_MAX, Record, encode
from uploader.stores.base import ObjectMissing, StoreError
from uploader.stores.verified import READS_MAX

ARRIVAL_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def extent(partition: int, first_offset: int, last_offset: int, data: bytes) -> ExtentBytes:
    return ExtentBytes(
        partition=partition, first_offset=first_offset, last_offset=last_offset, voids=(),
        data=data, key="l0/x",
    )  # fmt: skip


def write(
    place: Place, rows: Mapping[int, Sequence[tuple[int, Record]]], number: int = 1, **typed: Any
) -> list[NewFile]:
    """Files of one task with these rows, (offset, record) by partition. Offsets may have holes."""
    builder = RowBuilder(typed_columns(typed))
    for partition, some in sorted(rows.items()):
        for offset, record in some:
            data = encode_batch(1, ARRIVAL_MS, encode([record]), CODEC_RECORDS)
            builder.add(extent(partition, offset, offset, data))
    syncs = Syncs()
    writer = TopicWriter(
        place, FileNames(f"{place.lake}/t-1", 1, "run", number), syncs, typed_columns(typed)
    )
    writer.write(*builder.take())
    files = [each.file for each in writer.close()]
    syncs.wait()
    return files


def ranges_of(files: Iterable[NewFile], partition: int = 0) -> list[FileRange]:
    """As the ledger gives them."""
    found = [
        FileRange(number, file.path, file.size_bytes, one)
        for number, file in enumerate(files, 1)
        for one in file.ranges
        if one.partition == partition
    ]
    return sorted(found, key=lambda each: each.range.first_offset)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(f"file://{tmp_path}")


ALL_KINDS = [
    Record('{"a": 1}', ARRIVAL_MS, "k", "t", "n", '{"m": 1}'),
    Record('""', ARRIVAL_MS + 1, "", "", "", "{}"),
    Record("null", ARRIVAL_MS),
    Record(b"\x00\xff", 5, "ü€😀"),
    Record(b"", -1),
    Record('"ä"', TIMESTAMP_MS_MAX),
]


def test_records_come_back_exactly(place: Place) -> None:
    files = write(place, {0: list(enumerate(ALL_KINDS, 1))})
    assert len(files) == 4, "one for each day"
    found = list(records(place, ranges_of(files), 0, 1, 99))
    assert found == [(n, record.ts, record) for n, record in enumerate(ALL_KINDS, 1)]


def test_a_record_without_a_time_has_its_arrivals(place: Place) -> None:
    files = write(place, {0: [(1, Record("1"))]})
    assert list(records(place, ranges_of(files), 0, 1, 1)) == [
        (1, ARRIVAL_MS, Record("1", ARRIVAL_MS))
    ]


def test_columns_are_those_of_the_schema_in_its_order() -> None:
    assert tuple(column.name for column in schema.BASE) == COLUMNS


def test_a_partition_that_comes_in_several_parts_of_one_row_group_is_put_together(
    place: Place,
) -> None:
    """Batches that wait together make a row group that is not sorted by partition."""
    builder = RowBuilder()
    syncs = Syncs()
    writer = TopicWriter(place, FileNames(f"{place.lake}/t-1", 1, "run", 1), syncs)
    for first in (1, 4):
        for partition in (0, 1):
            data = encode_batch(3, ARRIVAL_MS, encode([Record("1")] * 3), CODEC_RECORDS)
            builder.add(extent(partition, first, first + 2, data))
        writer.write(*builder.take())
    (file,) = [each.file for each in writer.close()]
    for partition in (0, 1):
        found = records(place, ranges_of([file], partition), partition, 2, 5)
        assert [offset for offset, _, _ in found] == [2, 3, 4, 5]


class Reader:
    """Answers a merge, and remembers what it asked for."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.footers: list[str] = []
        self.groups: list[tuple[str, int]] = []

    def row_ranges(
        self, ranges: Sequence[FileRange], partition: int, offset: int, last: int,
        since_ms: int = EVER_MS, most: int = 1 << 30,
    ) -> list[RowRange]:  # fmt: skip
        merge = merged(ranges, partition, offset, last, since_ms)
        found: list[RowRange] = []
        reply: ParquetFooter | Rows | None = None
        while len(found) < most:
            try:
                need = merge.send(reply)
            except StopIteration:
                break
            reply = None
            if isinstance(need, NeedFooter):
                self.footers.append(need.path)
                reply = read_footer(self._place, need.path, need.size_bytes)
            elif isinstance(need, NeedRows):
                self.groups.append((need.footer.path, need.group.index))
                reply = read_rows(need.footer, need.group)
            else:
                found.append(need)
        return found


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_merge_gives_the_rows_in_order_and_asks_for_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    place = Place(f"file://{tmp_path_factory.mktemp('lake')}")
    taken: dict[int, list[tuple[int, Record]]] = {0: [], 1: []}
    offset = {0: 0, 1: 0}
    files: list[NewFile] = []
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(writer, "ROW_GROUP_ROWS", data.draw(st.integers(1, 6)))
        for number in range(data.draw(st.integers(1, 3))):
            run: dict[int, list[tuple[int, Record]]] = {}
            for _ in range(data.draw(st.integers(1, 25))):
                partition = rng.randrange(2)
                offset[partition] += rng.choice([1, 1, 1, 4])
                record = Record("1", ARRIVAL_MS + rng.randrange(3) * DAY_MS + rng.randrange(4))
                run.setdefault(partition, []).append((offset[partition], record))
                taken[partition].append((offset[partition], record))
            files += write(place, run, number + 1)
    low = data.draw(st.integers(0, 40))
    last = data.draw(st.integers(low, 60))
    since_ms = data.draw(
        st.sampled_from([EVER_MS, ARRIVAL_MS + 1, ARRIVAL_MS + DAY_MS, ARRIVAL_MS + 2 * DAY_MS + 3])
    )
    expected = [
        (at, record.ts, record)
        for at, record in taken[0]
        if low <= at <= last and (record.ts or 0) >= since_ms
    ]
    reader = Reader(place)
    row_ranges = reader.row_ranges(ranges_of(files), 0, low, last, since_ms)
    rows = [row for row_range in row_ranges for row in row_range.records()]
    assert [row for row in rows if row[1] >= since_ms] == expected
    assert all(low <= row[0] <= last for row in rows)
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    assert len(set(reader.footers)) == len(reader.footers)
    assert len(set(reader.groups)) == len(reader.groups)
    assert list(records(place, ranges_of(files), 0, low, last, since_ms)) == expected


def thousand(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[NewFile]:
    """1,000 records in order of time, 500 a file, 100 a row group."""
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 100)
    return [
        file
        for number in (0, 1)
        for file in write(
            place,
            {0: [(n, Record("1", ARRIVAL_MS + n))
                 for n in range(1 + 500 * number, 501 + 500 * number)]},
            number,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "since_ms", "first", "group"),
    [
        (1, EVER_MS, 1, (0, 0)),
        (100, EVER_MS, 100, (0, 0)),
        (101, EVER_MS, 101, (0, 1)),
        (500, EVER_MS, 500, (0, 4)),
        (777, EVER_MS, 777, (1, 2)),
        (1, ARRIVAL_MS + 250, 201, (0, 2)),
        (1, ARRIVAL_MS + 501, 501, (1, 0)),
        (950, ARRIVAL_MS + 250, 950, (1, 4)),
    ],
)
def test_one_row_group_is_read_for_the_first_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch, offset: int, since_ms: int, first: int,
    group: tuple[int, int],
) -> None:  # fmt: skip
    files = thousand(place, monkeypatch)
    reader = Reader(place)
    (row_range,) = reader.row_ranges(ranges_of(files), 0, offset, 1000, since_ms, most=1)
    assert row_range.first_offset == first
    assert reader.groups == [(files[group[0]].path, group[1])]
    assert reader.footers == [files[group[0]].path]


def test_a_row_group_is_not_read_before_earlier_rows_of_another_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 5)
    outer = [(n, Record("1")) for n in (*range(1, 6), *range(91, 96))]
    inner = [(n, Record("1")) for n in range(6, 91)]
    files = [*write(place, {0: outer}, 1), *write(place, {0: inner}, 2)]
    reader = Reader(place)
    reader.row_ranges(ranges_of(files), 0, 1, 99, most=2)
    assert reader.groups == [(files[0].path, 0), (files[1].path, 0)]


def in_blocks(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[Rows, BlockRows]:
    """A row group of 100 rows decoded whole, and to be decoded in blocks of about 7 rows."""
    rng = random.Random(7)
    rows: dict[int, list[tuple[int, Record]]] = {0: [], 1: []}
    for n in range(1, 51):
        for partition in (0, 1):
            kind = rng.choice(ALL_KINDS[:3]) if n % 20 < 10 else Record(rng.randbytes(40))
            record = Record(kind.data, ARRIVAL_MS, kind.key, kind.tag, kind.node, kind.meta)
            rows[partition].append((2 * n, record))
    (file,) = write(place, rows)
    footer = read_footer(place, file.path, file.size_bytes)
    (group,) = footer.groups
    monkeypatch.setattr(reader, "BLOCK_BYTES", group.decoded_bytes * 7 // 100)
    opened = open_rows(footer, group)
    assert opened.block_rows in (6, 7)
    return read_rows(footer, group), opened


def test_blocks_in_any_order_hold_what_the_whole_holds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, opened = in_blocks(place, monkeypatch)
    assert opened.row_ranges == whole.row_ranges == {0: [(0, 50)], 1: [(50, 100)]}
    expected = whole.records(0, 100)
    count = -(-100 // opened.block_rows)
    rng = random.Random(8)
    for _ in range(60):
        number = rng.randrange(count)
        block = opened.block(number)
        assert block.start == number * opened.block_rows
        assert block.stop == min(100, block.start + opened.block_rows)
        assert (
            opened.records_of(block, block.start, block.stop)
            == (expected[block.start : block.stop])
        )
    assert opened.records(0, 100) == expected
    assert opened.records(13, 61) == expected[13:61]


def test_columns_are_the_same_across_blocks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, opened = in_blocks(place, monkeypatch)
    for start, stop in ((0, 100), (3, 4), (5, 33), (90, 100)):
        for one, other in zip(whole.arrays(start, stop), opened.arrays(start, stop), strict=True):
            if other is None:
                assert one is None or one.null_count == len(one) or not any(one.to_pylist())
            else:
                assert one is not None and one.to_pylist() == other.to_pylist()


def test_a_reader_that_goes_along_decodes_each_block_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, opened = in_blocks(place, monkeypatch)
    begun = 0
    begin = opened._iterator

    def counted() -> Any:
        nonlocal begun
        begun += 1
        return begin()

    monkeypatch.setattr(opened, "_iterator", counted)
    for number in (0, 1, 2, 5, 6):
        opened.block(number)
    assert begun == 1, "forwards, also over some"
    opened.block(6)
    assert begun == 2, "again is backwards: what was decoded is not kept here"


def test_blocks_of_a_row_group_that_ends_early_are_damage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, opened = in_blocks(place, monkeypatch)
    begin = opened._iterator
    ways: list[Any] = [lambda: itertools.islice(begin(), 3)] * READS_MAX
    ways += [lambda: (batch.slice(0, 5) for batch in begin())] * READS_MAX
    monkeypatch.setattr(opened, "_iterator", lambda: ways.pop(0)() if ways else begin())
    opened.block(2)
    with pytest.raises(LakeFileDamaged, match="block 3 is incomplete"):
        opened.block(4)
    with pytest.raises(LakeFileDamaged, match="block 0 is incomplete"):
        opened.block(4)
    assert opened.block(4).start == 4 * opened.block_rows, "it begins anew after an error"


def test_only_the_base_columns_of_a_row_group_are_fetched(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    some = [(n, Record(f'{{"s": "{rng.randbytes(200).hex()}"}}')) for n in range(1, 100)]
    (file,) = write(place, {0: some}, s="string")
    footer = read_footer(place, file.path, file.size_bytes)
    (group,) = footer.groups
    assert group.length < 0.7 * file.size_bytes
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, length: int) -> bytes:
        fetched.append((start, length))
        return footer.fetch(start, length)

    rows = read_rows(msgspec.structs.replace(footer, fetch=fetch), group)
    assert fetched == [(group.first_byte, group.length)]
    assert len(rows.records(0, 99)) == 99
    assert rows.size_bytes < 3 * group.decoded_bytes


def test_a_footer_that_is_longer_than_the_first_guess_is_read_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file, *_) = thousand(place, monkeypatch)
    monkeypatch.setattr(reader, "TAIL_BYTES", 16)
    assert len(read_footer(place, file.path, file.size_bytes).groups) == 5


def test_a_few_records_make_no_more_python_objects_than_that(place: Place) -> None:
    files = write(place, {0: [(n, Record("1")) for n in range(1, 2000)]})
    (row_range,) = Reader(place).row_ranges(ranges_of(files), 0, 1, 1999)
    made: list[int] = []
    inner = row_range.rows.records

    class Counting:
        offsets = row_range.rows.offsets

        @staticmethod
        def records(start: int, stop: int) -> list[tuple[int, int, Record]]:
            made.append(stop - start)
            return inner(start, stop)

    counted = row_range._replace(rows=Counting)  # type: ignore[arg-type]  # what records() uses of it
    assert next(iter(counted.records()))[0] == 1
    assert made == [256]
    assert [row[0] for row in counted.records()] == list(range(1, 2000))


# Damage


def damaged(place: Place, change: Any) -> NewFile:
    """A file with one row group whose bytes were changed."""
    rng = random.Random(3)
    some = [(n, Record(f'"{rng.randbytes(60).hex()}"', ARRIVAL_MS)) for n in range(1, 50)]
    (file,) = write(place, {0: some})
    path = Path(place.path_of(file.path))
    path.write_bytes(change(path.read_bytes()))
    return file


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda b: b[:-1], "it has only"),
        (lambda b: b[:-4] + b"ABCD", "no Parquet footer"),
        (
            lambda b: b[:-8] + b"\xff\xff\xff\x7f" + b[-4:],
            "its footer should have 2147483655 bytes",
        ),
        (lambda b: b[:-600] + bytes(592) + b[-8:], "its footer cannot be read"),
        (lambda b: bytes(len(b) - 2000) + b[-2000:], "row group 0 cannot be decoded"),
    ],
)
def test_a_damaged_file_is_named_and_said_where(place: Place, change: Any, problem: str) -> None:
    file = damaged(place, change)
    with pytest.raises(LakeFileDamaged, match=problem) as caught:
        list(records(place, ranges_of([file]), 0, 1, 99))
    assert caught.value.path == file.path
    assert file.path in str(caught.value)


def test_a_byte_that_changed_is_noticed(place: Place) -> None:
    """By the pages' checksums, which the writer makes: what is stored plainly decodes anyhow."""

    def change(stored: bytes) -> bytes:
        footer = int.from_bytes(stored[-8:-4], "little")
        body = bytearray(stored)
        for position in range(len(stored) - footer - 8 - 40, len(stored) - footer - 8, 8):
            body[position] ^= 1
        return bytes(body)

    file = damaged(place, change)
    with pytest.raises(LakeFileDamaged, match="row group 0 cannot be decoded"):
        list(records(place, ranges_of([file]), 0, 1, 99))
    footer = read_footer(place, file.path, file.size_bytes)
    with pytest.raises(LakeFileDamaged, match="row group 0 cannot be decoded"):
        open_rows(footer, footer.groups[0]).block(0)


@pytest.mark.parametrize("spoiled", ["the footer", "the index", "a page"])
def test_what_one_connection_spoils_is_fetched_again_on_another(
    place: Place, spoiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [(n, Record(f'"{n:0100}"')) for n in range(1, 40)]
    (file,) = write(place, {0: wanted})
    path = Path(place.path_of(file.path))
    stored = path.read_bytes()
    footer = read_footer(place, file.path, file.size_bytes)
    (group,) = footer.groups
    chunk = footer.metadata.row_group(0).column(7)  # data
    ranges = {
        "the footer": (len(stored) - 200, len(stored) - 8),
        "the index": (group.first_byte + 20, group.first_byte + 60),
        "a page": (chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size),
    }
    bad = bytearray(stored)
    for position in range(*ranges[spoiled], 3):
        bad[position] ^= 1
    path.write_bytes(bad)
    reconnects: list[Place] = []

    def reconnect(self: Place) -> None:
        reconnects.append(self)
        path.write_bytes(stored)

    monkeypatch.setattr(Place, "reconnect", reconnect)
    footer = read_footer(place, file.path, file.size_bytes)
    block = open_rows(footer, footer.groups[0]).block(0)
    assert block.stop == 39 and reconnects == [place]
    path.write_bytes(bad)
    assert [r.data for _, _, r in records(place, ranges_of([file]), 0, 1, 99)] == [
        record.data for _, record in wanted
    ]
    assert reconnects == [place] * 2


@pytest.mark.slow
def test_every_byte_of_a_row_group_is_watched(place: Place) -> None:
    rng = random.Random(4)
    (file,) = write(place, {0: [(n, Record(f'"{rng.random()}"')) for n in range(1, 40)]})
    path = Path(place.path_of(file.path))
    stored = path.read_bytes()
    (group,) = read_footer(place, file.path, file.size_bytes).groups
    expected = list(records(place, ranges_of([file]), 0, 1, 99))
    for position in range(group.first_byte, group.first_byte + group.length):
        changed = bytearray(stored)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        try:
            assert list(records(place, ranges_of([file]), 0, 1, 99)) == expected
        except LakeFileDamaged:
            pass  # noticed; what is not noticed must be without effect


def test_a_missing_file_is_missing(place: Place) -> None:
    (file,) = write(place, {0: [(1, Record("1"))]})
    Path(place.path_of(file.path)).unlink()
    with pytest.raises(ObjectMissing, match=file.path):
        read_footer(place, file.path, file.size_bytes)


def test_what_the_store_refuses_is_no_damage_and_not_tried_again(place: Place) -> None:
    (file,) = write(place, {0: [(1, Record("1"))]})
    with pytest.raises(StoreError) as caught:
        read_footer(place, f"s3://b/{file.path}", 100)
    assert not caught.value.retryable
    path = Path(place.path_of(file.path))
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError) as caught:
        read_footer(place, file.path, 100)
    assert caught.value.retryable


def test_a_row_that_is_there_twice_is_damage(place: Place) -> None:
    one = write(place, {0: [(n, Record("1")) for n in (1, 2, 3)]}, 1)
    two = write(place, {0: [(n, Record("1")) for n in (3, 4)]}, 2)
    with pytest.raises(LakeFileDamaged, match="offset 3 of partition 0"):
        list(records(place, ranges_of([*one, *two]), 0, 1, 9))


def test_a_file_of_another_shape_is_damage(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"offset": [1], "partition": [0]}), path)
    size = path.stat().st_size
    with pytest.raises(LakeFileDamaged, match="timestamp"):
        read_footer(place, f"file://{path}", size)


def test_bytes_that_are_no_base64_are_damage(place: Place, tmp_path: Path) -> None:
    table = pa.table(
        {
            "partition": pa.array([0], pa.int32()), "offset": [1],
            "timestamp": pa.array([5000], schema.TIMESTAMP),
            **{name: pa.nulls(1, pa.string()) for name in ("key", "tag", "node", "meta")},
            "data": ["?"], "data_is_base64": [True],
        }
    )  # fmt: skip
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)
    size = path.stat().st_size
    one = FileRange(1, f"file://{path}", size, LakeRange(0, 1, 1, 1, 1, 5, 5))
    with pytest.raises(LakeFileDamaged, match="base64"):
        list(records(place, [one], 0, 1, 1))


def test_a_file_without_statistics_is_read_all_the_same(place: Place, tmp_path: Path) -> None:
    (file,) = write(place, {0: [(n, Record("1", ARRIVAL_MS)) for n in (1, 2, 3)]})
    table = pq.read_table(place.path_of(file.path))
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, write_statistics=False, row_group_size=1)
    (known,) = ranges_of([file])
    one = FileRange(1, f"file://{path}", path.stat().st_size, known.range)
    assert [row[0] for row in records(place, [one], 0, 2, 9)] == [2, 3]


def test_nothing_of_pyarrow_is_loaded_before_the_first_read() -> None:
    program = (
        "import sys, compaction.parquet.merge, delivery.reading.diff, delivery.reading.lake\n"
        "import daemon.process.shard\n"
        "print('pyarrow' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr


def test_a_daemon_gives_pyarrow_one_thread_of_each_kind() -> None:
    program = (
        "import pyarrow as pa; from compaction.parquet.file_bytes import keep_pyarrow_small\n"
        "keep_pyarrow_small(); print(pa.cpu_count(), pa.io_thread_count())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "1 1\n", found.stderr


def test_the_window_says_what_was_not_fetched() -> None:
    window = Window(b"abc", 10)
    window.seek(11)
    assert bytes(window.read(1)) == b"b"
    assert bytes(window.read()) == b"c"
    window.seek(9)
    with pytest.raises(OSError, match="byte 9 was not read"):
        window.read(1)
