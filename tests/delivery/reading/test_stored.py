"""No reader can tell whether what it reads is compacted, or was, or its objects are gone."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.parquet import reader, writer
from compaction.parquet.file_bytes import LakeFileDamaged
from delivery.reading import stored as stored_reader
from delivery.reading.diff import OffsetPastEnd
from delivery.schemas import Tombstone
from ledger.lake import lake_files
from tests.delivery.lakes import collect, compact, local, rewrite
from tests.delivery.node import ARRIVAL_MS, Node, node_in
from tests.delivery.reading.test_diff import Told, data_of, told_reader
from tests.long import examples
from uploader.l0.records import Record
from uploader.stores.base import ObjectMissing
from uploader.stores.retry import Budget

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def several_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows fill several row groups of several blocks."""
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 200)


texts = st.sampled_from([None, "", "a", "bb", "ü€😀"])
records = st.builds(
    Record,
    data=st.one_of(st.binary(max_size=6), st.sampled_from(["null", '"ä😀"', '{"a": [1]}', "1.50"])),
    ts=st.one_of(st.none(), st.integers(-3, 3).map(lambda day: ARRIVAL_MS + day * DAY_MS // 2)),
    key=texts,
    tag=texts,
    node=texts,
    meta=st.sampled_from([None, "{}", '{"m": "ü"}']),
)
works = st.lists(
    st.one_of(
        st.tuples(
            st.just("produce"),
            st.dictionaries(st.integers(0, 1), st.lists(records, min_size=1, max_size=6),
                            min_size=1),
            st.sampled_from([None, None, None, "k"]),
        ),
        st.just(("commit",)),
        st.tuples(st.just("compact"), st.integers(1, 9)),
        st.just(("rewrite",)),
        st.just(("collect",)),
    ),
    min_size=4, max_size=24,
)  # fmt: skip
QUESTIONS: list[dict[str, Any]] = [
    *({"from_seq": seq, "limit": limit} for seq in (0, 1, 5, 9, 30) for limit in (1, 3, 1000)),
    *({"from_seq": 0, "max_bytes": most} for most in (1, 10, 40)),
    *({"from_seq": 2, "tag": tag} for tag in ("", "a", "none has it")),
    {"from_seq": 0, "tag": "a", "node": "bb", "limit": 2},
    *(
        {"from_ts": ARRIVAL_MS + delta, "limit": limit}
        for delta in (-9 * DAY_MS, -DAY_MS, 0, 1, DAY_MS, 9 * DAY_MS)
        for limit in (2, 1000)
    ),
    {"tail": True},
]


async def answers(told: Told, questions: list[dict[str, Any]]) -> list[bytes]:
    """The documents of the questions about two partitions, or why there is none."""
    found = []
    for partition in range(2):
        for asked in questions:
            try:
                answer = await told.diff(partition=partition, **asked)
                found.append(msgspec.json.encode(answer))
            except OffsetPastEnd as error:
                found.append(str(error).encode())
    return found


@settings(max_examples=examples(60), deadline=None)
@given(works, st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=8))
@pytest.mark.slow
def test_compacting_rewriting_and_collecting_change_no_answer(
    work: list[tuple[Any, ...]], questions: list[dict[str, Any]]
) -> None:
    async def go(node: Node) -> None:
        for action, *operands in work:
            if action == "produce":
                node.produce(0, operands[0], idempotency_key=operands[1])
                node.commit()
            elif node.commits:
                with told_reader(node) as told:
                    before = await answers(told, questions)
                    if action == "compact":
                        compact(node, operands[0])
                    elif action == "rewrite":
                        rewrite(node)
                    elif action == "collect":
                        collect(node)
                    else:
                        continue
                    assert await answers(told, questions) == before, "the same reader"
                with told_reader(node) as told:
                    assert await answers(told, questions) == before, "a new reader"

    with (
        tempfile.TemporaryDirectory() as directory,
        node_in(Path(directory), ring_bytes=1 << 16) as node,
    ):
        asyncio.run(go(node))


# Overtaken while reading


def fill(node: Node, objects: int) -> None:
    """Objects of two records each in partition 0, of two days in turn."""
    for number in range(objects):
        node.produce(0, {0: [Record(str(2 * number)),
                             Record(str(2 * number + 1), ARRIVAL_MS + DAY_MS)]})  # fmt: skip
        node.commit()


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.parametrize("when", ["before", "between"])
def test_an_object_deleted_during_a_read_is_read_from_the_lake(tmp_path: Path, when: str) -> None:
    """The reader knows the extents; before it fetches one, all is compacted and collected."""

    def overtake() -> None:
        if len(node.store.gets) == (1 if when == "before" else 4):
            node.store.before = lambda: None
            compact(node)
            collect(node)

    with node_in(tmp_path) as node, told_reader(node) as told:
        fill(node, 6)
        node.store.before = overtake
        answer = asyncio.run(told.diff())
        assert data_of(answer) == numbers(12)
        assert answer.caught_up and answer.tombstone is None


async def test_a_file_deleted_during_a_read_is_read_where_its_rows_are_now(tmp_path: Path) -> None:
    with node_in(tmp_path) as node, told_reader(node) as told:
        fill(node, 6)
        compact(node)
        found = [await told.diff(limit=3)]
        rewrite(node)  # what was looked up is gone; footers and row groups are kept
        told.partitions._stored._lake._rows.kept.clear()
        told.partitions._stored._lake._blocks.kept.clear()
        for _ in range(3):
            found.append(await told.diff(from_seq=found[-1].next_from_seq, limit=3))
        assert [text for answer in found for text in data_of(answer)] == numbers(12)


async def test_files_that_are_replaced_repeatedly_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fetch of a row group finds the files rewritten under it, a few times in a row."""
    left = iter([1, 1, 1])
    with node_in(tmp_path) as node, told_reader(node) as told:
        fill(node, 6)
        compact(node)
        lake = told.partitions._stored._lake
        chunks = lake.chunks

        async def chunks_after_rewriting(*asked: Any) -> Any:
            if next(left, 0):
                rewrite(node)
            async for chunk in chunks(*asked):
                yield chunk

        monkeypatch.setattr(lake, "chunks", chunks_after_rewriting)
        assert data_of(await told.diff()) == numbers(12)


def test_a_file_that_stays_missing_is_named_after_a_few_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_reader, "OVERTAKEN", Budget("overtaken", 6, 0.001, 0.001))
    with node_in(tmp_path) as node:
        fill(node, 3)
        compact(node)
        (gone, *_) = node.ledger.read(lake_files.ranges_from, *node.key(), 1, 9)
        local(gone.path).unlink()
        with told_reader(node) as told, pytest.raises(ObjectMissing, match=gone.path):
            asyncio.run(told.diff())


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        fill(node, 3)
        compact(node)
        (torn, *_) = node.ledger.read(lake_files.ranges_from, *node.key(), 1, 9)
        stored = local(torn.path).read_bytes()
        local(torn.path).write_bytes(stored[:-4] + b"torn")
        with told_reader(node) as told, pytest.raises(LakeFileDamaged, match=torn.path):
            asyncio.run(told.diff())


# Extents that are still in the cache


async def test_cached_extents_are_used_after_a_compaction(tmp_path: Path) -> None:
    with node_in(tmp_path) as node, told_reader(node) as told:
        fill(node, 6)
        before = await told.diff()
        compact(node)
        assert await told.diff() == before
        assert told.partitions._stored._lake._footers.kept.size == 0
        collect(node)
        assert await told.diff() == before, "all but the last extent's row is gone"


# Quarantine


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_hole_is_named_once_and_all_records_around_it_are_read(
    tmp_path: Path, limit: int
) -> None:
    async def go() -> None:
        found: list[int] = []
        holes: list[Tombstone] = []
        from_seq = 0
        while True:
            answer = await told.diff(from_seq=from_seq, limit=limit)
            found += [record.seq for record in answer.records]
            if answer.tombstone:
                holes.append(answer.tombstone)
            if answer.caught_up:
                break
            assert answer.next_from_seq > from_seq
            from_seq = answer.next_from_seq
        assert found == [1, 2, 5, 6, 7, 8, 11, 12]
        assert holes == [Tombstone(3, 4, "quarantined"), Tombstone(9, 10, "quarantined")]

    with node_in(tmp_path) as node:
        fill(node, 6)
        with told_reader(node) as told:
            asyncio.run(told.diff(from_seq=11))  # knows the partition from before
            told.partitions._stored._l0._cache.kept.clear()
            compact(node, damaged={2, 5})
            asyncio.run(go())


async def test_a_time_is_searched_for_across_holes(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        fill(node, 3)
        compact(node, damaged={1})
        with told_reader(node) as told:
            answer = await told.diff(from_ts=ARRIVAL_MS + 1, limit=1)
            assert [record.seq for record in answer.records] == [4]
            assert answer.tombstone is None
