"""A cursor goes with one topic: a new one of the same name, or an end that is nearer, is said."""

from __future__ import annotations

import pytest

from delivery.reading.diff import OffsetPastEnd
from delivery.schemas import DiffAnswer, Tombstone
from ledger import topics
from ledger.types import TopicConfig
from tests.delivery.node import ARRIVAL_MS, Node
from tests.delivery.reading.test_diff import data_of, rec, told_reader
from tests.ledger.upkeep import evict_all


def commit(node: Node, *texts: str) -> None:
    node.produce(0, {0: rec(*texts)})
    assert node.commit(0) is not None


def recreate(node: Node, *texts: str) -> int:
    """Deletes the topic and makes it anew with these records; the id that it had."""
    former = node.topic.topic_id
    node.ledger.write(topics.delete, "t", ARRIVAL_MS)
    node.topic = node.ledger.write(topics.create, "t", TopicConfig(partitions=3), 1)[0]
    if texts:
        commit(node, *texts)
    return former


def seqs(answer: DiffAnswer) -> list[int]:
    return [record.seq for record in answer.records]


async def test_a_cursor_of_a_deleted_topic_gets_a_tombstone_and_the_start_of_the_new_one(
    node: Node,
) -> None:
    commit(node, '"a"', '"b"', '"c"')
    former = recreate(node, '"A"', '"B"', '"C"', '"D"')

    with told_reader(node) as told:
        answer = await told.diff(from_seq=2, topic_id=former)
        assert answer.topic_id == node.topic.topic_id != former
        assert answer.tombstone == Tombstone(3, 3, "recreated")
        assert data_of(answer) == ['"A"', '"B"', '"C"', '"D"']
        again = await told.diff(from_seq=answer.next_from_seq, topic_id=answer.topic_id)
        assert (seqs(again), again.tombstone, again.caught_up) == ([], None, True)


async def test_a_cursor_at_the_end_of_the_deleted_topic_learns_that_it_missed_nothing(
    node: Node,
) -> None:
    commit(node, '"a"', '"b"')
    former = recreate(node)

    with told_reader(node) as told:
        answer = await told.diff(from_seq=2, topic_id=former, wait_ms=30_000)
        assert answer.tombstone == Tombstone(3, 2, "recreated")
        assert (answer.next_from_seq, answer.head_seq, answer.caught_up) == (0, 0, True)


async def test_the_next_answer_names_what_is_gone_from_the_start_of_the_new_topic(
    node: Node,
) -> None:
    commit(node, '"a"')
    former = recreate(node, '"A"', '"B"')
    node.ledger.write(topics.alter, "t", TopicConfig(partitions=3, cap_records=1))
    assert evict_all(node.ledger, ARRIVAL_MS)

    with told_reader(node) as told:
        answer = await told.diff(from_seq=1, topic_id=former)
        assert (seqs(answer), answer.next_from_seq) == ([], 0)
        assert (answer.lag, answer.caught_up) == (2, False)
        assert answer.tombstone == Tombstone(2, 1, "recreated")
        answer = await told.diff(from_seq=0, topic_id=answer.topic_id)
        assert (seqs(answer), answer.tombstone) == ([2], Tombstone(1, 1, "cap"))


async def test_an_offset_past_the_end_is_refused_with_the_last_one(node: Node) -> None:
    commit(node, '"a"', '"b"')

    with told_reader(node) as told:
        for wait_ms in (0, 30_000):
            with pytest.raises(OffsetPastEnd) as caught:
                await told.diff(from_seq=3, wait_ms=wait_ms)
            assert (caught.value.from_seq, caught.value.head_seq) == (3, 2)
        assert (await told.diff(from_seq=2)).caught_up
        with pytest.raises(OffsetPastEnd):
            await told.diff(from_seq=1, partition=1)
        assert (await told.diff(from_seq=0, partition=1)).caught_up


async def test_an_offset_that_is_new_to_the_shard_is_not_past_the_end(node: Node) -> None:
    """A reader continues at another shard, which follows the commits a moment later."""
    commit(node, '"a"')

    with told_reader(node) as told:
        told.tell()
        assert (await told.diff(from_seq=1)).head_seq == 1
        commit(node, '"b"', '"c"')
        answer = await told.diff(from_seq=3)
        assert (answer.head_seq, answer.next_from_seq, answer.caught_up) == (3, 3, True)
        told.tell()
        assert seqs(await told.diff(from_seq=1)) == [2, 3]
