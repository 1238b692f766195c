"""Runs one at a time, and the leases of bulk readers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

import pytest

from ledger.errors import ReadLeasesFull, RunLost, RunUnfinished
from ledger.lake import readlease
from ledger.lake.types import ReadLease
from ledger.ledger import Ledger


def test_one_run_at_a_time_and_the_refusal_names_the_other(ledger: Ledger) -> None:
    ledger.begin_run("a", "host 1", 1_000)
    with pytest.raises(RunUnfinished, match="compaction a of host 1 has begun") as caught:
        ledger.begin_run("b", "host 2", 1_000_000_000)  # however long ago that was
    assert (caught.value.run, caught.value.owner) == ("a", "host 1")
    assert not caught.value.retryable
    ledger.end_run("a", 1_499)
    ledger.begin_run("b", "host 2", 1_499)


def test_a_run_that_was_ended_by_the_next_one_learns_of_it(ledger: Ledger) -> None:
    ledger.begin_run("a", "host", 1_000)
    assert ledger.unfinished_run() == "a"
    ledger.end_run("a", 1_500)
    ledger.begin_run("b", "host", 1_500)
    for attempt in (
        partial(ledger.end_run, "a", 1_501),
        partial(ledger.switch_tables, "a", [], 1_501),
        partial(ledger.end_run, "never", 1_501),
    ):
        with pytest.raises(RunLost, match="start another"):
            attempt()
    ledger.end_run("b", 1_502)


def test_ended_runs_are_kept_up_to_a_limit(ledger: Ledger) -> None:
    for number in range(readlease.RUNS_KEPT + 5):
        ledger.begin_run(f"run-{number}", "host", number)
        ledger.end_run(f"run-{number}", number)
    with closing(sqlite3.connect(ledger.path)) as connection:
        kept = {row[0] for row in connection.execute("SELECT run FROM runs")}
    first = 5 - 1  # the last one had not ended when it was looked
    assert kept == {f"run-{n}" for n in range(first, readlease.RUNS_KEPT + 5)}


def test_a_read_lease_holds_until_it_ends_or_expires(ledger: Ledger) -> None:
    ledger.take_read_lease("p1", "plan of orders", 1_000, 2_000)
    ledger.take_read_lease("p2", "plan of all", 1_001, 3_000)
    assert ledger.read_leases(1_999) == [
        ReadLease("p1", 1_000, 2_000, "plan of orders"),
        ReadLease("p2", 1_001, 3_000, "plan of all"),
    ]
    assert [one.lease for one in ledger.read_leases(2_000)] == ["p2"]
    assert ledger.renew_read_lease("p2", 2_999, 5_000)
    assert [one.expires_ms for one in ledger.read_leases(4_999)] == [5_000]
    assert ledger.end_read_lease("p2")
    assert not ledger.end_read_lease("p2")
    assert ledger.read_leases(1_500) == [ReadLease("p1", 1_000, 2_000, "plan of orders")]


def test_an_expired_read_lease_cannot_be_renewed(ledger: Ledger) -> None:
    ledger.take_read_lease("p", "plan", 1_000, 2_000)
    assert not ledger.renew_read_lease("p", 2_000, 9_000)
    assert not ledger.renew_read_lease("never", 1_500, 9_000)
    assert ledger.read_leases(2_000) == []


def test_expired_read_leases_make_room(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readlease, "READ_LEASES_MAX", 2)
    ledger.take_read_lease("a", "plan", 1_000, 2_000)
    ledger.take_read_lease("b", "plan", 1_000, 3_000)
    with pytest.raises(ReadLeasesFull, match="2 read leases are held, which is the limit"):
        ledger.take_read_lease("c", "plan", 1_999, 9_000)
    ledger.take_read_lease("c", "plan", 2_000, 9_000)
    assert [one.lease for one in ledger.read_leases(2_000)] == ["b", "c"]
