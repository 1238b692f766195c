"""Reading the tail out of real rings: the right records, or the word that they are gone."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.reading import tail as tail_reader
from delivery.reading.followed import FollowedPartitions
from delivery.reading.tail import LARGE_RECORDS, PIECE_RECORDS, TailReader
from ledger.types import Commit
from shards import frame, ring
from shards import layout as at
from shards.frame import CODEC_KAFKA, CODEC_RECORDS
from shards.ring import RingFull
from tests.delivery.node import Node, node_in
from tests.long import examples
from uploader.l0.records import Record, encode


def read(
    node: Node, reader: TailReader, commits: list[Commit], offset: int = 1, partition: int = 0
) -> list[tuple[int, object]] | None:
    """(offset, data) of the partition's records from ``offset`` on; None when the ring moved on."""
    partitions = FollowedPartitions(lambda: commits)
    partitions.follow(node.key(partition))
    found: list[tuple[int, object]] = []
    for extent in partitions.tail(node.key(partition), offset):
        for batch in reader.batches(node.key(partition), extent, offset):
            if batch is None:
                return None
            first, _, records = batch
            found += [(first + n, record.data) for n, record in enumerate(records)]
    return found


def rec(*texts: str, codec: int = CODEC_RECORDS) -> list[Record]:
    if codec == CODEC_KAFKA:
        return [Record(text.encode(), 5) for text in texts]
    return [Record(text) for text in texts]


def as_texts(found: list[tuple[int, Any]] | None) -> list[tuple[int, str]] | None:
    """The same whether they came from Kafka or not."""
    return found and [(n, data if isinstance(data, str) else data.decode()) for n, data in found]


