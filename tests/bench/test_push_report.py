"""The report of push judges the figures that have a bound; a series says when it has settled."""

from __future__ import annotations

import msgspec
import pytest

from bench import push_report, report
from bench.push_results import AllowedResult, FollowResult, PostingResult, PushResults
from bench.results import Machine, Results
from tools.receiver.series import counted, oversteps, peak, settled_after_s


def verdicts(results: PushResults) -> list[str]:
    return [target.verdict for target in push_report.targets(results)]


@pytest.mark.parametrize(
    ("used", "peak", "found"),
    [(0.99, 1.05, ["met", "met"]), (0.98, 1.0, ["not met", "met"]), (1, 1.06, ["met", "not met"])],
)
def test_a_backlog_uses_its_rate_and_no_more(used: float, peak: float, found: list[str]) -> None:
    assert verdicts(PushResults(allowed=[AllowedResult(400, 1, 20, used, peak)])) == found


@pytest.mark.parametrize(
    ("served", "failed", "found"),
    [(0.9, 0.05, ["met", "met"]), (0.89, 0.0, ["not met", "met"]), (1, 0.06, ["met", "not met"])],
)
def test_a_receiver_is_used_and_not_flooded(served: float, failed: float, found: list[str]) -> None:
    follow = FollowResult("halved", 200, 2_000, 1.0, 3.0, served, failed)
    assert verdicts(PushResults(follows=[follow])) == found


def test_all_of_it_is_printed_and_survives_json() -> None:
    pushed = PushResults(
        0.5,
        [PostingResult("the client alone", 4_321, 4_321, 200, 0.2),
         PostingResult("binary", 2_345, 2_345, 300, 0.2)],
        [AllowedResult(400, 4, 20, 0.997, 1.01)],
        [FollowResult("halved", 200, 2_000, 1.0, 3.0, 0.95, 0.02),
         FollowResult("doubled", 400, 2_000, 1.0, None, 0.5, 0.02)],
    )  # fmt: skip
    results = Results(Machine("a processor", 2, "3.11", "wrk"), "", push=pushed)
    text = report.text(results)
    for part in ("4,321", "2,345", "1.50 x", "99.7%", "1.5 min", "4 senders on 4 shards", "50%"):
        assert part in text
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


GOOD = (10, 0)  # of a tenth of a second, with a capacity of 100


def test_a_series_settles_when_it_stays_good() -> None:
    series = dict.fromkeys(range(20), (10, 10)) | dict.fromkeys(range(20, 80), GOOD)
    assert settled_after_s(series, 0, 80, 100, 2) == 1.9  # 5 % may fail meanwhile
    series[60] = (5, 50)
    assert settled_after_s(series, 0, 80, 100, 2) is None
    assert settled_after_s(series, 0, 59, 100, 2) == 1.9
    assert settled_after_s({}, 0, 80, 100, 2) is None


def test_what_is_served_too_slowly_has_not_settled() -> None:
    assert settled_after_s(dict.fromkeys(range(80), (8, 0)), 0, 80, 100, 2) is None
    assert settled_after_s(dict.fromkeys(range(80), (9, 0)), 0, 80, 100, 2) == 0


def test_a_series_is_counted_by_its_steps() -> None:
    series = {1: (1, 2), 3: (4, 8), 20: (100, 0)}
    assert counted(series, 1, 3) == (1, 2)
    assert counted(series, 0, 4) == (5, 10)
    assert peak(series, 0, 5) == 15
    assert peak(series, 0, 30) == 100


def test_a_rate_is_overstepped_in_a_second_or_strictly_in_ten() -> None:
    steady = dict.fromkeys(range(200), (10, 0))
    assert oversteps(steady, 100, 0, 0, 200) == []
    burst = steady | {50: (36, 0)}
    assert oversteps(burst, 100, 26, 0, 200) == []
    assert oversteps(burst, 100, 25, 0, 200) == [
        *((step, 126) for step in range(41, 51)), *((step, 1026) for step in range(51)),
    ]  # fmt: skip
    slightly = dict.fromkeys(range(200), (10, 1))  # a tenth more
    found = oversteps(slightly, 100, 20, 0, 200)
    assert found and all(posts > 1_000 for _, posts in found), "not in any second"
