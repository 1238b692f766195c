"""Reading the tail out of real rings: the right records, or the word that they are gone."""

from __future__ import annotations

from pathlib import Path

from delivery import tail_reader
from delivery.followed import FollowedPartitions
from delivery.tail_reader import TailReader
from ledger.types import Commit
from shards import frame
from tests.delivery.node import Node, node_in
from uploader.l0.records import Record


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


def rec(*texts: str) -> list[Record]:
    return [Record(text) for text in texts]


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


def test_a_batch_overwritten_during_the_read_is_reported(tmp_path: Path) -> None:
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


def test_a_kept_walk_reads_no_frame_again(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        node.produce(0, {0: rec("1")})
        commit = node.commit()
        assert commit
        reader = TailReader(node.segment)
        read(node, reader, [commit])
        node.segment.ring(0)[: frame.HEADER_BYTES] = bytes(frame.HEADER_BYTES)
        assert read(node, reader, [commit]) == [(1, "1")]


def test_the_number_of_kept_walks_is_bounded(tmp_path: Path) -> None:
    with node_in(tmp_path, ring_bytes=1 << 16) as node:
        commits = []
        for number in range(tail_reader.WALKS_MAX + 5):
            node.produce(0, {0: rec(str(number))})
            commit = node.commit()
            assert commit
            commits.append(commit)
        reader = TailReader(node.segment)
        for _ in range(2):
            found = read(node, reader, commits)
            assert found == [(n + 1, str(n)) for n in range(len(commits))]
            assert len(reader._walks) == tail_reader.WALKS_MAX
