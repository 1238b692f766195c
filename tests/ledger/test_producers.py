"""Idempotent producers: which of their batches are stored, and what the ledger keeps of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import dedupe, topics
from ledger.checks import invariants
from ledger.commits import PRUNE_EVERY_COMMITS
from ledger.decide import (
    RECENT_MAX,
    PartitionNow,
    ProducerKey,
    ProducerNow,
    StoredBatch,
    decide,
)
from ledger.dedupe import PRODUCER_KEPT_MS
from ledger.errors import DraftInvalid
from ledger.ledger import Ledger
from ledger.types import SEQUENCE_MAX, ProducerBatch, TopicConfig
from tests.ledger.requests import Answer, Request, answers, draft_of, lease
from tests.long import examples

WRAP = SEQUENCE_MAX + 1


def batch(first: int, count: int = 1, epoch: int = 0, producer_id: int = 7) -> ProducerBatch:
    return ProducerBatch(producer_id, epoch, first, (first + count - 1) % WRAP)


def stored(state: ProducerNow | None, *batches: ProducerBatch) -> ProducerNow:
    for index, each in enumerate(batches, 1):
        state = (state or ProducerNow(each.epoch, ())).and_then(each, index)
    assert state is not None
    return state


# The decision


@pytest.mark.parametrize(
    ("then", "judged"),
    [
        (batch(3, 2), None),
        (batch(0, 3), StoredBatch(0, 2, 1)),
        (batch(0, 2), "out_of_order"),
        (batch(1, 2), "out_of_order"),
        (batch(2, 3), "out_of_order"),
        (batch(4), "out_of_order"),
        (batch(0, epoch=1), None),
        (batch(3, epoch=1), "out_of_order"),
        (batch(0, 3, epoch=1), None),
    ],
)
def test_the_next_batch_is_taken_and_what_is_known_has_its_offset(
    then: ProducerBatch, judged: object
) -> None:
    assert stored(None, batch(0, 3)).judge(then, accepts_gaps=False) == judged


def test_an_older_epoch_is_fenced_whatever_it_sends() -> None:
    known = stored(None, batch(0, 3), batch(0, epoch=2))
    for then in (batch(0, 3), batch(3), batch(0, epoch=1)):
        assert known.judge(then, accepts_gaps=False) == "producer_fenced"


def test_sequence_numbers_begin_again_after_the_last() -> None:
    known = stored(None, batch(SEQUENCE_MAX - 1, 4))
    assert known.recent[-1].last == 1
    assert known.judge(batch(2), accepts_gaps=False) is None
    assert known.judge(batch(SEQUENCE_MAX - 1, 4), accepts_gaps=False) == known.recent[-1]
    assert stored(None, batch(SEQUENCE_MAX)).judge(batch(0), accepts_gaps=False) is None


def test_only_the_last_batches_are_known() -> None:
    known = stored(None, *(batch(each) for each in range(RECENT_MAX + 1)))
    assert known.judge(batch(1), accepts_gaps=False) == StoredBatch(1, 1, 2)
    assert known.judge(batch(0), accepts_gaps=False) == "out_of_order"


def test_where_batches_may_be_lost_a_gap_is_accepted_and_a_repeat_is_none() -> None:
    known = stored(None, batch(0, 3))
    assert known.judge(batch(9), accepts_gaps=True) is None
    assert known.judge(batch(9, epoch=1), accepts_gaps=True) is None
    assert known.judge(batch(0, 3), accepts_gaps=True) == StoredBatch(0, 2, 1)


class Sent(NamedTuple):
    """A batch of a client that may send it again, skip one, or begin another epoch."""

    producer_id: int
    back: int  # before the next one
    size: int
    raises_epoch: bool


SENT = st.builds(
    Sent,
    st.integers(1, 2),
    st.sampled_from([0, 0, 0, 1, 1, 2, 6, -1]),
    st.integers(1, 3),
    st.sampled_from([False] * 9 + [True]),
)


@settings(max_examples=examples(500))
@given(st.lists(st.lists(SENT, max_size=8), max_size=6), st.integers(WRAP - 4, WRAP))
def test_each_batch_is_stored_once_and_in_order_whatever_is_sent(
    leases: list[list[Sent]], begin: int
) -> None:
    """The model keeps all that was stored, and looks it up."""
    state: dict[ProducerKey, ProducerNow] = {}
    next_seq = 1
    sent: dict[int, list[ProducerBatch]] = {}  # distinct batches by producer, of its epoch
    log: dict[int, list[tuple[ProducerBatch, int]]] = {}  # those stored, with offsets
    for number, some in enumerate(leases):
        requests: list[Request] = []
        expected: list[Answer] = []
        seq = next_seq
        for producer_id, back, size, raises_epoch in some:
            mine = sent.setdefault(producer_id, [])
            done = log.setdefault(producer_id, [])
            epoch = mine[-1].epoch if mine else 0
            if raises_epoch and mine:
                epoch += 1
                mine.clear()
            if 1 <= back <= len(mine):
                each = mine[-back]
            else:
                first = (mine[-1].last + 1) % WRAP if mine else 0 if epoch else begin % WRAP
                each = batch((first + (back < 0)) % WRAP, size, epoch, producer_id)
                if back >= 0:
                    mine.append(each)
            records = (each.last - each.first) % WRAP + 1
            requests.append(Request(5, ((0, records),), producer=each))
            if done and done[-1][0].epoch > each.epoch:
                expected.append(Answer("producer_fenced"))
                continue
            known = [(one, at) for one, at in done if one.epoch == each.epoch]
            recent = [(one, at) for one, at in known[-RECENT_MAX:] if one == each]
            if recent:
                at = recent[0][1]
                expected.append(Answer("deduped", ((0, at, at + records - 1),), at + records - 1))
                continue
            newest = done[-1][0] if done else None
            if newest is not None and newest.epoch < each.epoch and each.first != 0:
                expected.append(Answer("out_of_order"))
                continue
            following = None if newest is None else (newest.last + 1) % WRAP
            if newest is not None and newest.epoch == each.epoch and each.first != following:
                expected.append(Answer("out_of_order"))
                continue
            expected.append(Answer("stored", ((0, seq, seq + records - 1),)))
            done.append((each, seq))
            seq += records
        if not requests:
            continue
        draft = draft_of(lease(number), requests)
        partitions = {(5, 0): PartitionNow(next_seq, 0, 0, 0, 0)}
        decision = decide(draft, partitions, {}, producers=state)
        state.update(decision.producers)
        verdicts = {each.position: each for each in decision.verdicts}
        for condition, answer in zip(draft.conditions, expected, strict=True):
            verdict = verdicts.get(condition.position)
            kind = "stored" if verdict is None else verdict.kind
            assert kind == answer.kind
            if verdict is not None and verdict.parts:
                parts = tuple((p.partition, p.first_seq, p.last_seq) for p in verdict.parts)
                assert (parts, verdict.head_seq) == (answer.parts, answer.head_seq)
        next_seq = seq
        for (_, _, producer_id), now in state.items():
            kept = [(s.first, s.last, s.first_seq) for s in now.recent]
            mine_stored = [
                (one.first, one.last, at) for one, at in log[producer_id] if one.epoch == now.epoch
            ]
            assert kept == mine_stored[-RECENT_MAX:]


# The table


class Producers:
    """Commits batches to partition 0 of one topic, a lease each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(path, nullcontext())
        config = TopicConfig(partitions=2)
        self.topic_id = self.ledger.write(topics.create, "a", config, 1)[0].topic_id
        self.counter = 0

    def send(
        self, *batches: ProducerBatch, now_ms: int = 5_000, partition: int = 0
    ) -> list[Answer]:
        return self.commit(
            [
                Request(self.topic_id, ((partition, each.last - each.first + 1),), producer=each)
                for each in batches
            ],
            now_ms,
        )

    def commit(self, requests: Sequence[Request], now_ms: int = 5_000) -> list[Answer]:
        self.counter += 1
        draft = draft_of(lease(self.counter), requests)
        return answers(self.ledger.commit(draft, now_ms, lambda _: None), requests)

    def rows(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            count: int = connection.execute("SELECT count(*) FROM producers").fetchone()[0]
            return count


@pytest.fixture
def producers(tmp_path: Path) -> Iterator[Producers]:
    made = Producers(tmp_path / "ledger.db")
    yield made
    made.ledger.read(invariants.check)
    made.ledger.close()


def kinds(found: list[Answer]) -> list[str]:
    return [each.kind for each in found]


def test_a_batch_counts_in_later_commits_and_in_its_own(producers: Producers) -> None:
    assert producers.send(batch(0, 3), batch(3, 2)) == [
        Answer("stored", ((0, 1, 3),)),
        Answer("stored", ((0, 4, 5),)),
    ]
    repeat = Answer("deduped", ((0, 4, 5),), 5)
    assert producers.send(batch(3, 2), batch(5), batch(5), batch(7)) == [
        repeat,
        Answer("stored", ((0, 6, 6),)),
        Answer("deduped", ((0, 6, 6),), 6),
        Answer("out_of_order"),
    ]
    assert kinds(producers.send(batch(0, epoch=1), batch(6))) == ["stored", "producer_fenced"]


def test_partitions_and_producers_have_numbers_of_their_own(producers: Producers) -> None:
    producers.send(batch(0, 3))
    assert kinds(producers.send(batch(9), partition=1)) == ["stored"]
    assert kinds(producers.send(batch(9, producer_id=8), batch(3))) == ["stored", "stored"]
    assert producers.rows() == 3


def test_what_is_not_stored_is_not_known(producers: Producers) -> None:
    producers.send(batch(0))
    request = Request(producers.topic_id, expected_seq=9, producer=batch(1))
    assert kinds(producers.commit([request])) == ["sequence_mismatch"]
    assert kinds(producers.send(batch(1))) == ["stored"]
    producers.ledger.write(topics.delete, "a", 9)
    assert kinds(producers.send(batch(2))) == ["topic_deleted"]


def test_a_batch_has_one_partition(producers: Producers) -> None:
    with pytest.raises(DraftInvalid, match="has 2 parts"):
        producers.commit([Request(producers.topic_id, ((0, 1), (1, 1)), producer=batch(0))])


def test_a_producer_is_forgotten_a_day_after_its_last_batch(producers: Producers) -> None:
    producers.send(batch(0), now_ms=5_000)
    producers.send(batch(1), now_ms=6_000)
    end_ms = 6_000 + PRODUCER_KEPT_MS
    assert kinds(producers.send(batch(5), now_ms=end_ms)) == ["out_of_order"]
    for _ in range(PRUNE_EVERY_COMMITS):
        producers.commit([Request(producers.topic_id)], end_ms)
    assert producers.rows() == 1
    assert kinds(producers.send(batch(5), now_ms=end_ms + 1)) == ["stored"]


def test_unused_producers_are_removed(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in range(6):
        producers.send(batch(0, producer_id=each), now_ms=5_000 + each)
    for _ in range(PRUNE_EVERY_COMMITS):
        producers.commit([Request(producers.topic_id)], 5_002 + PRODUCER_KEPT_MS)
    assert producers.rows() == 4
    monkeypatch.setattr(dedupe, "PRODUCERS_MAX", 3)
    for _ in range(PRUNE_EVERY_COMMITS):
        producers.commit([Request(producers.topic_id)], 6_000)
    assert producers.rows() == 3
    assert kinds(producers.send(batch(9, producer_id=2), batch(9, producer_id=3))) == [
        "stored",
        "out_of_order",
    ]
