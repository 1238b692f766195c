"""The bench of the governor: its report, its judge, and the daemon that measures nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench import governor_report
from bench.governor import UNMETERED
from bench.governor_results import (
    BudgetResult,
    ComparedResult,
    GovernorResults,
    ImportResult,
    ImportSide,
    SideResult,
)
from bench.overload import Found, Judge
from bench.overload_clients import Acked, Crowd, Told, body_of
from bench.processes import ROOT, plain_environment


def side(acked_per_s: float, acked_per_cpu_s: float = 1.0) -> SideResult:
    return SideResult(acked_per_s, acked_per_cpu_s, 10, 100)


def test_two_daemons_are_compared_by_the_median_of_their_pairs() -> None:
    pairs = [(side(90), side(100)), (side(50), side(100)), (side(95), side(100))]
    compared = ComparedResult("on over off", "1KiB", pairs)
    [target] = governor_report.targets(GovernorResults(goodput=[compared]))
    assert target.measured == pytest.approx(0.9)
    assert target.verdict == "met"


def test_a_budget_that_is_missed_by_more_than_5_percent_is_not_met() -> None:
    def verdict(spent: float) -> str:
        budget = BudgetResult(100.0, spent, 40.0, 4.0, 50.0, 250.0, 1, 1.0)
        [target] = governor_report.targets(GovernorResults(budget=budget))
        return target.verdict

    assert verdict(104.9) == verdict(95.1) == "met"
    assert verdict(106.0) == verdict(94.0) == "not met"


def test_an_import_with_a_budget_is_compared_with_one_that_sends_all() -> None:
    def verdict(governed: float) -> str:
        sides = ImportSide(governed, 4 << 20, 8 << 20), ImportSide(10.0, 256 << 20, 99 << 20)
        results = GovernorResults(imports=ImportResult([sides]))
        [target] = governor_report.targets(results)
        [(_, (_, rows))] = governor_report.sections(results)
        assert rows[1] == ("most MiB in flight", "8.00, 99.0")
        return target.verdict

    assert (verdict(9.1), verdict(8.9)) == ("met", "not met")


def test_a_daemon_can_be_started_that_measures_nothing() -> None:
    """A name that is gone would be an error that Python prints, and then ignores."""
    environment = plain_environment()
    environment["PYTHONPATH"] = f"{UNMETERED}:{environment['PYTHONPATH']}"
    look = (
        "import sitecustomize as s;"
        " print({getattr(owner, name) is s.nothing for owner, name in s.REPLACED})"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], check=True, capture_output=True, text=True, cwd=ROOT,
        env=environment,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{True}\n", "")


def test_the_body_of_a_client_has_exactly_its_size() -> None:
    body = body_of(12, 345, 16, 1000)
    assert len(body) == 16_000
    assert body.startswith(b'{"id":[12,345,0],"pad":"xx')
    assert Crowd(1.0, large=1, stalled=2).kinds() == ["stalled", "stalled", "large"]


TOLD = Told(acked=[Acked(0, 1, 2, 1), Acked(0, 3, 1, 3)], refused=[(0, 2)], unknown=[(0, 4)])
GOOD = [Found(1, (0, 1, 0)), Found(2, (0, 1, 1)), Found(3, (0, 3, 0))]


@pytest.mark.parametrize(
    ("records", "word"),
    [
        (GOOD, ""),
        ([*GOOD, Found(4, (0, 4, 0))], ""),  # nobody knows whether it was stored
        (GOOD[:2], "lost"),
        ([*GOOD, Found(5, (0, 4, 0))], "hole"),
        ([*GOOD, Found(4, (0, 5, 0))], "foreign"),
        ([*GOOD, Found(4, (1, 4, 0))], "foreign"),
        ([GOOD[0], GOOD[1], Found(3, (0, 2, 0)), Found(4, (0, 3, 0))], "refused"),
        ([*GOOD, Found(4, (0, 3, 0))], "order"),
    ],
)
def test_what_is_read_is_judged_by_what_the_clients_were_told(
    records: list[Found], word: str
) -> None:
    judge = Judge(TOLD)
    judge.check(0, records)
    found = {sentence.partition(":")[0] for sentence in judge.contradictions}
    assert word in found if word else not found
