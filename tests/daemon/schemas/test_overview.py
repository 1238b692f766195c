"""Rates: per second, and never negative, whatever restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.schemas.overview import Rates, StatusSample, between, restarted
from tests.cli.live.documents import MIB, RECORDED, seen


def later(**totals: int) -> dict[str, Any]:
    """The recorded daemon, with more counted."""
    more = {name: RECORDED["totals"][name] + count for name, count in totals.items()}
    return RECORDED | {"uptime_s": 4_002, "totals": RECORDED["totals"] | more}


def test_rates_are_differences_over_the_time_between_the_answers() -> None:
    document = later(requests_acked=100, records_acked=1_000, bytes_acked=10_000, rejected=4)
    document["store"] = RECORDED["store"] | {"puts": 10_010, "put_bytes": 30_020 * MIB}
    document["delivery"] = RECORDED["delivery"] | {"deliveries": 70_050}
    first = RECORDED["shards"][0]
    busier = {"cpu_ms": first["cpu_ms"] + 1_500, "requests_acked": first["requests_acked"] + 100}
    document["shards"] = [first | busier, RECORDED["shards"][1]]
    found = between(StatusSample(10.0, seen(RECORDED)), StatusSample(12.0, seen(document)))
    assert (found.span_s, found.since_start) == (2.0, False)
    assert (found.requests, found.records, found.bytes, found.rejected) == (50, 500, 5_000, 2)
    assert (found.puts, found.object_bytes, found.deliveries) == (5, 2 * MIB, 25)
    assert (found.shards[0].busy, found.shards[0].requests, found.shards[1].busy) == (0.75, 50, 0)


def test_the_puts_at_best_are_of_the_same_time_and_kind_as_the_puts() -> None:
    """`optimum_put_rate` is of the last minute, and with requests that do not upload."""
    document = later()
    document["store"] = RECORDED["store"] | {"puts": 10_010}
    document["bill"] = {"puts": 10_052, "single_stream": {"puts": 10_048}}
    found = between(StatusSample(10.0, seen(RECORDED)), StatusSample(12.0, seen(document)))
    assert (found.puts, found.optimum_puts) == (5, 3)


def test_the_first_rates_are_those_since_the_start() -> None:
    found = between(None, StatusSample(10.0, seen(RECORDED)))
    assert found.since_start and found.span_s == 4_000
    assert found.requests == 2_000


def test_a_shard_with_a_new_process_has_an_unknown_share_of_its_cpu() -> None:
    again = later()
    again["shards"] = [RECORDED["shards"][0] | {"pid": 9_999, "cpu_ms": 3}, RECORDED["shards"][1]]
    found = between(StatusSample(10.0, seen(RECORDED)), StatusSample(12.0, seen(again)))
    assert found.shards[0].busy is None and found.shards[1].busy == 0


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation": 4},
        {"uptime_s": 1},
        {"totals": RECORDED["totals"] | {"requests_acked": 1}},
        {"store": RECORDED["store"] | {"puts": 0}},
        {"delivery": RECORDED["delivery"] | {"deliveries": 0}},
    ],
)
def test_a_restart_is_seen_by_any_of_its_signs(change: dict[str, Any]) -> None:
    assert restarted(seen(RECORDED), seen(RECORDED | change))
    assert not restarted(seen(RECORDED), seen(later(requests_acked=1)))
    found = between(StatusSample(10.0, seen(RECORDED)), StatusSample(12.0, seen(RECORDED | change)))
    assert found.since_start


counts = st.integers(0, 1 << 60)


@given(st.lists(st.tuples(*[counts] * 6), min_size=2, max_size=2), st.floats(0, 1e6), counts)
def test_no_rate_is_ever_negative(numbers: list[tuple[int, ...]], wait_s: float, up: int) -> None:
    documents = []
    for requests, records, puts, writes, cpu, rejected in numbers:
        shard = {"shard": 0, "pid": 3, "cpu_ms": cpu, "requests_acked": requests}
        totals = {"requests_acked": requests, "records_acked": records, "rejected": rejected}
        documents.append(
            RECORDED
            | {"totals": totals, "shards": [shard], "delivery": {"deliveries": writes}}
            | {"store": {"puts": puts, "put_bytes": writes}, "uptime_s": up}
        )
    old, new = (seen(document) for document in documents)
    found: Rates = between(StatusSample(0.0, old), StatusSample(wait_s, new))
    shard_rates = found.shards[0]
    assert found.object_bytes is None or found.object_bytes >= 0
    assert shard_rates.busy is None or shard_rates.busy >= 0
    assert all(
        rate >= 0
        for rate in (
            found.requests, found.records, found.bytes, found.rejected, found.puts,
            found.deliveries, shard_rates.requests, shard_rates.records, shard_rates.bytes,
        )
    )  # fmt: skip
