"""From a lease to its commit: order, lost answers, foreign objects, adoption."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger import commits, reads
from ledger.errors import LedgerBusy, LedgerFault, LedgerMemory
from ledger.types import Commit, CommitDraft
from shards import layout as at
from shards.alarms import AlarmKind
from shards.latency import UPLOADER_STAGES, Stage
from shards.leases import LIVE, Lease
from shards.ring import RingReader
from tests.uploader.upload_world import Pipeline, held_until, key_of, pipeline
from uploader import l0
from uploader.groups.adopt import adopt_orphans
from uploader.groups.puller import Pulled
from uploader.pipeline.assemble import assemble, requests_of
from uploader.stores.base import ForeignObject, StoreBusy, StoreError


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as opened:
        yield opened


def test_a_lease_becomes_an_object_a_commit_a_log_entry_and_moved_words(line: Pipeline) -> None:
    pulled = line.lease_of(0, "a", "b")
    line.start(0, pulled)
    line.turn_until_done(pulled)
    assert line.committed() == ["a", "b"]
    assert line.crew.word(0, at.S_COMMITTED) == line.crew.word(0, at.S_HEAD)
    commit = line.in_log(1)
    assert commit is not None
    assert commit == line.ledger.read(commits.by_number, 1)
    assert (commit.lease_id, commit.ranges) == (pulled.lease.lease_id, pulled.lease.ranges)
    (row,) = line.ledger.read(reads.objects)
    assert row.key == key_of(pulled)
    assert l0.verify(line.store.get(row.locator)) == []
    counters = [line.counter(0, word) for word in (at.S_PUTS, at.S_PUT_FAILURES)]
    assert counters == [1, 0]
    assert line.counter(0, at.S_PUT_BYTES) == row.size_bytes
    assert line.counter(0, at.S_OBJECTS_COMMITTED) == 1


def test_a_lease_is_counted_at_each_stage_and_every_sixteenth_of_its_requests(
    line: Pipeline,
) -> None:
    pulled = line.lease_of(1, *"abcdefghijklmnopqrst")
    answers = iter([False, False, True])

    def fails_twice(real: Callable[[], str]) -> str:
        if next(answers):
            return real()
        raise StoreError("busy", retryable=True, outcome_unknown=False)

    line.store.around[key_of(pulled)] = fails_twice
    line.start(1, pulled)
    line.turn_until_done(pulled)
    found = {stage: line.counted(stage) for stage in (Stage.PULLED, *UPLOADER_STAGES)}
    assert {stage: each.total for stage, each in found.items()} == {
        Stage.PULLED: 2, Stage.PUT: 1, Stage.COMMITTED: 1,
    }  # fmt: skip
    assert found[Stage.PUT].sum_ns > 0 and found[Stage.COMMITTED].sum_ns > 0


def test_commits_of_a_source_happen_in_pull_order_even_if_a_later_put_finishes_first(
    line: Pipeline,
) -> None:
    first, second, third = (line.lease_of(0, text) for text in ("first", "second", "third"))
    let_go = threading.Event()
    failures = iter([True, True, False])

    def fails_twice(real: Callable[[], str]) -> str:
        assert let_go.wait(60)
        if next(failures):
            raise StoreBusy("503 SlowDown")
        return real()

    line.store.around[key_of(first)] = fails_twice
    for each in (first, second, third):
        line.start(0, each)
    line.turn_until(lambda: len(line.store.kept) == 2)
    assert {key_of(second), key_of(third)} == set(line.store.kept)
    line.uploads[0].committed_moved()
    assert line.ledger.read(commits.latest_number) == 0
    assert line.crew.word(0, at.S_COMMITTED) == 0
    let_go.set()
    line.turn_until_done(first, second, third)
    assert line.committed() == ["first", "second", "third"]
    ids = [line.ledger.read(commits.by_number, number).lease_id for number in (1, 2, 3)]
    assert ids == [each.lease.lease_id for each in (first, second, third)]
    assert line.store.calls.count(key_of(first)) == 3
    assert line.counter(0, at.S_PUT_FAILURES) == 2


def test_an_upload_that_begins_to_wait_rings_its_own_bell_to_be_looked_at_again(
    line: Pipeline,
) -> None:
    # A predecessor may commit between the look at its words and the wait, and ring before it.
    line.lease_of(0, "first")
    second = line.lease_of(0, "second")
    line.crew.rung()
    line.start(0, second)
    own_bell = line.crew.bells.fds[0]
    assert select.select([own_bell], [], [], 30)[0] == [own_bell]
    assert line.store.kept == [key_of(second)]
    assert line.ledger.read(commits.latest_number) == 0


def test_a_failing_put_of_one_source_does_not_hold_up_others(line: Pipeline) -> None:
    stuck, free = line.lease_of(0, "stuck"), line.lease_of(1, "free")
    let_go = threading.Event()
    line.store.around[key_of(stuck)] = held_until(let_go)
    line.start(0, stuck)
    line.start(1, free)
    line.turn_until_done(free)
    assert line.committed() == ["free"]
    assert not line.is_done(stuck.lease)
    let_go.set()
    line.turn_until_done(stuck)
    assert line.committed() == ["free", "stuck"]


def test_a_lease_of_two_sources_waits_for_the_predecessors_in_both(line: Pipeline) -> None:
    zero, one = line.lease_of(0, "zero"), line.lease_of(1, "one")
    line.together()
    line.publish(0, "both 0")
    line.publish(1, "both 1")
    both = line.pull(0)
    assert [leased.shard for leased in both.lease.ranges] == [0, 1]
    let_go = {shard: threading.Event() for shard in (0, 1)}
    line.store.around[key_of(zero)] = held_until(let_go[0])
    line.store.around[key_of(one)] = held_until(let_go[1])
    line.start(0, zero)
    line.start(1, one)
    line.start(0, both)
    line.turn_until(lambda: len(line.store.kept) == 1)
    let_go[0].set()
    line.turn_until_done(zero)
    line.uploads[0].committed_moved()
    assert line.committed() == ["zero"]
    let_go[1].set()
    line.turn_until_done(one, both)
    assert line.committed() == ["zero", "one", "both 0", "both 1"]


def test_a_put_whose_answer_was_lost_is_made_again_and_committed_once(line: Pipeline) -> None:
    pulled = line.lease_of(0, "a")
    answers = iter([False, True])

    def lost(real: Callable[[], str]) -> str:
        locator = real()
        if not next(answers):
            raise StoreError("reset", retryable=True, outcome_unknown=True)
        return locator

    line.store.around[key_of(pulled)] = lost
    line.start(0, pulled)
    line.turn_until_done(pulled)
    assert line.store.kept == [key_of(pulled)] * 2
    assert line.ledger.read(commits.latest_number) == 1
    assert line.committed() == ["a"]
    bodies = {line.store.get(head.locator) for head in line.store.list("l0/")}
    assert len(bodies) == 1


def test_a_foreign_object_holds_up_its_lease_and_all_after_it_until_it_is_gone(
    line: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    taken, behind, other = (
        line.lease_of(0, "taken"),
        line.lease_of(0, "behind"),
        line.lease_of(1, "other"),
    )
    is_foreign = threading.Event()
    is_foreign.set()

    def foreign(real: Callable[[], str]) -> str:
        if is_foreign.is_set():
            raise ForeignObject("l0/1 is taken by other bytes")
        return real()

    line.store.around[key_of(taken)] = foreign
    line.start(0, taken)
    line.start(0, behind)
    line.start(1, other)
    line.turn_until_done(other)
    calls = line.store.calls
    line.turn_until(lambda: key_of(behind) in line.store.kept and calls.count(key_of(taken)) > 2)
    line.uploads[0].committed_moved()
    # The PUT of the next lease was a success, but does not end the alarm.
    assert line.alarms() == [(AlarmKind.FOREIGN_OBJECT, 0)]
    assert line.committed() == ["other"]
    assert len(set(calls)) == 3  # and no other key was chosen
    assert line.crew.word(0, at.S_COMMITTED) == 0
    assert line.ended == []  # another process would find the same
    is_foreign.clear()
    line.turn_until_done(taken, behind)
    assert line.alarms() == []
    assert line.committed() == ["other", "taken", "behind"]


@pytest.mark.parametrize("step", ["names", "commit", "tell"])
def test_a_ledger_error_that_may_pass_is_waited_out_at_every_step_of_a_lease(
    line: Pipeline, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    killed, pulled = line.lease_of(1, "killed"), line.lease_of(0, "a")
    if step == "tell":  # what a killed process did not tell the log is read from the ledger
        line.ledger.commit(draft_of(line, killed), 10, lambda _: None)
    let_go = threading.Event()
    failures = 0

    def refuse(*_: object) -> None:
        nonlocal failures
        if not let_go.is_set() or failures < 3:
            failures += 1
            raise LedgerBusy(line.ledger.path, 5_000)

    def name(_: int) -> str:
        refuse()
        return "t"

    if step == "names":
        line.topic_name = name
    elif step == "commit":
        line.ledger.before_commit = refuse
    else:
        line.ledger.before_look = refuse
    line.start(0, pulled)
    line.turn_until(lambda: failures > 0 and bool(line.alarms()))
    assert line.alarms() == [(AlarmKind.LEDGER_FAILING, 0)]
    let_go.set()
    line.turn_until_done(pulled)
    assert line.committed()[-1] == "a"
    assert len(line.store.calls) == 1
    assert (line.alarms(), line.ended) == ([], [])
    assert line.counter(0, at.S_OBJECTS_COMMITTED) == 1


def test_an_adopter_waits_out_a_ledger_error_when_it_looks_for_the_commit(
    line: Pipeline,
) -> None:
    pulled = line.lease_of(0, "a")
    busy = iter([LedgerBusy(line.ledger.path, 1), LedgerMemory(line.ledger.path)])

    def refuse() -> None:
        for error in busy:
            raise error

    line.ledger.before_look = refuse
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until_done(pulled)
    assert line.committed() == ["a"]
    assert line.ended == []


@pytest.mark.parametrize(
    "error",
    [LedgerFault(Path("l.db"), 1, "no such table"), LookupError("topic id 7"), MemoryError()],
)
def test_a_final_error_ends_the_process_and_names_the_lease_that_another_takes_over(
    line: Pipeline, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    pulled = line.lease_of(0, "a")
    broken = [True]

    def name(_: int) -> str:
        if broken:
            raise error
        return "t"

    line.topic_name = name
    line.start(0, pulled)
    line.turn_until(lambda: bool(line.ended))
    assert line.ended == [0]
    assert f"lease {pulled.lease.lease_id} of shard 0, taken over 0 times so far" in caplog.text
    assert caplog.records[-1].exc_info is not None
    assert line.crew.leases.state(0, pulled.lease.slot) == LIVE
    broken.clear()
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until_done(pulled)
    assert line.committed() == ["a"]


def test_stopping_leaves_a_lease_that_cannot_be_put_as_it_is(line: Pipeline) -> None:
    pulled = line.lease_of(0, "a")
    failed = threading.Event()

    def fails(real: Callable[[], str]) -> str:
        failed.set()
        raise StoreBusy("503 SlowDown")

    line.store.around[key_of(pulled)] = fails
    line.start(0, pulled)
    assert failed.wait(60)
    line.uploads[0].stop()
    assert line.crew.leases.state(0, pulled.lease.slot) == LIVE
    assert line.ledger.read(commits.latest_number) == 0


# Adoption


def adopted_by_one(line: Pipeline) -> Lease:
    """Shard 0 has died; shard 1 takes over its one lease."""
    line.crew.leases.orphan(0)
    (lease,) = adopt_orphans(line.crew.leases, line.crew.locks, 1, line.now_ns)
    line.crew.rung()
    return lease


def draft_of(line: Pipeline, pulled: Pulled) -> CommitDraft:
    """What the dead holder would have committed; its object is in the store."""
    readers = [RingReader(line.crew.segment, shard) for shard in (0, 1)]
    extents, conditions = assemble(pulled.requests, readers, lambda _: "t")
    lease = pulled.lease
    built = l0.build(lease.lease_id, lease.created_ms, extents, conditions)
    key = l0.object_key(lease.lease_id)
    return CommitDraft(
        lease_id=lease.lease_id,
        key=key,
        locator=line.store.store.put(key, built.body, built.crc32c),
        size_bytes=len(built.body),
        created_ms=lease.created_ms,
        ranges=lease.ranges,
        extents=built.drafts,
        conditions=tuple(conditions),
    )


def test_an_adopted_lease_that_is_not_in_the_ledger_is_put_and_committed(line: Pipeline) -> None:
    pulled = line.lease_of(0, "a", "b")
    lease = adopted_by_one(line)
    line.uploads[1].start(lease)
    line.turn_until_done(pulled)
    assert line.committed() == ["a", "b"]
    assert line.store.kept == [key_of(pulled)]
    assert line.ledger.read(commits.by_number, 1).lease_id == pulled.lease.lease_id
    assert line.counter(1, at.S_ORPHANS_ADOPTED) == 1
    assert line.counter(1, at.S_OBJECTS_COMMITTED) == 1


def test_an_adopter_builds_the_same_object_as_the_dead_holder(line: Pipeline) -> None:
    line.publish(0, "a", key="once")
    line.publish(0, "b", partition=1)
    line.publish(0, "c")
    pulled = line.pull(0)
    draft_of(line, pulled)  # it is in the store; the holder dies before the ledger has it
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until_done(pulled)
    heads = list(line.store.list("l0/"))
    assert {head.key for head in heads} == {key_of(pulled)}
    assert len({line.store.get(head.locator) for head in heads}) == 1
    assert line.committed() == ["a", "c"]


def test_an_adopted_lease_that_is_in_the_ledger_is_only_finished(line: Pipeline) -> None:
    pulled = line.lease_of(0, "a")
    line.ledger.commit(draft_of(line, pulled), 10, line.log.publish)
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until_done(pulled)
    assert line.store.calls == []
    assert line.ledger.read(commits.latest_number) == 1
    assert line.committed() == ["a"]
    assert line.crew.word(0, at.S_COMMITTED) == line.crew.word(0, at.S_HEAD)
    assert line.counter(1, at.S_ORPHANS_ADOPTED) == 1
    # The dead holder had not come to counting it.
    assert line.counter(1, at.S_OBJECTS_COMMITTED) == 1


def test_an_adopter_tells_the_log_what_the_dead_holder_committed_and_did_not_tell(
    line: Pipeline,
) -> None:
    pulled = line.lease_of(0, "a")
    line.ledger.commit(draft_of(line, pulled), 10, lambda _: None)
    assert line.log.end == 0
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until_done(pulled)
    # Without waiting for anybody's next commit: producers wait for this one.
    assert line.log.end == 1
    commit = line.in_log(1)
    assert commit is not None
    assert commit.lease_id == pulled.lease.lease_id


def test_an_adopter_moves_the_words_that_the_dead_holder_had_not_moved(line: Pipeline) -> None:
    line.together()
    line.publish(0, "a")
    line.publish(1, "b")
    pulled = line.pull(0)
    line.ledger.commit(draft_of(line, pulled), 10, line.log.publish)
    first, second = pulled.lease.ranges
    line.crew.store(first.shard, at.S_COMMITTED, first.end)
    # The next lease of the first source has moved it on since.
    line.publish(0, "c")
    later = line.crew.word(0, at.S_HEAD)
    line.crew.store(first.shard, at.S_COMMITTED, later)
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until_done(pulled)
    assert line.crew.word(first.shard, at.S_COMMITTED) == later
    assert line.crew.word(second.shard, at.S_COMMITTED) == second.end


def test_an_uncommitted_range_that_its_ring_does_not_hold_is_never_committed_in_part(
    line: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    pulled = line.lease_of(0, "a", "b")
    _, (_, second) = pulled.requests
    line.crew.segment.ring(0)[second.position + 9] ^= 1
    line.uploads[1].start(adopted_by_one(line))
    line.turn_until(lambda: line.ended == [1])
    assert "no frame at" in caplog.text
    assert "taken over 1 times so far" in caplog.text
    assert line.ledger.read(commits.latest_number) == 0
    assert line.store.calls == []


# The commit log


def test_the_next_commit_completes_the_log_after_a_killed_process(
    line: Pipeline,
) -> None:
    killed, mine = line.lease_of(1, "killed"), line.lease_of(0, "mine")
    silent: list[Commit] = []
    line.ledger.commit(draft_of(line, killed), 10, silent.append)
    assert (line.log.end, line.ledger.read(commits.latest_number)) == (0, 1)
    line.start(0, mine)
    line.turn_until_done(mine)
    assert line.log.end == 2
    assert line.in_log(1) == silent[0]
    assert line.in_log(2) == line.ledger.read(commits.by_number, 2)


def test_others_are_rung_when_the_words_have_moved_and_before_the_lease_is_done(
    line: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = line.lease_of(0, "a")
    line.crew.rung()
    finish = line.crew.leases.finish
    before: list[tuple[list[int], int, int]] = []

    def watched(lease: Lease) -> None:
        committed = line.crew.word(0, at.S_COMMITTED)
        before.append((line.crew.rung(), line.log.end, committed))
        finish(lease)
        finished.set()

    finished = threading.Event()
    monkeypatch.setattr(line.crew.leases, "finish", watched)
    line.start(0, pulled)
    assert finished.wait(60)
    assert before == [([1], 1, line.crew.word(0, at.S_HEAD))]


def test_requests_of_a_lease_are_read_again_as_they_were_pulled(line: Pipeline) -> None:
    line.together()
    for text in ("a", "b", "c"):
        for shard in (0, 1):
            line.publish(shard, text)
    pulled = line.pull(0)
    readers = [RingReader(line.crew.segment, shard) for shard in (0, 1)]
    assert tuple(requests_of(pulled.lease, readers)) == pulled.requests
