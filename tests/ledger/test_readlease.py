"""Runs one at a time, and the leases of bulk readers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial

import pytest

from ledger.errors import ReadLeasesFull, RunLost, RunUnfinished
from ledger.lake import lake_tables, readleases, runs
from ledger.lake.types import ReadLease
from ledger.ledger import Ledger


def test_one_run_at_a_time_and_the_refusal_names_the_other(ledger: Ledger) -> None:
    ledger.write(runs.begin, "a", "host 1", 1_000, 500)
    with pytest.raises(RunUnfinished, match="run a of host 1") as caught:
        ledger.write(runs.begin, "b", "host 2", 1_499)
    assert (caught.value.run, caught.value.owner) == ("a", "host 1")
    assert not caught.value.retryable
    ledger.write(runs.begin, "a", "host 1", 1_499)  # asked again, for the answer was lost
    assert ledger.read(runs.living, 1_499) == "a"
    ledger.write(runs.end, "a", 1_499)
    assert ledger.read(runs.living, 1_499) is None
    ledger.write(runs.begin, "b", "host 2", 1_499)


def test_a_run_lives_as_long_as_it_is_renewed_in_time(ledger: Ledger) -> None:
    ledger.write(runs.begin, "a", "host 1", 1_000, 500)
    ledger.write(runs.renew, "a", 1_499, 500)
    assert ledger.read(runs.living, 1_998) == "a"
    for attempt in (
        partial(ledger.write, runs.renew, "a", 1_999),
        partial(ledger.write, lake_tables.switch, "a", [], 1_999),
        partial(ledger.write, runs.end, "a", 1_999),
    ):
        with pytest.raises(RunLost, match="not heard of in time"):
            attempt()
    assert ledger.read(runs.living, 1_999) is None
    assert ledger.read(runs.unfinished) == ("a", "host 1"), "the next one completes it"
    ledger.write(runs.begin, "b", "host 2", 1_999)


def test_a_run_whose_driver_is_known_to_be_gone_is_ended_before_its_time(ledger: Ledger) -> None:
    ledger.write(runs.begin, "a", "host 1", 1_000)
    with pytest.raises(RunUnfinished):
        ledger.write(runs.begin, "c", "host 1", 1_001, 500, "b")
    ledger.write(runs.begin, "c", "host 1", 1_001, 500, "a")
    with pytest.raises(RunLost):
        ledger.write(runs.renew, "a", 1_002)


def test_what_was_there_when_a_run_began_is_kept_for_it(ledger: Ledger) -> None:
    ledger.write(runs.begin, "a", "host", 1_000, 500)
    assert [one.lease for one in ledger.read(readleases.live, 1_499)] == ["a"]
    ledger.write(runs.end, "a", 1_499)
    assert ledger.read(readleases.live, 1_499) == []


def test_a_run_that_was_ended_by_the_next_one_learns_of_it(ledger: Ledger) -> None:
    ledger.write(runs.begin, "a", "host", 1_000, 500)
    ledger.write(runs.begin, "b", "host", 1_500)
    for attempt in (
        partial(ledger.write, runs.renew, "a", 1_501),
        partial(ledger.write, runs.end, "a", 1_501),
        partial(ledger.write, lake_tables.switch, "a", [], 1_501),
        partial(ledger.write, runs.end, "never", 1_501),
    ):
        with pytest.raises(RunLost, match="run it again"):
            attempt()
    ledger.write(runs.end, "b", 1_502)


def test_ended_runs_are_kept_up_to_a_limit(ledger: Ledger) -> None:
    for number in range(runs.RUNS_KEPT + 5):
        ledger.write(runs.begin, f"run-{number}", "host", number)
        ledger.write(runs.end, f"run-{number}", number)
    with closing(sqlite3.connect(ledger.path)) as connection:
        kept = {row[0] for row in connection.execute("SELECT run FROM runs")}
    first = 5 - 1  # the last one had not ended when it was looked
    assert kept == {f"run-{n}" for n in range(first, runs.RUNS_KEPT + 5)}


def test_a_read_lease_holds_until_it_ends_or_expires(ledger: Ledger) -> None:
    ledger.write(readleases.take, "p1", "plan of orders", 1_000, 2_000)
    ledger.write(readleases.take, "p2", "plan of all", 1_001, 3_000)
    assert ledger.read(readleases.live, 1_999) == [
        ReadLease("p1", 1_000, 2_000, "plan of orders"),
        ReadLease("p2", 1_001, 3_000, "plan of all"),
    ]
    assert [one.lease for one in ledger.read(readleases.live, 2_000)] == ["p2"]
    assert ledger.write(readleases.renew, "p2", 2_999, 5_000)
    assert [one.expires_ms for one in ledger.read(readleases.live, 4_999)] == [5_000]
    assert ledger.write(readleases.end, "p2")
    assert not ledger.write(readleases.end, "p2")
    assert ledger.read(readleases.live, 1_500) == [ReadLease("p1", 1_000, 2_000, "plan of orders")]


def test_an_expired_read_lease_cannot_be_renewed(ledger: Ledger) -> None:
    ledger.write(readleases.take, "p", "plan", 1_000, 2_000)
    assert not ledger.write(readleases.renew, "p", 2_000, 9_000)
    assert not ledger.write(readleases.renew, "never", 1_500, 9_000)
    assert ledger.read(readleases.live, 2_000) == []


def test_expired_read_leases_make_room(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readleases, "READ_LEASES_MAX", 2)
    ledger.write(readleases.take, "a", "plan", 1_000, 2_000)
    ledger.write(readleases.take, "b", "plan", 1_000, 3_000)
    with pytest.raises(ReadLeasesFull, match="2 read leases are held, which is the limit"):
        ledger.write(readleases.take, "c", "plan", 1_999, 9_000)
    ledger.write(readleases.take, "c", "plan", 2_000, 9_000)
    assert [one.lease for one in ledger.read(readleases.live, 2_000)] == ["b", "c"]
