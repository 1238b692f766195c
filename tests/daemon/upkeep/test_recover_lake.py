"""Recovery of a ledger whose objects were compacted and collected. No files of the lake here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import commits, epochs, reads, topics
from ledger.checks import invariants, soundness
from ledger.errors import DraftInvalid
from ledger.lake import lake_files, lake_tables, runs
from ledger.ledger import Ledger
from ledger.space import deletions, unreferenced
from ledger.types import CommitDraft, TopicConfig
from tests.daemon.upkeep.recovery_world import Request, World
from tests.ledger.lakes import compact, plan_all, switches_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.node.ledger.write(topics.create, "a", TopicConfig(), 1)
    made.node.tell()
    yield made
    made.node.ledger.read(invariants.check)
    assert made.node.ledger.read(soundness.problems, 9) == []
    made.close()


def produce(world: World, records: int) -> CommitDraft:
    draft, _ = world.build([Request("a", 0, records)])
    world.node.ledger.commit(draft, draft.created_ms, lambda _: None)
    return draft


def name_all(ledger: Ledger) -> list[str]:
    """Names everything that nothing needs; grace is over, and no upload is under way."""
    ledger.write(epochs.raise_floor, ledger.write(epochs.advance))
    rule = ledger.read(deletions.policy, 10**6, 0, ledger.read(commits.latest_number))
    return [
        one.locator
        for one in ledger.write(
            unreferenced.name, rule, ledger.read(unreferenced.page, rule, (-1, 0))
        )
    ]


def firsts(ledger: Ledger) -> list[int]:
    return [extent.first_offset for extent in ledger.read(reads.extents_from, 1, 0, 1, 99)]


@pytest.mark.parametrize("imaged", [False, True])
def test_what_was_collected_is_neither_missing_nor_taken_again(world: World, imaged: bool) -> None:
    drafts = [produce(world, 2) for _ in range(4)]
    world.node.tell()
    compact(world.node.ledger, "r", to_commit=3)
    world.node.tell()
    locators = name_all(world.node.ledger)
    assert locators == [draft.locator for draft in drafts[:3]]
    if imaged:
        world.node.put_image(world.store)
    world.node.tell()
    # One is gone and its name with it, one is gone, one is still there when the machine dies.
    world.store.delete(locators[:2])
    world.node.ledger.write(unreferenced.forget, [drafts[0].key], "m")
    report = world.recover()
    assert report.sound and report.objects_taken == 0
    assert (report.objects_listed, report.objects_named_for_deletion) == (1, 1)
    assert (report.objects, report.gaps) == (2, [])
    ledger = world.node.ledger
    assert firsts(ledger) == [7]
    assert ledger.read(lake_tables.compacted_seqs, 1) == {0: 6}
    assert [one.range.last_offset for one in ledger.read(lake_files.ranges_from, 1, 0, 1, 9)] == [6]
    state = ledger.read(reads.partition_states, 1)[0]
    assert (state.earliest_seq, state.next_seq, state.count) == (1, 9, 8)
    # An upload that comes late, whose commit nobody knows any more, is refused.
    with pytest.raises(DraftInvalid):
        ledger.commit(drafts[0], 1, lambda _: None)


def test_an_object_that_is_compacted_and_not_named_is_missing_when_it_is_gone(world: World) -> None:
    drafts = [produce(world, 2) for _ in range(2)]
    compact(world.node.ledger, "r")
    world.node.tell()
    world.store.delete([drafts[0].locator])
    assert world.recover().missing == [drafts[0].key]


def test_offsets_behind_a_recovery_are_above_a_table_that_is_ahead(world: World) -> None:
    produce(world, 2)
    world.node.tell()
    compact(world.node.ledger, "first")
    produce(world, 3)
    planned = plan_all(world.node.ledger)
    world.node.tell()  # the run's entry covers the head, so what it plans
    world.node.ledger.write(runs.begin, "second", "test", 10)
    switches = switches_of(planned, "second")
    produce(world, 4)
    world.node.ledger.write(lake_tables.switch, "second", switches, 20)  # no entry tells
    report = world.recover()
    assert [(gap.gap_from, gap.gap_to) for gap in report.gaps] == [(6, 9)]
    ledger = world.node.ledger
    assert ledger.read(lake_tables.compacted_seqs, 1) == {0: 2}
    assert firsts(ledger) == [1, 3, 10]
    # The next run finds the table ahead, and makes up for it.
    ledger.write(runs.begin, "third", "test", 30)
    ledger.write(lake_tables.switch, "third", switches, 40)
    assert ledger.read(lake_tables.compacted_seqs, 1) == {0: 5}
    assert [one.commit_number for one in plan_all(ledger)] == [3]
