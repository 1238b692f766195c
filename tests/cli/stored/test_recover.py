"""``headgate recover`` for people: what the report names, and that it stays short."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

import cli
from commands.output import NAMED_MAX
from commands.stored.recover import text
from daemon.upkeep.recover import GapMade, RecoveryReport, UnreadableObject


def test_a_sound_recovery_is_a_few_lines_without_alarms() -> None:
    report = RecoveryReport(
        entries=3, objects=1_200, objects_listed=1_200, records_listed=5_000, seconds=0.5,
        objects_per_second=2_400.0,
    )  # fmt: skip
    said = text(report)
    assert report.sound
    assert "1,200 objects and 3 entries in 0.5 s (2,400 objects/s)" in said
    assert "CORRUPT" not in said and "gap" not in said and "twice" not in said
    assert "before" not in said


def test_everything_that_an_operator_must_know_is_named() -> None:
    report = RecoveryReport(
        objects=4, objects_taken=2, records_taken=7, objects_orphan=1,
        corrupt=[UnreadableObject("l0/x", "torn")], missing=["l0/y"], topics_restored=["orders"],
        gaps=[GapMade("orders", 3, 11, 17)], records_may_be_doubled=5, records_void=2,
        records_copied_again=3,
        kept_ledger="/data/ledger/ledger.db.before-1",
    )  # fmt: skip
    said = text(report)
    assert not report.sound
    for part in (
        "CORRUPT   l0/x: torn",
        "MISSING   l0/y",
        "gap       orders, partition 3: offsets 11 to 17",
        "5 of the unlisted records have neither an idempotency key nor an expected_seq nor a",
        "2 of the unlisted records are not stored: their expected_seq or the",
        "3 of the unlisted records are not stored: they are copies",
        "now with default settings: orders",
        "kept as /data/ledger/ledger.db.before-1",
    ):
        assert part in said


def test_a_report_of_many_gaps_names_some_and_counts_the_rest() -> None:
    gaps = [GapMade("t", number, 1, 2) for number in range(NAMED_MAX + 30)]
    said = text(RecoveryReport(gaps=gaps)).splitlines()
    assert sum(line.startswith("gap") for line in said) == NAMED_MAX
    assert "and 30 more" in said


def recover(data: Path, store: Path, *more: str) -> Result:
    places = ["--data", str(data), "--store", store.as_uri()]
    return CliRunner().invoke(cli.headgate, ["recover", *places, *more], env={})


def test_a_store_that_has_nothing_is_refused_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    data, store = tmp_path / "data", tmp_path / "mistyped"
    done = recover(data, store)
    assert done.exit_code == 1
    assert f"{store.as_uri()} has no objects" in done.stderr
    assert "--store" in done.stderr and "--allow-empty" in done.stderr
    assert not store.exists() and not (data / "ledger" / "ledger.db").exists()


def test_an_empty_ledger_can_be_asked_for(tmp_path: Path) -> None:
    data, store = tmp_path / "data", tmp_path / "new"
    done = recover(data, store, "--allow-empty")
    assert done.exit_code == 0, done.stderr
    assert (data / "ledger" / "ledger.db").exists()
    # What that left in the store tells of nothing either.
    done = recover(data, store)
    assert done.exit_code == 1 and "has no objects" in done.stderr


def test_a_url_is_refused_with_what_to_give_instead() -> None:
    result = CliRunner().invoke(cli.headgate, ["recover", "--url", "http://daemon:7440"])
    assert result.exit_code == 2
    assert "that no daemon uses; name it with --data, and its store with --store" in result.stderr
