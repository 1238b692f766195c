"""The report of tokens and TLS compares each way with clear text of the same size."""

from __future__ import annotations

import msgspec
import pytest

from bench import report
from bench.access import CLEAR, TLS, TOKEN, AccessResult, targets
from bench.results import Machine, Results


def measured(token_us: float) -> list[AccessResult]:
    return [
        AccessResult("1KiB", CLEAR, 20, 40_000),
        AccessResult("1KiB", TOKEN, token_us, 39_000),
        AccessResult("1KiB", TLS, 50, 18_000),
        AccessResult("64KiB", CLEAR, 300, 3_000),
    ]


@pytest.mark.parametrize(("token_us", "verdict"), [(20.6, "met"), (20.7, "not met")])
def test_a_token_may_cost_three_percent(token_us: float, verdict: str) -> None:
    (target,) = targets(measured(token_us))
    assert target.verdict == verdict


def test_ways_are_compared_by_size_and_survive_json() -> None:
    results = Results(Machine("cpu", 2, "3.11", "wrk"), "now", access=measured(21))
    text = report.text(msgspec.json.decode(msgspec.json.encode(results), type=Results))
    assert "2.50 x" in text and "1.00 x" in text and "18,000" in text
