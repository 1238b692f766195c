"""The report of a guest and its neighbor: how late it may be, and how exact a limit is."""

from __future__ import annotations

import msgspec
import pytest

from bench import report
from bench.neighbor import ABOVE, SILENT, WITHIN, NeighborResult, targets
from bench.results import Machine, Results


def measured(p99_ms: float, accepted: float) -> list[NeighborResult]:
    return [
        NeighborResult(SILENT, 2, 8, None),
        NeighborResult(WITHIN, 2, 10, None),
        NeighborResult(ABOVE, 2, p99_ms, accepted),
    ]


@pytest.mark.parametrize(
    ("p99_ms", "accepted", "verdicts"),
    [
        (11, 1.04, ["met", "met"]),
        (11.1, 0.96, ["not met", "met"]),
        (9, 1.06, ["met", "not met"]),
        (9, 0.94, ["met", "not met"]),
    ],
)
def test_a_neighbor_may_be_a_tenth_later_and_a_limit_off_by_a_twentieth(
    p99_ms: float, accepted: float, verdicts: list[str]
) -> None:
    assert [each.verdict for each in targets(measured(p99_ms, accepted))] == verdicts


def test_what_the_guest_does_is_printed_and_survives_json() -> None:
    results = Results(Machine("cpu", 2, "3.11", "wrk"), "now", neighbor=measured(10, 1.013))
    text = report.text(msgspec.json.decode(msgspec.json.encode(results), type=Results))
    assert SILENT in text and "1.013 x" in text
