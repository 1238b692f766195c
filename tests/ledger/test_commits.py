"""What one commit does: offsets, verdicts, repeats, refusals."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from ledger import commits, epochs, notes, reads, topics
from ledger.checks import invariants
from ledger.commits import EXTENTS_MAX
from ledger.errors import DraftInvalid
from ledger.ledger import Ledger
from ledger.types import (
    AnswerPart,
    Commit,
    Condition,
    ConditionPart,
    ExtentRun,
    PartitionHead,
    Topic,
    TopicConfig,
)
from tests.ledger.requests import Answer, Request, answers, draft_of, lease


def commit(ledger: Ledger, counter: int, requests: list[Request], now_ms: int = 10) -> Commit:
    return ledger.commit(draft_of(lease(counter), requests), now_ms, lambda _: None)


def replies(
    ledger: Ledger, counter: int, requests: list[Request], now_ms: int = 10
) -> list[Answer]:
    return answers(commit(ledger, counter, requests, now_ms), requests)


def test_offsets_start_at_one_and_go_on_densely_over_commits(ledger: Ledger, topic: Topic) -> None:
    first = commit(ledger, 1, [Request(topic.topic_id, ((0, 3), (1, 2)))])
    second = commit(ledger, 2, [Request(topic.topic_id, ((0, 4),))])
    assert first.runs == (
        ExtentRun(0, topic.topic_id, 0, 1, 3),
        ExtentRun(0, topic.topic_id, 1, 1, 2),
    )
    assert first.heads == (PartitionHead(topic.topic_id, 0, 3), PartitionHead(topic.topic_id, 1, 2))
    assert second.runs == (ExtentRun(0, topic.topic_id, 0, 4, 4),)
    assert (first.number, second.number) == (1, 2)


def test_runs_of_two_shards_in_one_extent_get_consecutive_offsets(
    ledger: Ledger, topic: Topic
) -> None:
    requests = [
        Request(topic.topic_id, ((0, 2),), shard=3),
        Request(topic.topic_id, ((0, 5),), shard=4),
    ]
    result = commit(ledger, 1, requests)
    assert result.runs == (
        ExtentRun(3, topic.topic_id, 0, 1, 2),
        ExtentRun(4, topic.topic_id, 0, 3, 5),
    )


def test_a_run_of_a_former_version_does_not_say_where_it_lies_in_the_ring() -> None:
    former = msgspec.msgpack.encode([3, 7, 0, 11, 2])
    assert msgspec.msgpack.decode(former, type=ExtentRun) == ExtentRun(3, 7, 0, 11, 2, 0, 0)


def test_a_lease_is_committed_once_and_its_repeat_is_the_first_result(
    ledger: Ledger, topic: Topic
) -> None:
    draft = draft_of(lease(1), [Request(topic.topic_id, key="k"), Request(topic.topic_id, key="k")])
    published: list[Commit] = []
    first = ledger.commit(draft, 10, published.append)
    again = ledger.commit(draft, 20, published.append)
    assert again == msgspec.structs.replace(first, repeated=True)
    assert published == [first, again]
    assert ledger.read(commits.latest_number) == 1
    assert ledger.read(reads.partition_states, topic.topic_id)[0].head_seq == 1


def test_a_repeat_after_a_restart_gives_the_same_result_below_the_new_floor(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path, nullcontext())
    _, epoch = ledger.write(epochs.begin_incarnation, 1)
    made, _ = ledger.write(topics.create, "a", TopicConfig(), 1)
    requests = [Request(made.topic_id, expected_seq=0), Request(made.topic_id, expected_seq=0)]
    draft = draft_of(lease(1, epoch), requests)
    first = ledger.commit(draft, 10, lambda _: None)
    ledger.close()
    again = Ledger(path, nullcontext())
    again.write(epochs.begin_incarnation, 20)
    assert again.read(epochs.floor) > epoch
    repeated = again.commit(draft, 30, lambda _: None)
    assert repeated == msgspec.structs.replace(first, repeated=True)
    assert again.read(commits.by_number, 1) == first
    assert again.read(commits.by_lease, draft.lease_id) == first
    again.close()


def test_a_new_lease_below_the_epoch_floor_is_refused_and_leaves_nothing(
    ledger: Ledger, topic: Topic
) -> None:
    ledger.write(epochs.advance)
    assert ledger.write(epochs.raise_floor, 2) == 2
    with pytest.raises(DraftInvalid, match="its epoch is below the epoch floor, 2"):
        commit(ledger, 1, [Request(topic.topic_id)])
    assert ledger.read(commits.latest_number) == 0
    assert ledger.read(commits.by_lease, lease(1)) is None


def test_of_racing_appends_with_the_same_expectation_exactly_one_is_stored_in_one_lease(
    ledger: Ledger, topic: Topic
) -> None:
    commit(ledger, 1, [Request(topic.topic_id, ((0, 4),))])
    racers = [Request(topic.topic_id, ((0, 2),), expected_seq=4, shard=shard) for shard in range(5)]
    found = replies(ledger, 2, racers)
    assert found[0] == Answer("stored", ((0, 5, 6),))
    assert found[1:] == [Answer("sequence_mismatch", (), 6)] * 4


def test_an_expectation_counts_the_live_records_before_it_in_its_lease_and_no_void_ones(
    ledger: Ledger, topic: Topic
) -> None:
    chain = [
        Request(topic.topic_id, ((0, 3),)),
        Request(topic.topic_id, ((0, 2),), expected_seq=7),
        Request(topic.topic_id, ((0, 2),), expected_seq=3),
        Request(topic.topic_id, ((0, 1),), expected_seq=5),
    ]
    assert replies(ledger, 1, chain) == [
        Answer("stored", ((0, 1, 3),)),
        Answer("sequence_mismatch", (), 3),
        Answer("stored", ((0, 4, 5),)),
        Answer("stored", ((0, 6, 6),)),
    ]
    (extent,) = ledger.read(reads.extents_from, topic.topic_id, 0, 1, 10)
    assert (extent.first_offset, extent.last_offset, extent.voids) == (1, 6, ((3, 2),))


def test_a_key_replays_the_first_answer_in_the_same_lease_and_in_a_later_one(
    ledger: Ledger, topic: Topic
) -> None:
    request = Request(topic.topic_id, ((0, 2), (1, 1)), key="once")
    filler = Request(topic.topic_id, ((0, 1),))
    assert replies(ledger, 1, [filler, request, request, filler]) == [
        Answer("stored", ((0, 1, 1),)),
        Answer("stored", ((0, 2, 3), (1, 1, 1))),
        Answer("deduped", ((0, 2, 3), (1, 1, 1)), 4),
        Answer("stored", ((0, 4, 4),)),
    ]
    later = commit(ledger, 2, [request])
    assert answers(later, [request]) == [Answer("deduped", ((0, 2, 3), (1, 1, 1)), 4)]
    assert later.verdicts[0].parts == (AnswerPart(0, 2, 3), AnswerPart(1, 1, 1))
    assert ledger.read(reads.partition_states, topic.topic_id)[0].head_seq == 4


def test_a_key_is_looked_at_before_the_expectation(ledger: Ledger, topic: Topic) -> None:
    request = Request(topic.topic_id, key="k", expected_seq=0)
    assert replies(ledger, 1, [request]) == [Answer("stored", ((0, 1, 1),))]
    assert replies(ledger, 2, [request]) == [Answer("deduped", ((0, 1, 1),), 1)]


def test_a_mismatch_leaves_its_key_free_for_another_try(ledger: Ledger, topic: Topic) -> None:
    wrong = Request(topic.topic_id, key="k", expected_seq=9)
    right = Request(topic.topic_id, key="k", expected_seq=0)
    assert replies(ledger, 1, [wrong, right]) == [
        Answer("sequence_mismatch", (), 0),
        Answer("stored", ((0, 1, 1),)),
    ]


def test_a_deleted_topic_s_extents_are_void_and_their_requests_told_so(
    ledger: Ledger, topic: Topic
) -> None:
    other = ledger.write(topics.create, "other", TopicConfig(), 1)[0]
    ledger.write(topics.delete, "orders", 5)
    requests = [
        Request(topic.topic_id, ((0, 2),)),
        Request(topic.topic_id, ((1, 2),), key="k"),
        Request(topic.topic_id, ((0, 1),), expected_seq=0),
        Request(other.topic_id, ((0, 3),)),
    ]
    result = commit(ledger, 1, requests)
    assert answers(result, requests) == [
        Answer("topic_deleted"),
        Answer("topic_deleted"),
        Answer("topic_deleted"),
        Answer("stored", ((0, 1, 3),)),
    ]
    assert result.heads == (PartitionHead(other.topic_id, 0, 3),)
    assert ledger.read(reads.extents_from, topic.topic_id, 0, 1, 10) == []


def test_a_re_created_topic_starts_at_one_with_another_id_and_without_old_keys(
    ledger: Ledger, topic: Topic
) -> None:
    commit(ledger, 1, [Request(topic.topic_id, ((0, 5),), key="k")])
    ledger.write(topics.delete, "orders", 5)
    again, created = ledger.write(topics.create, "orders", TopicConfig(partitions=2), 6)
    assert created
    assert again.topic_id > topic.topic_id
    found = replies(ledger, 2, [Request(again.topic_id, ((0, 2),), key="k")])
    assert found == [Answer("stored", ((0, 1, 2),))]


def test_an_extent_whose_records_are_all_void_never_reaches_a_reader(
    ledger: Ledger, topic: Topic
) -> None:
    result = commit(ledger, 1, [Request(topic.topic_id, ((0, 3),), expected_seq=8)])
    assert result.runs == (ExtentRun(0, topic.topic_id, 0, 1, 3),)
    assert result.heads == (PartitionHead(topic.topic_id, 0, 0),)
    assert ledger.read(reads.extents_from, topic.topic_id, 0, 0, 10) == []
    assert ledger.read(reads.objects)[0].records == 3
    after = commit(ledger, 2, [Request(topic.topic_id, ((0, 1),))])
    assert after.runs[0].first_offset == 1


def test_what_published_raises_comes_through_and_the_commit_stands(
    ledger: Ledger, topic: Topic
) -> None:
    def publish(_: Commit) -> None:
        raise OSError("the log is gone")

    with pytest.raises(OSError, match="the log is gone"):
        ledger.commit(draft_of(lease(1), [Request(topic.topic_id)]), 10, publish)
    assert ledger.read(commits.by_lease, lease(1)) is not None
    assert commit(ledger, 1, [Request(topic.topic_id)]).repeated


class Lock:
    """Counts how often it was taken."""

    held = False
    taken = 0

    def __enter__(self) -> None:
        assert not self.held
        self.held = True
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self.held = False


def test_published_is_called_under_the_lock_and_sees_the_commit(tmp_path: Path) -> None:
    lock = Lock()
    ledger = Ledger(tmp_path / "ledger.db", lock)
    made, _ = ledger.write(topics.create, "a", TopicConfig(), 1)
    seen: list[bool] = []

    def publish(result: Commit) -> None:
        seen.append(lock.held)
        assert ledger.read(commits.by_number, result.number) == result

    ledger.commit(draft_of(lease(1), [Request(made.topic_id)]), 10, publish)
    assert seen == [True]
    assert not lock.held
    ledger.close()


def test_writers_take_the_lock_once_each_and_readers_never(tmp_path: Path) -> None:
    lock = Lock()
    ledger = Ledger(tmp_path / "ledger.db", lock)
    assert lock.taken == 1
    ledger.write(epochs.begin_incarnation, 1)
    ledger.write(epochs.advance)
    ledger.write(epochs.raise_floor, 2)
    ledger.write(notes.put, "a", "b")
    ledger.write(topics.create, "a", TopicConfig(), 1)
    ledger.write(topics.alter, "a", TopicConfig(2))
    ledger.write(topics.delete, "a", 2)
    assert lock.taken == 8
    ledger.read(topics.page)
    ledger.read(reads.heads, [1])
    ledger.read(reads.extents_from, 1, 0, 1, 1)
    ledger.read(reads.offset_at_time, 1, 0, 1)
    ledger.read(commits.by_lease, lease(1))
    ledger.read(invariants.check)
    assert lock.taken == 8
    ledger.close()


def test_a_draft_that_contradicts_itself_is_refused_and_leaves_nothing(
    ledger: Ledger, topic: Topic
) -> None:
    good = draft_of(lease(1), [Request(topic.topic_id, ((0, 2), (1, 1)))])
    replace = msgspec.structs.replace
    extent = good.extents[0]

    def condition(*parts: ConditionPart, expected_seq: int | None = None) -> Condition:
        return Condition(0, 0, topic.topic_id, parts, "k", expected_seq)

    bad = {
        "comes after": replace(good, extents=good.extents[::-1]),
        "one per partition": replace(good, extents=(extent, extent)),
        "never was": replace(good, extents=(replace(extent, topic_id=99),)),
        "needs at least one": replace(good, extents=(replace(extent, record_count=0),)),
        "do not cover": replace(good, extents=(replace(extent, record_count=3),)),
        "0 extents": replace(good, extents=()),
        "not an extent": replace(good, conditions=(condition(ConditionPart(7, 0, 1)),)),
        "must come after": replace(
            good, conditions=(condition(ConditionPart(0, 1, 1), ConditionPart(0, 0, 1)),)
        ),
        "within the extent's": replace(good, conditions=(condition(ConditionPart(0, 0, 3)),)),
        "has 2 parts": replace(
            good,
            conditions=(condition(ConditionPart(0, 0, 1), ConditionPart(1, 0, 1), expected_seq=0),),
        ),
    }
    for message, draft in bad.items():
        with pytest.raises(DraftInvalid, match=message):
            ledger.commit(draft, 10, lambda _: None)
    assert ledger.read(commits.latest_number) == 0
    assert ledger.commit(good, 10, lambda _: None).number == 1


def test_a_commit_takes_as_many_extents_as_the_limit_says_and_refuses_more(
    ledger: Ledger,
) -> None:
    requests: list[Request] = []
    for name in ("a", "b", "c", "d", "e"):
        made, _ = ledger.write(topics.create, name, TopicConfig(partitions=1_000), 1)
        parts = tuple((partition, 2) for partition in range(1_000))
        requests.append(Request(made.topic_id, parts))
    full = draft_of(lease(1), requests)
    with pytest.raises(DraftInvalid, match=f"5000 extents; the limits are 1, {EXTENTS_MAX}"):
        ledger.commit(full, 10, lambda _: None)
    draft = msgspec.structs.replace(full, extents=full.extents[:EXTENTS_MAX])
    result = ledger.commit(draft, 10, lambda _: None)
    assert len(result.heads) == EXTENTS_MAX
    assert {head.head_seq for head in result.heads} == {2}
    assert ledger.read(commits.by_number, 1) == result
