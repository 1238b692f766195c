"""The protocol under deaths, stops and store faults between any two stores (protocol 1-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from daemon.intake.commit_feed import followed
from daemon.upkeep import image
from daemon.upkeep.collection.orphans import OrphanObject, OrphanObjects
from ledger import commits, cursors
from ledger.decide import CommitDecision, CursorKey, decide
from ledger.errors import LedgerError
from ledger.log import recovery
from ledger.log.entry import image_key
from ledger.tx import ReadTx, WriteTx
from ledger.types import CommitDraft, CursorMove, LeaseId
from shards import layout as at
from shards.layout import Layout
from shards.leases import LeaseTable
from tests.sim import collection, machine
from tests.sim.run import Failure, simulate
from tests.sim.schedule import MS
from uploader.groups import adopt
from uploader.groups.puller import Look, Puller
from uploader.ownership import ownerlog, ownership
from uploader.pipeline import upload
from uploader.pipeline.voids import Run, Voids
from uploader.stores.base import StoreError

pytestmark = pytest.mark.sim

STEPS = 4_000


@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 3, 14))]
)
def test_nothing_is_lost_doubled_or_stuck_whatever_dies_between_two_stores(seed: int) -> None:
    outcome = simulate(seed, STEPS)
    assert outcome.steps >= STEPS
    assert outcome.deaths + outcome.stops and outcome.commits
    assert outcome.owners
    assert outcome.moved


def test_two_runs_with_one_seed_give_the_same_log() -> None:
    first, second = simulate(11, 400), simulate(11, 400)
    assert first.log_hash == second.log_hash
    assert (first.steps, first.commits) == (second.steps, second.commits)
    assert simulate(7, 400).log_hash != first.log_hash


def first_failure(*, owners_only: bool = False, from_seed: int = 1, steps: int = 6_000) -> Failure:
    """The first failure that the simulation finds in code that is now broken."""
    for seed in range(from_seed, from_seed + 20):
        try:
            simulate(seed, steps, owners_only=owners_only)
        except Failure as failure:
            return failure
    raise AssertionError(f"20 seeds of {steps:,} steps did not find it")


@pytest.mark.slow
def test_a_pull_after_a_dead_holder_that_repairs_nothing_is_found_with_its_seed() -> None:
    with patch.object(Puller, "_repair", lambda *_: None):
        failure = first_failure()
    assert "again: make sim SEED=" in str(failure)


def test_a_commit_that_does_not_wait_for_its_predecessors_is_found() -> None:
    with patch.object(upload.Uploads, "_is_next", lambda *_: True):
        assert "in ring order" in str(first_failure(from_seed=3))


def test_a_lease_that_is_done_before_its_words_moved_is_found() -> None:
    real = upload.Uploads._finish

    def finished_first(self: upload.Uploads, work: upload._Work) -> object:
        self._leases.finish(work.lease)
        return real(self, work)

    with patch.object(upload.Uploads, "_finish", finished_first):
        failure = first_failure(from_seed=7)
    assert "done after" in str(failure) or "leaves a gap or overlaps" in str(failure)


@pytest.mark.slow
def test_orphans_that_are_never_adopted_are_found_when_all_should_come_to_rest() -> None:
    with patch.object(LeaseTable, "adopt", lambda *_: None):
        assert "not at rest" in str(first_failure(from_seed=4))  # the first that polls little


@pytest.mark.slow
def test_a_lease_whose_ledger_errors_end_its_upload_and_not_its_process_is_found() -> None:
    def forgets(self: upload.Uploads, work: upload._Work, step: upload._Step | None) -> None:
        with suppress(LedgerError, StoreError, upload._Stopped):
            while step is not None:
                step = step(work)

    with patch.object(upload.Uploads, "_advance", forgets):
        assert "not at rest" in str(first_failure(from_seed=7))  # it polls little


@pytest.mark.slow
def test_stuck_leases_without_an_alarm_are_found() -> None:
    with patch.object(adopt, "_is_stuck", lambda _: False):
        assert "a stuck lease has its alarm" in str(first_failure())


def test_uploads_that_wait_for_the_pressure_to_fall_are_found() -> None:
    """Row D4: what drains the rings is never gated, whatever the level."""
    real = Puller.look

    def gated(self: Puller, now_ns: int) -> Look:
        under_pressure = self._words[at.G_PRESSURE_PPM] == 1_000_000
        return Look([], now_ns + 100 * MS) if under_pressure else real(self, now_ns)

    with patch.object(Puller, "look", gated):
        assert "not at rest" in str(first_failure(from_seed=11, steps=2_590))


@pytest.mark.slow
def test_requests_that_are_withdrawn_although_pulled_are_found() -> None:
    real = Voids.take_back

    def unlocked(self: Voids, choose: Callable[[int], Iterable[Run]]) -> bool:
        """As if ``committed`` said what is pulled, and without the lock."""
        for start, end in choose(int(self._words[self._committed_at])):
            self._ring.make_void(start, end)
        return real(self, lambda _: ())

    with patch.object(Voids, "take_back", unlocked):
        failure = first_failure()
    assert any(
        said in str(failure)
        for said in ("holds the requests", "ends with a request", "has no frame", "in ring order")
    ), failure


def test_two_owners_with_clocks_that_differ_never_both_own_the_prefix() -> None:
    outcome = simulate(1, 6_000, owners_only=True)
    assert outcome.owners >= 6


@pytest.mark.parametrize(
    ("module", "name", "seconds", "from_seed"),
    [(ownership, "OWNED_NS", 25, 1), (ownerlog, "TAKE_OVER_NS", 12, 10)],
)
@pytest.mark.slow
def test_an_ownership_that_lasts_longer_than_a_new_owner_waits_is_found(
    module: object, name: str, seconds: int, from_seed: int
) -> None:
    with patch.object(module, name, seconds * ownership.SECOND_NS):
        failure = first_failure(owners_only=True, from_seed=from_seed)
    assert "next owner" in str(failure)


@pytest.mark.slow
def test_a_long_run_finds_nothing_and_comes_to_rest_also_under_the_highest_pressure() -> None:
    """Row D4; its million steps are ``make sim SEED=1001 SEEDS=8 STEPS=125000``."""
    outcome = simulate(2026, 100_000)
    assert outcome.steps >= 100_000
    assert outcome.deaths and outcome.stops and outcome.adoptions and outcome.acknowledgements
    assert outcome.ended and outcome.stuck_ticks and outcome.voids
    assert outcome.moved > outcome.machines
    assert outcome.drained, "nothing had to come to rest under the highest pressure"


def test_an_image_that_says_it_covers_more_than_it_holds_is_found() -> None:
    def one_more(incarnation: int, after: int, nonce: bytes) -> str:
        return image_key(incarnation, after + 1, nonce)

    with patch.object(image, "image_key", one_more):
        failure = first_failure(owners_only=True)
    assert "what a recovery needs is there" in str(failure)


@pytest.mark.slow
def test_results_that_are_cleared_before_their_lease_is_over_are_found() -> None:
    def all_followed(words: memoryview, layout: Layout, _: LeaseTable) -> tuple[int, list[LeaseId]]:
        return followed(words, layout, int(words[at.G_COMMITS])), []

    with patch.object(machine, "followed_and_live", all_followed):
        failure = first_failure(from_seed=13)
    assert "was cleared" in str(failure) or "not at rest" in str(failure)


@pytest.mark.slow
def test_leases_that_are_looked_at_before_the_list_are_found() -> None:
    real = OrphanObjects.find

    def early(self: OrphanObjects) -> Iterator[list[OrphanObject]]:
        live = self._live_leases()
        fresh, self._live_leases = self._live_leases, lambda: live
        yield from real(self)
        self._live_leases = fresh

    with patch.object(OrphanObjects, "find", early):
        failure = first_failure()
    assert "named for deletion" in str(failure) or "durable first" in str(failure)


def test_leases_that_are_not_looked_at_are_found() -> None:
    with patch.object(collection.Access, "live_leases", lambda _: []):
        failure = first_failure(from_seed=5)
    assert any(
        said in str(failure)
        for said in ("named for deletion", "does not come again", "durable first")
    ), failure


def test_a_floor_that_ignores_live_leases_is_found() -> None:
    def of_shards(self: LeaseTable) -> int:
        shards = range(self._layout.shards)
        return min(int(self._words[self._layout.shard(shard) + at.S_EPOCH]) for shard in shards)

    with patch.object(LeaseTable, "oldest_epoch", of_shards):
        assert "below the epoch floor" in str(first_failure(from_seed=4))


@pytest.mark.slow
def test_what_is_deleted_before_an_entry_names_it_is_found() -> None:
    with patch.object(collection.Access, "await_backup", lambda _: None):
        assert "every object is whole and there" in str(first_failure(from_seed=6))


CURSOR_RULES = (
    "a cursor is where", "a step is stored when", "a flush is conditional", "follow each other",
    "of a living cursor",
)  # fmt: skip


def is_about_cursors(failure: Failure) -> bool:
    return any(rule in str(failure.error) for rule in CURSOR_RULES)


@pytest.mark.parametrize("moves_void", [True, False])
def test_a_cursor_that_moves_without_its_records_or_stays_with_them_is_found(
    moves_void: bool,
) -> None:
    def wrong(draft: CommitDraft, *rest: Any) -> CommitDecision:
        decision = decide(draft, *rest)
        steps = [one.advance for one in draft.conditions if one.advance is not None]
        moves = {(step.cursor_id, step.partition): step.next for step in steps}
        return decision._replace(moves=moves if moves_void else {})

    with patch.object(commits, "decide", wrong):
        assert is_about_cursors(first_failure(from_seed=4))


def test_a_step_that_is_judged_by_where_its_cursor_was_before_is_found() -> None:
    real = cursors.positions_of
    before: dict[CursorKey, int] = {}

    def stale(tx: ReadTx, keys: Iterable[CursorKey]) -> dict[CursorKey, int]:
        now = real(tx, keys)
        found = {key: before.get(key, seq) for key, seq in now.items()}
        before.update(now)
        return found

    with patch.object(cursors, "positions_of", stale):
        assert is_about_cursors(first_failure(from_seed=3))


@pytest.mark.slow
def test_a_flush_that_does_not_look_where_the_cursor_is_is_found() -> None:
    def unconditional(tx: WriteTx, moves: Sequence[CursorMove]) -> dict[CursorKey, int | None]:
        cursors.move(tx, {(each.cursor_id, each.partition): each.next for each in moves})
        return {}

    with patch.object(cursors, "flush", unconditional):
        assert "a flush is conditional" in str(first_failure(from_seed=18))


@pytest.mark.slow
def test_a_recovery_that_takes_what_routers_copied_is_found() -> None:
    def all_alike(tx: WriteTx, draft: CommitDraft) -> CommitDraft:
        for condition in draft.conditions:
            if condition.advance is not None and not condition.advance.is_ours:
                cursors.learn(tx, condition.advance, draft.created_ms)
        return draft

    with patch.object(recovery, "_with_cursors", all_alike):
        assert "our cursors where entries say" in str(first_failure(from_seed=16))