def test_records_come_in_the_order_of_their_offsets(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(1, {0: rec("1")})
        node.produce(0, {0: rec("2", "3"), 1: rec("0")})
        node.produce(1, {0: rec("4")})
        first = node.commit()  # shard 0's part before shard 1's, whatever came first
        node.produce(1, {0: rec("5"), 2: rec("0")})
        second = node.commit()
        assert first and second
        reader = TailReader(node.segment)
        expected = [(1, "2"), (2, "3"), (3, "1"), (4, "4"), (5, "5")]
        assert read(node, reader, [first, second]) == expected
        assert read(node, reader, [first, second], offset=5) == expected[4:]
        assert read(node, reader, [first, second], partition=1) == [(1, "0")]


def test_batches_before_the_offset_are_skipped(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        for text in ("1", "2", "3"):
            node.produce(0, {0: rec(text, text)})
        commit = node.commit()
        assert commit
        found = read(node, TailReader(node.segment), [commit], offset=4)
        assert found == [(3, "2"), (4, "2"), (5, "3"), (6, "3")], "from the batch that holds it"


def test_void_requests_are_skipped_and_take_no_offset(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(0, {0: rec("a"), 1: rec("x")}, idempotency_key="k")
        node.produce(0, {0: rec("void"), 1: rec("void", "void")}, idempotency_key="k")
        node.produce(0, {0: rec("b")})
        node.produce(1, {0: rec("void")}, expected_seq=7)
        node.produce(1, {0: rec("c")}, expected_seq=2)
        commit = node.commit()
        assert commit
        reader = TailReader(node.segment)
        assert read(node, reader, [commit]) == [(1, "a"), (2, "b"), (3, "c")]
        assert read(node, reader, [commit], partition=1) == [(1, "x")]


def test_every_field_and_the_arrival_time_are_read(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        records = [Record(b"\x00\xff", 5, "", "t", "n", '{"m": 1}'), Record("1.0e5")]
        node.produce(0, {0: records})
        commit = node.commit()
        assert commit
        partitions = FollowedPartitions(lambda: [commit])
        partitions.follow(node.key())
        (extent,) = partitions.tail(node.key(), 1)
        (batch,) = TailReader(node.segment).batches(node.key(), extent, 1)
        assert batch is not None
        assert batch[1] == 1_700_000_000_000
        assert batch[2] == records


def lap(node: Node) -> None:
    """Writes and commits until shard 0's ring has come round."""
    for _ in range(5):
        node.produce(0, {2: rec('"' + "x" * 1000 + '"')})
        node.commit()


def test_overwritten_batches_are_reported(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(0, {0: rec("old")})
        commit = node.commit()
        assert commit
        reader, late_reader = TailReader(node.segment), TailReader(node.segment)
        assert read(node, reader, [commit]) == [(1, "old")]
        lap(node)
        assert read(node, reader, [commit]) is None, "though its walk is known"
        assert read(node, late_reader, [commit]) is None, "and where it is not"


def test_a_batch_overwritten_during_the_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_reader, "COPIED_TOGETHER", 1)
    with node_in(tmp_path) as node:
        for text in ("1", "2"):
            node.produce(0, {0: rec(text)})
        commit = node.commit()
        assert commit
        partitions = FollowedPartitions(lambda: [commit])
        partitions.follow(node.key())
        (extent,) = partitions.tail(node.key(), 1)
        batches = TailReader(node.segment).batches(node.key(), extent, 1)
        first = next(batches)
        assert first is not None and first[2] == rec("1")
        lap(node)
        assert list(batches) == [None]


def test_a_lap_of_one_ring_leaves_other_shards_batches(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(1, {0: rec("kept")})
        commit = node.commit()
        assert commit
        lap(node)
        assert read(node, TailReader(node.segment), [commit]) == [(1, "kept")]


def walking(commit: Commit) -> Commit:
    """A commit whose runs do not name their place in the ring, as an older one."""
    runs = tuple(msgspec.structs.replace(run, ring_first=0, ring_span=0) for run in commit.runs)
    return msgspec.structs.replace(commit, runs=runs)


def refuse_walks(reader: TailReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("all requests of a commit are passed over")

    for each in reader._readers:
        monkeypatch.setattr(each, "requests", refused)


def test_a_reader_of_one_partition_passes_over_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_in(tmp_path) as node:
        node.produce(0, {0: rec("1"), 1: rec("x")}, idempotency_key="k")
        node.produce(0, {1: rec("y")})
        node.produce(0, {0: rec("void")}, idempotency_key="k")
        node.produce(0, {1: rec("z"), 0: rec("2", "3")})
        node.produce(1, {0: rec("4")})
        commit = node.commit()
        assert commit
        reader = TailReader(node.segment)
        refuse_walks(reader, monkeypatch)
        assert read(node, reader, [commit]) == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
        assert read(node, reader, [commit], partition=1) == [(1, "x"), (2, "y"), (3, "z")]
        with pytest.raises(AssertionError, match="passed over"):
            read(node, reader, [walking(commit)])


def test_the_payload_of_a_batch_is_handed_on_as_it_is(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(0, {0: rec("1")})
        node.produce(0, {0: rec("2", "3")})
        commit = node.commit()
        assert commit
        partitions = FollowedPartitions(lambda: [commit])
        partitions.follow(node.key())
        (extent,) = partitions.tail(node.key(), 1)
        reader = TailReader(node.segment)
        ((offset, head, payload),) = reader.raw_batches(node.key(), extent, 2)  # type: ignore[misc]
        assert (offset, head.record_count, head.codec) == (2, 2, 1)
        assert payload == encode(rec("2", "3"))


def test_a_request_that_became_void_before_its_pull_is_not_read(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(0, {0: rec("1")})
        node.withdraw(0, lambda: node.produce(0, {0: rec("never"), 1: rec("never")}))
        node.produce(0, {0: rec("2")})
        commit = node.commit()
        assert commit
        assert read(node, TailReader(node.segment), [commit]) == [(1, "1"), (2, "2")]


CODECS = st.sampled_from([CODEC_RECORDS, CODEC_KAFKA])
histories = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["produce", "produce", "produce", "withdraw"]),
            st.integers(0, 1),
            st.dictionaries(st.integers(0, 2), st.integers(1, 3), min_size=1),
            st.sampled_from([None, None, "a", "b"]),
            CODECS,
        ),
        st.tuples(st.just("restart"), st.integers(0, 1), *[st.none()] * 3),
        st.tuples(st.just("commit"), st.sampled_from([(), (0,), (1,)]), *[st.none()] * 3),
    ),
    max_size=40,
)


@settings(max_examples=examples(60))
@given(history=histories, forgetful=st.booleans())
def test_a_chain_gives_what_a_walk_gives(
    history: list[tuple[str, Any, Any, Any, Any]], *, forgetful: bool
) -> None:
    """Rings that wrap, pads, void requests of both kinds, restarts and requests of several
    partitions."""
    number = 0
    kept = ring.CHAINED_MAX
    ring.CHAINED_MAX = 2 if forgetful else kept
    try:
        with tempfile.TemporaryDirectory() as directory, node_in(Path(directory)) as node:
            chains, walks = TailReader(node.segment), TailReader(node.segment)
            for step, where, counts, key, codec in history:
                if step == "restart":
                    node.restart(where)
                    continue
                if step == "commit":
                    commit = node.commit(*where)
                    if commit is None:
                        continue
                    for partition in range(3):
                        found = read(node, chains, [commit], partition=partition)
                        assert found == read(node, walks, [walking(commit)], partition=partition)
                        stored = node.records[node.key(partition)]
                        assert found is not None
                        first = len(stored) - len(found) + 1
                        assert found == [
                            (offset, record.data)
                            for offset, (_, record) in enumerate(stored[first - 1 :], first)
                        ]
                    continue
                parts = {}
                for partition, count in counts.items():
                    parts[partition] = rec(
                        *(f"{number + n:060}" for n in range(count)), codec=codec
                    )
                    number += count
                produce = partial(node.produce, where, parts, idempotency_key=key, codec=codec)
                with suppress(RingFull):
                    if step == "withdraw":
                        node.withdraw(where, produce)
                    else:
                        produce()
    finally:
        ring.CHAINED_MAX = kept


def test_what_was_found_once_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_reader, "LONG_CHAIN", 2)
    with node_in(tmp_path) as node:
        for text in ("1", "2"):
            node.produce(0, {0: rec(text)})
        commit = node.commit()
        assert commit
        for told in (commit, walking(commit)):
            reader = TailReader(node.segment)
            read(node, reader, [told])
            kept = bytes(node.segment.ring(0)[: frame.HEADER_BYTES + frame.PART_BYTES])
            node.segment.ring(0)[: len(kept)] = bytes(len(kept))
            assert read(node, reader, [told]) == [(1, "1"), (2, "2")]
            node.segment.ring(0)[: len(kept)] = kept


def test_the_number_of_kept_places_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_reader, "LONG_CHAIN", 2)
    monkeypatch.setattr(tail_reader, "LINKS_MAX", 7)
    with node_in(tmp_path, ring_bytes=1 << 16) as node:
        commits = []
        for number in range(5):
            node.produce(0, {0: rec(str(2 * number))})
            node.produce(0, {0: rec(str(2 * number + 1))})
            commit = node.commit()
            assert commit
            commits.append(commit)
        reader = TailReader(node.segment)
        for told in (commits, [walking(commit) for commit in commits]):
            for _ in range(2):
                assert read(node, reader, told) == [(n + 1, str(n)) for n in range(10)]
        assert (len(reader._chains), reader._chains.size) == (3, 6)
        assert (len(reader._walks), reader._walks.size) == (3, 6)


@pytest.mark.parametrize("codec", [CODEC_RECORDS, CODEC_KAFKA])
@pytest.mark.parametrize("text", ["", "x" * 999])
def test_a_large_batch_comes_in_pieces_from_the_one_with_the_offset_on(
    text: str, codec: int, tmp_path: Path
) -> None:
    count = 3 * LARGE_RECORDS + 1
    with node_in(tmp_path, shards=1, ring_bytes=16 << 20) as node:
        node.produce(0, {0: rec("first")})
        large = rec(*(f"{n}{text}" for n in range(count)), codec=codec)
        node.produce(0, {0: large}, codec=codec)
        node.produce(0, {0: rec("last")})
        commit = node.commit()
        assert commit
        reader = TailReader(node.segment)
        expected = [
            (1, "first"), *((n + 2, f"{n}{text}") for n in range(count)), (count + 2, "last")
        ]  # fmt: skip
        for offset in (1, 2, 513, 514, 700, count, count + 1, count + 2):
            found = as_texts(read(node, reader, [commit], offset))
            assert found is not None and expected[-len(found) :] == found
            assert found[0][0] <= offset < found[0][0] + PIECE_RECORDS
        assert len(reader._pieces) == 1
        node.segment.words[node.segment.layout.shard(0) + at.S_RESERVED] += 32 << 20
        assert read(node, reader, [commit]) is None
        # As whoever has found the pieces before.
        assert read(node, reader, [commit], count) is None


@pytest.mark.parametrize("codec", [CODEC_RECORDS, CODEC_KAFKA])
def test_a_large_batch_with_damage_is_no_record(codec: int, tmp_path: Path) -> None:
    with node_in(tmp_path, shards=1, ring_bytes=1 << 20) as node:
        large = rec(*map(str, range(2 * LARGE_RECORDS)), codec=codec)
        node.produce(0, {0: large}, codec=codec)
        commit = node.commit()
        assert commit
        data = node.segment.ring(0)
        place = bytes(data).index(b"2000")
        data[place] += 1
        with pytest.raises(frame.FrameError):
            read(node, TailReader(node.segment), [commit])


def test_pieces_of_a_large_batch_have_records_and_end_where_the_ring_has_gone_on(
    tmp_path: Path,
) -> None:
    with node_in(tmp_path, shards=1, ring_bytes=1 << 20) as node:
        node.produce(0, {0: rec(*map(str, range(4 * PIECE_RECORDS)))})
        commit = node.commit()
        assert commit
        partitions = FollowedPartitions(lambda: [commit])
        partitions.follow(node.key())
        (extent,) = partitions.tail(node.key(), 1)
        reader = TailReader(node.segment)
        found = [
            batch and batch[1].record_count for batch in reader.raw_batches(node.key(), extent, 1)
        ]
        assert found == [PIECE_RECORDS] * 4
        batches = reader.raw_batches(node.key(), extent, 1)
        assert next(batches) is not None
        node.segment.words[node.segment.layout.shard(0) + at.S_RESERVED] += 1 << 20
        assert [*batches] == [None]
