"""The plan fits its time limit, and the report says what was met and what was left out."""

from __future__ import annotations

import msgspec
import pytest

from bench import plan, report
from bench.bodies import size_named
from bench.load import Load
from bench.put_cost import PutCost
from bench.results import (
    DaemonResult,
    LeftOut,
    LoadResult,
    Machine,
    OtherResult,
    Results,
    ScaleResult,
    TailResult,
)

MACHINE = Machine("a processor", 2, "3.11", "wrk 4.1.0")


def load(acked_per_s: float, p50_ms: float = 1.0) -> Load:
    return Load(int(acked_per_s * 10), 0, 0, 10.0, p50_ms, p50_ms, 2 * p50_ms, 2.0)


def load_result(
    acked_per_s: float, put_ratio: float = 1.0, p50_ms: float = 1.0, others_share: float = 0.0
) -> LoadResult:
    return LoadResult(load(acked_per_s, p50_ms), 5.0, 0.2, others_share, 10.0, 10.0, put_ratio, 3.0)


def daemon_result(
    name: str, saturated: LoadResult, light: LoadResult | None = None, gets: int = 0
) -> DaemonResult:
    store, shards, size, body_format = name.split("/")
    body_bytes = size_named(size).size_bytes
    tail = TailResult(gets, 100, 100, 0)
    return DaemonResult(
        name, store, int(shards), size, body_format, body_bytes, 1, False, saturated, light, None,
        tail, 1 << 20, 2 << 20,
    )  # fmt: skip


def verdicts(results: Results) -> dict[str, str]:
    return {target.name: target.verdict for target in report.targets(results)}


def test_the_whole_plan_fits_its_limit() -> None:
    assert sum(case.seconds(plan.FULL) for case in plan.full()) <= plan.LIMIT_S


def test_the_quick_plan_fits_its_limit() -> None:
    assert sum(case.seconds(plan.QUICK) for case in plan.quick()) <= plan.QUICK_LIMIT_S


def test_no_two_cases_have_one_name() -> None:
    names = [case.name for case in plan.full()]
    assert len(set(names)) == len(names)


def test_a_peer_runs_right_after_our_case_of_its_size() -> None:
    names = [case.name for case in plan.full()]
    for size in plan.PEER_SIZES:
        assert names.index(f"s2-lite/{size}") == names.index(f"embedded/1/{size}/ndjson") + 1


def test_what_is_compared_is_saturated_for_the_same_time() -> None:
    compared = [case for case in plan.full() if case.is_compared]
    assert [case.name for case in compared] == [
        name
        for size in plan.PEER_SIZES
        for name in (f"embedded/1/{size}/ndjson", f"s2-lite/{size}")
    ]
    assert {case.saturated_s(plan.FULL) for case in compared} == {plan.FULL.compared_s}


def test_cases_are_chosen_by_a_part_of_their_name() -> None:
    found = [case.name for case in plan.chosen(plan.full(), ["ceiling/1K", "put-cost"])]
    assert found == ["ceiling/1KiB", "put-cost"]


def test_a_part_that_no_case_has_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"no case has nonesuch in its name.*ceiling/1KiB"):
        plan.chosen(plan.full(), ["nonesuch"])


def test_a_target_is_judged_by_its_own_case() -> None:
    results = Results(MACHINE, "")
    results.daemons = [
        daemon_result("embedded/1/1KiB/ndjson", load_result(50_000)),
        daemon_result("embedded/1/64KiB/ndjson", load_result(4_799)),
    ]
    found = verdicts(results)
    assert found["embedded, 1 KiB: acknowledged/s a core"] == "met"
    assert found["embedded, 64 KiB: MiB/s a core"] == "not met"


def test_the_worst_put_ratio_of_any_load_counts() -> None:
    results = Results(MACHINE, "")
    good = load_result(1.0, put_ratio=0.9)
    bad = load_result(1.0, put_ratio=1.3)
    results.daemons = [daemon_result("minio/1/1KiB/ndjson", good, light=bad)]
    assert verdicts(results)["minio: PUTs over the optimum, worst load"] == "not met"


def test_one_get_of_a_reader_at_the_tail_is_too_many() -> None:
    results = Results(MACHINE, "")
    results.daemons = [daemon_result("minio/1/1KiB/ndjson", load_result(1.0), gets=1)]
    assert verdicts(results)["minio: GETs by a reader at the tail"] == "not met"


@pytest.mark.parametrize(("p50_ms", "verdict"), [(17.5, "met"), (18.5, "not met")])
def test_light_load_is_compared_with_a_bare_put(p50_ms: float, verdict: str) -> None:
    results = Results(MACHINE, "", put_cost=PutCost(2.4, 2.5, 8.0))
    light = load_result(1.0, p50_ms=p50_ms)
    results.daemons = [daemon_result("minio/1/1KiB/ndjson", load_result(1.0), light=light)]
    found = verdicts(results)
    assert found["minio, 1 KiB: p50 at light load over one bare PUT"] == verdict
    assert found["CPU of a 4 MiB PUT by our store over bare boto3"] == "met"


def test_a_peer_is_compared_at_its_own_size() -> None:
    results = Results(MACHINE, "")
    results.daemons = [
        daemon_result("embedded/1/1KiB/ndjson", load_result(50_000)),
        daemon_result("embedded/1/64KiB/ndjson", load_result(4_000)),
    ]
    results.peers = [
        OtherResult("s2-lite/1KiB", "1KiB", 1 << 10, load(20_000), 1.0, 0.1, 0.0),
        OtherResult("s2-lite/64KiB", "64KiB", 1 << 16, load(600), 1.0, 0.1, 0.0),
    ]
    found = verdicts(results)
    assert found["over s2-lite, 1KiB: acknowledged/s"] == "met"
    assert found["over s2-lite, 64KiB: MiB/s"] == "not met"


def test_what_grows_with_the_shards_is_judged_by_the_shards_of_its_target() -> None:
    name = "a pull's CPU, 64 shards over 2"
    for at_64, verdict in ((15.0, "met"), (15.1, "not met")):
        pulls = {2: 10.0, 64: at_64, 128: 99.0}
        scale = [ScaleResult(shards, pull_ms, 0.1, 0.2) for shards, pull_ms in pulls.items()]
        results = Results(MACHINE, "now", scale=scale)
        assert verdicts(results) == {name: verdict, "supervisor's tick, 128 shards": "met"}
        assert "supervisor's tick" in report.text(results)


def test_without_measurements_no_target_is_met() -> None:
    assert report.targets(Results(MACHINE, "")) == []


def test_what_was_left_out_is_reported() -> None:
    results = Results(MACHINE, "")
    results.left_out = [
        LeftOut("s2-lite/1KiB", "no s2-lite binary: give one with --s2-lite PATH"),
        LeftOut("minio/2/1MiB/msgpack", "the limit of 720 s for the whole run"),
    ]
    text = report.text(results)
    assert "s2-lite is left out" in text
    assert "minio/2/1MiB/msgpack is left out: the limit of 720 s" in text


def test_a_machine_that_was_busy_with_other_work_is_reported() -> None:
    results = Results(MACHINE, "")
    results.daemons = [
        daemon_result("embedded/1/1KiB/ndjson", load_result(50_000, others_share=0.31))
    ]
    assert "Other programs used up to 31% of all CPUs" in report.text(results)


def test_results_survive_json() -> None:
    results = Results(MACHINE, "", put_cost=PutCost(2.4, 2.5, 8.0))
    results.daemons = [daemon_result("embedded/1/1KiB/ndjson", load_result(50_000))]
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
