"""Commits of an owner that grows old, or is stopped, between any two steps of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import commits
from ledger.types import CommitDraft
from shards import layout as at
from shards.clock import boottime_ns, wall_ns
from shards.leases import LIVE
from tests.e2e.daemon import wait_until
from tests.uploader.upload_world import GIVES_UP_S, LASTS_NS, Pipeline, pipeline
from uploader.groups.puller import Pulled
from uploader.ownership import ownership
from uploader.ownership.ownership import ASK_NS, OWNED_NS, SECOND_NS, Moment, tell_sent


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as opened:
        yield opened


def age(line: Pipeline, age_ns: int) -> None:
    """The last accepted entry was sent so long ago."""
    tell_sent(line.words, Moment(boottime_ns() - age_ns, wall_ns() - age_ns))


def wait_done(line: Pipeline, pulled: Pulled) -> None:
    wait_until(lambda: line.is_done(pulled.lease), "the lease to be done")


def asked(line: Pipeline) -> bool:
    """Whether shard 0 has asked for an entry."""
    return line.crew.word(0, at.S_ENTRY_WANTED_NS) > line.words[at.G_OWNED_SENT_NS]


def test_an_upload_asks_for_an_entry_when_ownership_is_growing_old(
    line: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that stands still makes it neither old nor lost.
    monkeypatch.setattr(ownership, "OWNED_NS", LASTS_NS)
    monkeypatch.setattr(ownership, "ASK_NS", LASTS_NS)
    age(line, 0)
    pulled = line.lease_of(0, "a")
    line.start(0, pulled)
    wait_done(line, pulled)
    assert not asked(line)
    monkeypatch.setattr(ownership, "ASK_NS", ASK_NS)
    age(line, ASK_NS + SECOND_NS)
    pulled = line.lease_of(0, "b")
    line.start(0, pulled)
    wait_done(line, pulled)  # and its commit waits for nothing
    assert asked(line)


def test_nothing_is_committed_while_ownership_is_too_old(line: Pipeline) -> None:
    age(line, OWNED_NS + SECOND_NS)
    pulled = line.lease_of(0, "a")
    line.start(0, pulled)
    wait_until(lambda: line.counter(0, at.S_PUTS) and asked(line), "the PUT and the question")
    assert line.ledger.read(commits.latest_number) == 0
    line.stay_owner()
    wait_done(line, pulled)
    assert line.committed() == ["a"]


def stopped_within_the_transaction(line: Pipeline) -> None:
    """The process is stopped after its check of ownership, for longer than that lasts."""

    def sleeps(_: CommitDraft) -> None:
        line.ledger.before_commit = None
        age(line, OWNED_NS + SECOND_NS)

    line.ledger.before_commit = sleeps


def test_a_commit_during_a_pause_is_published_once_the_prefix_is_known_to_be_ours(
    line: Pipeline,
) -> None:
    stopped_within_the_transaction(line)
    pulled = line.lease_of(0, "a")
    line.start(0, pulled)
    wait_until(lambda: asked(line), "the question after the transaction")
    assert line.log.end == 0
    assert line.crew.word(0, at.S_COMMITTED) == 0
    line.stay_owner()
    wait_done(line, pulled)
    assert line.log.end == 1 and line.committed() == ["a"]


def test_a_commit_during_a_pause_is_never_published_after_a_take_over(line: Pipeline) -> None:
    stopped_within_the_transaction(line)
    pulled = line.lease_of(0, "a")
    line.start(0, pulled)
    wait_until(lambda: asked(line), "the question after the transaction")
    line.words[at.G_SUPERSEDED] = 1
    line.stay_owner()
    line.uploads[0].stop()
    assert line.log.end == 0
    assert line.crew.word(0, at.S_COMMITTED) == 0
    assert line.crew.leases.state(0, pulled.lease.slot) == LIVE


@pytest.mark.parametrize("gap_s", [60, -60])
def test_after_a_gap_in_time_nothing_is_committed_until_an_entry_is_accepted(
    line: Pipeline, monkeypatch: pytest.MonkeyPatch, gap_s: int
) -> None:
    """A machine that a hypervisor held: its clock of the boot knows nothing of it."""
    age(line, 0)
    ahead_ns = wall_ns() - boottime_ns() + gap_s * SECOND_NS
    monkeypatch.setattr("time.time_ns", lambda: boottime_ns() + ahead_ns)
    pulled = line.lease_of(0, "a")
    line.start(0, pulled)
    wait_until(lambda: line.counter(0, at.S_PUTS) and asked(line), "the PUT and the question")
    assert line.ledger.read(commits.latest_number) == 0
    line.stay_owner()
    wait_done(line, pulled)
    assert line.committed() == ["a"]


def test_the_ledger_is_free_while_a_commit_waits_to_be_published(line: Pipeline) -> None:
    stopped_within_the_transaction(line)
    pulled = line.lease_of(0, "a")
    line.start(0, pulled)
    wait_until(lambda: asked(line), "the question after the transaction")
    # While ownership is unknown, reads, topics and collections continue.
    assert line.lock.threads.acquire(timeout=GIVES_UP_S)
    line.lock.threads.release()
    assert line.ledger.read(commits.latest_number) == 1
    assert (line.log.end, line.is_done(pulled.lease)) == (0, False)
    line.stay_owner()
    wait_done(line, pulled)


def test_the_next_publication_includes_a_commit_during_a_pause(
    line: Pipeline,
) -> None:
    stopped_within_the_transaction(line)
    slept, next_one = line.lease_of(0, "slept"), line.lease_of(1, "next")
    line.start(0, slept)
    wait_until(lambda: asked(line), "the question after the transaction")
    line.uploads[0].stop()  # its process does not run again
    assert line.log.end == 0
    line.stay_owner()
    line.start(1, next_one)
    wait_done(line, next_one)
    assert line.log.end == 2
    assert [line.in_log(n) for n in (1, 2)] == [
        line.ledger.read(commits.by_number, n) for n in (1, 2)
    ]


def test_nothing_is_committed_once_another_owner_has_the_prefix(
    line: Pipeline,
) -> None:
    pulled = line.lease_of(0, "a")
    line.words[at.G_SUPERSEDED] = 1
    line.start(0, pulled)
    wait_until(lambda: bool(line.store.kept), "the PUT")
    line.uploads[0].stop()
    assert line.ledger.read(commits.latest_number) == 0
    assert line.crew.leases.state(0, pulled.lease.slot) == LIVE
