"""Requests that are taken back: only what nobody pulled, and their space comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import layout as at
from shards import locks
from shards.leases import Lease
from shards.locks import LockFile
from shards.ring import RingReader
from tests.uploader.crew import MS, TARGET, WINDOW, Crew, crew
from uploader.groups.puller import Puller
from uploader.groups.upload_turn import NEVER
from uploader.pipeline.assemble import requests_of
from uploader.pipeline.voids import Run, Voids

NOW = 1_000_000 * MS


class Side(Crew):
    """Only for its type: a crew with its pullers and voids."""

    pullers: list[Puller]
    voids: list[Voids]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Side]:
    with crew(2, tmp_path) as made:
        side: Side = made  # type: ignore[assignment]
        side.pullers = [made.puller(shard) for shard in range(2)]
        side.voids = [
            Voids(made.segment, puller, writer)
            for puller, writer in zip(side.pullers, made.writers, strict=True)
        ]
        yield side


def take_back(crew: Side, shard: int, *runs: Run) -> list[int]:
    """Takes runs back; what ``choose`` was told."""
    told: list[int] = []

    def choose(pulled: int) -> tuple[Run, ...]:
        told.append(pulled)
        return runs

    assert crew.voids[shard].take_back(choose)
    return told


def pull(crew: Side, shard: int, now_ns: int = NOW + 10 * WINDOW) -> list[tuple[Lease, list[int]]]:
    """The leases of a look, with the arrivals of their requests."""
    look = crew.pullers[shard].look(now_ns)
    return [(p.lease, [request.arrival_ns for _, request in p.requests]) for p in look.pulled]


def readers(crew: Crew) -> list[RingReader]:
    return [RingReader(crew.segment, shard) for shard in range(crew.layout.shards)]


def test_a_request_that_was_taken_back_is_in_no_lease_and_those_around_it_are(two: Side) -> None:
    at_positions = [two.publish(0, NOW + number) for number in range(5)]
    assert take_back(two, 0, (at_positions[1], at_positions[3])) == [0]
    ((lease, arrivals),) = pull(two, 0)
    assert arrivals == [NOW, NOW + 3, NOW + 4]
    # Who adopts the lease reads the same from the ring.
    assert [r.arrival_ns for _, r in requests_of(lease, readers(two))] == arrivals
    two.commit(lease)
    assert two.word(0, at.S_COMMITTED) == two.word(0, at.S_HEAD)
    two.check()


def test_a_pulled_request_cannot_be_taken_back(two: Side) -> None:
    first = two.publish(0, NOW)
    ((lease, _),) = pull(two, 0)
    second = two.publish(0, NOW + 1)
    with pytest.raises(
        ValueError, match=f"the request at {first} is already pulled: all below {second}"
    ):
        two.voids[0].take_back(lambda _: [(first, second)])
    assert two.locks.try_lock(locks.GROUP)  # it is free again
    two.locks.unlock(locks.GROUP)
    assert [r.position for _, r in requests_of(lease, readers(two))] == [first]
    assert take_back(two, 0, (second, two.word(0, at.S_HEAD))) == [second]


def test_nothing_is_taken_back_while_another_shard_holds_the_groups_lock(
    two: Side, tmp_path: Path
) -> None:
    position = two.publish(0, NOW)
    end = two.word(0, at.S_HEAD)
    voids = Voids(two.segment, two.puller(0, locks=TriesInVain(tmp_path / "lock")), two.writers[0])
    assert not voids.take_back(lambda _: [(position, end)])
    ((_, arrivals),) = pull(two, 0)
    assert arrivals == [NOW]


class TriesInVain(LockFile):
    """A lock file whose locks are all held by others."""

    def try_lock(self, number: int) -> bool:
        return False


def test_a_holder_that_died_before_storing_pulled_has_nevertheless_pulled(two: Side) -> None:
    two.publish(0, NOW)
    second = two.publish(0, NOW + 1)
    pull(two, 0)
    end = two.word(0, at.S_HEAD)
    # As when it died after the lease: its mark is there, and ``pulled`` is old.
    two.store(0, at.S_PULLED, 0)
    two.groups.store(0, at.P_MARK, 2)
    assert take_back(two, 0) == [end]
    with pytest.raises(ValueError, match="is already pulled"):
        two.voids[0].take_back(lambda _: [(second, end)])


def test_a_ring_full_of_voids_takes_requests_again(two: Side) -> None:
    first = two.publish(0, NOW, TARGET)
    while two.writers[0].free_bytes > 2 * TARGET:
        two.publish(0, NOW, TARGET)
    take_back(two, 0, (first, two.word(0, at.S_HEAD)))
    assert two.word(0, at.S_COMMITTED) == two.word(0, at.S_PULLED) == two.word(0, at.S_HEAD)
    two.publish(0, NOW + 7, TARGET)
    ((lease, arrivals),) = pull(two, 1, NOW + 10 * WINDOW) or pull(two, 0, NOW + 11 * WINDOW)
    assert arrivals == [NOW + 7]
    two.commit(lease)
    two.check()


def test_voids_after_a_lease_are_passed_only_when_it_is_committed(two: Side) -> None:
    two.publish(0, NOW)
    ((lease, _),) = pull(two, 0)
    void = two.publish(0, NOW + 1)
    take_back(two, 0, (void, two.word(0, at.S_HEAD)))
    assert two.voids[0].pass_over()
    assert (two.word(0, at.S_COMMITTED), two.word(0, at.S_PULLED)) == (0, void)
    two.commit(lease)
    assert two.word(0, at.S_COMMITTED) == void
    assert two.voids[0].pass_over()
    assert two.word(0, at.S_COMMITTED) == two.word(0, at.S_PULLED) == two.word(0, at.S_HEAD)
    two.check()


def test_a_successor_passes_the_voids_of_a_dead_shard(two: Side) -> None:
    void = two.publish(0, NOW)
    two.publish(0, NOW + 1)
    end = two.word(0, at.S_HEAD)
    two.writers[0].make_void(void, end)  # and died
    assert Voids(two.segment, two.pullers[0], two.writers[0]).pass_over()
    assert two.word(0, at.S_COMMITTED) == end


def test_a_death_between_the_two_words_loses_nothing(two: Side) -> None:
    void = two.publish(0, NOW)
    live = two.publish(0, NOW + 1)
    two.writers[0].make_void(void, live)
    two.store(0, at.S_PULLED, live)  # stored; then it died, and its mark stands
    two.groups.store(0, at.P_MARK, 1)
    assert take_back(two, 1) == [0]  # another member finds the mark
    assert two.word(0, at.S_PULLED) == 0
    ((lease, arrivals),) = pull(two, 0)
    assert arrivals == [NOW + 1]
    two.commit(lease)
    two.check()


def test_requests_that_were_taken_back_cause_no_repeated_looks(two: Side) -> None:
    two.publish(0, NOW)
    now = NOW + 10 * WINDOW
    ((lease, _),) = pull(two, 0, now)
    void = two.publish(0, now)
    later = now + 20 * WINDOW
    look = two.pullers[1].look(now + 1)  # from here on it knows since when something waits
    assert look.pulled == [] and look.again_at_ns > now + 1
    take_back(two, 0, (void, two.word(0, at.S_HEAD)))
    looks = [two.pullers[1].look(later + number) for number in range(3)]
    assert all(look.pulled == [] for look in looks)
    assert looks[-1].again_at_ns == NEVER
    two.commit(lease)


def test_a_live_request_before_voids_is_not_passed(two: Side) -> None:
    live = two.publish(0, NOW)
    void = two.publish(0, NOW + 1)
    take_back(two, 0, (void, two.word(0, at.S_HEAD)))
    assert two.voids[0].pass_over()
    assert two.word(0, at.S_COMMITTED) == two.word(0, at.S_PULLED) == live == 0
