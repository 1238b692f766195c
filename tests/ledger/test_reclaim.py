"""What the ledger gives back: results that no process asks for, and free pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import commits, reads
from ledger.checks import invariants
from ledger.errors import ResultCleared
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.space import reclaim
from ledger.types import Topic
from tests.ledger.lakes import commit
from tests.ledger.requests import Request, lease


def test_results_of_old_commits_are_cleared_and_the_extents_tell_all_that_they_told(
    ledger: Ledger, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim, "RESULTS_AT_ONCE", 2)
    for counter in range(1, 6):
        commit(ledger, counter, Request(topic.topic_id, ((0, counter),)))
    mark = ledger.read(backup.mark)
    looked = 0
    steps = []
    while looked < 4:
        looked = reclaim.clear_results(ledger, looked, 4)
        steps.append(looked)
    assert steps == [2, 4, 4] or steps == [2, 4]
    assert reclaim.clear_results(ledger, 0, 4) == 2  # a start looks again, and writes nothing
    for number in range(1, 5):
        with pytest.raises(ResultCleared, match=f"commit {number}"):
            ledger.read(commits.by_number, number)
        with pytest.raises(ResultCleared):
            ledger.read(commits.by_lease, lease(number))
        assert ledger.read(commits.lease_of, number) == lease(number)
        assert ledger.read(commits.number_of, lease(number)) == number
    assert ledger.read(commits.by_number, 5).number == 5
    assert (
        ledger.read(commits.number_of, lease(6)) is None
        and ledger.read(commits.lease_of, 6) is None
    )
    assert ledger.read(backup.mark) == mark
    (extent,) = ledger.read(reads.extents_of_commit, 3)
    assert (extent.first_offset, extent.last_offset, extent.voids) == (4, 6, ())
    assert reclaim.clear_results(ledger, 4, 5) == 5
    assert ledger.read(backup.mark) == mark  # a ledger is known by its last commit's lease
    ledger.read(invariants.check)
    commit(ledger, 6, Request(topic.topic_id))


def grow_and_shrink(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO meta VALUES ('large', randomblob(20000000))")
        connection.commit()
        connection.execute("DELETE FROM meta WHERE name = 'large'")
        connection.commit()


def pages(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        return count, free


def test_free_pages_are_given_back_in_steps_but_for_a_share(ledger: Ledger, topic: Topic) -> None:
    assert not reclaim.give_pages_back(ledger)
    grow_and_shrink(ledger.path)
    before, free = pages(ledger.path)
    assert free > 4_000
    assert reclaim.give_pages_back(ledger)
    count, left = pages(ledger.path)
    assert before - count >= reclaim.PAGES_AT_ONCE and left == free - reclaim.PAGES_AT_ONCE
    while reclaim.give_pages_back(ledger):
        pass
    count, left = pages(ledger.path)
    assert left <= reclaim.PAGES_KEPT_MIN < left + reclaim.PAGES_AT_ONCE
    commit(ledger, 1, Request(topic.topic_id))
    ledger.read(invariants.check)


def test_a_ledger_of_a_former_version_keeps_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # its first page: without a map
    with closing(Ledger(path, nullcontext())) as ledger:
        grow_and_shrink(path)
        assert not reclaim.give_pages_back(ledger)
