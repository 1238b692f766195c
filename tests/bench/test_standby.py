"""The report of a pair: how long nobody may acknowledge."""

from __future__ import annotations

import msgspec
import pytest

from bench import report
from bench.results import Machine, Results
from bench.standby import PairResult, targets


def measured(killed_s: float, handover_s: float) -> PairResult:
    return PairResult(0, [20, killed_s], [1, handover_s], 20, killed_s, 1, handover_s, 0.013, 0.015)


@pytest.mark.parametrize(
    ("killed_s", "handover_s", "verdicts"),
    [
        (23, 2, ["met", "met"]),
        (23.1, 1, ["not met", "met"]),
        (20, 2.1, ["met", "not met"]),
    ],
)
def test_the_worst_round_counts(killed_s: float, handover_s: float, verdicts: list[str]) -> None:
    assert [each.verdict for each in targets(measured(killed_s, handover_s))] == verdicts


def test_nothing_is_promised_of_what_was_not_measured() -> None:
    assert not [*targets(None), *targets(PairResult(0))]


def test_a_pair_is_printed_and_survives_json() -> None:
    results = Results(Machine("cpu", 2, "3.11", "wrk"), "now", standby=measured(21.5, 1.25))
    text = report.text(msgspec.json.decode(msgspec.json.encode(results), type=Results))
    for figure in ("20.8", "21.5", "1.25", "1.3% alone, 1.5% with a standby"):
        assert figure in text, text
