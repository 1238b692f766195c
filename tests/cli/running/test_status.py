"""``headgate status``, against answers in the shapes of the HTTP API."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from tests.scripted import Answer, Call, refusal, run, says, scripted

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_s": 200,
    "certificate": None,
    "standbys": {"known": 0, "seen_ms": None, "commits": 0},
    "imports": [
        {"topic": "moved", "sources": 2, "unknown": 0, "lag_bytes": 0, "lag_records": 4_000,
         "told_age_ms": 9_000}
    ],
    "ready": True,
    "alarms": [],
    "incarnation": 3,
    "epoch": 7,
    "commits": 1199,
    "store": {
        "url": "file:///srv/headgate/store", "puts": 1200, "put_bytes": 5 << 20, "put_failures": 1,
        "gets": 3, "get_bytes": 2048, "lists": 2,
    },
    "window_ms": 0.5,
    "object_bytes_target": 4 << 20,
    "pressure": {
        "level": 0.25, "rung": "coalesce", "rungs": ["coalesce"], "hard_level": 0.25,
        "inputs": {"ring": 0.25},
        "sensors": [
            {
                "sensor": "ring", "raw": 0.25, "unit": "share", "pressure": 0.25,
                "weight": 1.0, "hard": True, "shard": 1, "source": "the fullest ring",
            }
        ],
        "entered": {"coalesce": 1}, "steady_level": 0.2, "coalesce_ms": 1.25, "deferring": False,
        "scaling": 12, "memory_left_bytes": 350 << 20,
    },
    "bill": {
        "store_class": "standard", "puts": 1300, "gets": 3, "lists": 2, "put_bytes": 6 << 20,
        "get_bytes": 2048, "usd": 0.0065112, "usd_per_month": 12.5, "usd_per_gib": 0.476,
        "put_rate": 0.96, "optimum_put_rate": 0.9,
        "per_shard": {"puts": 2500, "usd": 0.0125, "usd_per_month": None},
        "single_stream": {"puts": 1200, "usd": 0.006, "usd_per_month": None},
        "budget": {
            "usd_per_month": 12.5, "window_ms": 1250.0, "target_bytes": 4 << 20, "holds": True,
        },
    },
    "memory_bound_bytes": 512 << 20,
    "retention": {"records_evicted": 4_321, "clock_jump_ms": None},
    "gates": [
        {
            "gate": "producers", "paused_shards": 0, "paused_ms": None, "pauses": 1, "reasons": [],
        },
        {
            "gate": "routers", "paused_shards": 2, "paused_ms": 3_000, "pauses": 4,
            "reasons": ["ring", "memory"],
        },
    ],
    "scheduler": {"ready": [0, 0, 3, 0, 1], "deferred": 0},
    "delivery": {
        "deliveries": 9_876, "p50_ms": 0.512, "p99_ms": 2.048, "lagged_watchers": 3, "lags": 12,
    },
    "subscriptions": {
        "count": 2, "held": 1, "lag": 70_500, "drainable_lag": 10, "in_flight": 12, "waiting": 3,
        "blocked_keys": 2, "consumers": 3, "oldest_unacknowledged_ms": 5,
        "oldest_unfinished_ms": 3 * 3_600_000, "delivered": 9,
        "acknowledged": 8, "redelivered": 7, "refused": 6, "dropped": 5,
        "skipped": 1, "dead_lettered": 4,
        "evicted": 3, "unmatched": 2, "filtered": 0,
        "first": [
            {
                "topic": "orders", "subscription": name, "state": state, "reason": reason,
                "lag": 500, "drainable_lag": 0, "in_flight": 0, "waiting": 0,
                "blocked_keys": blocked, "consumers": 1, "oldest_unacknowledged_ms": 0,
                "oldest_unfinished_ms": 0,
                "delivered": 0, "acknowledged": 0, "redelivered": 0, "refused": 0, "dropped": 0,
                "skipped": 0,
                "dead_lettered": 0, "evicted": 0, "unmatched": 0, "filtered": 0,
            }
            for name, state, reason, blocked in (
                ("audit", "held", "the store does not answer", 0),
                ("email", "running", "", 2),
                ("mail", "running", "", 0),
            )
        ],
    },
    "routers": {
        "count": 2, "held": 1, "stopped": 0, "lag": 595, "copied": 40, "filtered": 3, "skipped": 0,
        "first": [
            {
                "router": "mirror", "source": "orders", "dest": "copies", "state": "held",
                "reason": "partition 0 is full", "lag": 595, "copied": 40, "filtered": 3,
                "skipped": 0,
            },
            {
                "router": "other", "source": "orders", "dest": "more", "state": "running",
                "reason": "", "lag": 0, "copied": 0, "filtered": 0, "skipped": 0,
            },
        ],
    },
    "kafka": {
        "lag": 40, "connections": 3, "groups": 1, "members": 2, "unauthenticated": 0, "pairs": 2,
        "first": [
            {"topic": "orders", "group": name, "partitions": 4, "lag": lag}
            for name, lag in (("billing", 40), ("audit", 0))
        ],
    },
    "standing": [],
    "push": {
        "count": 2, "slow": 1, "rate_max": 200.0, "granted": 200.0, "rate": 100.0, "use": 0.5,
        "senders": 2, "in_flight": 1, "attempts": 5_000, "records": 4_990, "failures": 10,
        "p50_ms": 2.0, "p99_ms": 16.0,
        "first": [
            {
                "topic": "orders", "subscription": name, "mode": mode, "rate_max": 100.0,
                "granted": 100.0, "rate": rate, "use": 0.0, "senders": 1, "in_flight": 0,
                "attempts": 10, "records": 0, "failures": 10, "p50_ms": None, "p99_ms": None,
                "held_ms": held_ms, "outcomes": {"timed_out": 10},
            }
            for name, mode, rate, held_ms in (
                ("hook", "slow", 1 / 60, 0), ("post", "normal", 99.9, 12_000), ("x", "normal", 1, 0)
            )
        ],
    },
    "latency": {"put": {"count": 75, "p50_ms": 16.4, "p99_ms": 65.5}},
    "shards": [
        {
            "shard": shard, "pid": 100 + shard, "cpu": shard, "group": 0, "restarts": 0,
            "heartbeat_age_ms": 12, "ready": True, "cpu_ms": 5, "ring_bytes": 64 << 20,
            "ring_used_bytes": 3 << 20, "connections": 5, "streams": 7, "requests_queued": 0,
            "requests_acked": 1000, "records_acked": 12345, "bytes_acked": 7 << 20,
            "journal_bytes": 4 << 20, "journal_used_bytes": 100, "journal_waits": 0,
        }
        for shard in range(2)
    ],
    "groups": [
        {
            "group": 0, "shards": [0, 1], "turn": 1, "backlog_bytes": 1536,
            "last_upload_age_ms": 40, "last_change_age_ms": 90000, "splits": 0, "merges": 1,
        }
    ],
    "totals": {
        "requests_acked": 2000, "records_acked": 24690, "bytes_acked": 14 << 20, "rejected": 4,
        "rejected_by": {"throttled": 4},
        "objects_committed": 1199, "orphans_adopted": 0,
        "splits": 1, "merges": 2,
    },
}  # fmt: skip


FAILING = {
    "alarm": "store_failing", "age_ms": 42_000, "count": 9, "not_ready": False,
    "message": "store failing for 42 s: No space",
}  # fmt: skip

STATUS_TEXT = """\
headgate 0.1.0  ready  up 3 min 20 s

daemon         incarnation 3, epoch 7, commits 1,199, window 0.5 ms, object bytes target 4.0 MiB,
               memory bound 512 MiB
store          url file:///srv/headgate/store, puts 1,200, put 5.0 MiB, put failures 1, gets 3,
               get 2.0 KiB, lists 2
pressure       rung coalesce, level 0.25, inputs: ring 0.25, hard level 0.25, rungs coalesce,
               entered: coalesce 1, steady level 0.2, coalesce 1.2 ms, deferring no, scaling 12,
               memory left 350 MiB
bill           store class standard, puts 1,300, gets 3, lists 2, put 6.0 MiB, get 2.0 KiB,
               usd $0.0065, usd per month $12.50, usd per gib $0.48, put rate 0.96,
               optimum put rate 0.9, per shard puts 2,500, per shard usd $0.013,
               single stream puts 1,200, single stream usd $0.006, budget usd per month $12.50,
               budget window 1.2 s, budget target 4.0 MiB, budget holds yes
retention      records evicted 4,321
gates          gate producers, pauses 1
gates          gate routers, paused shards 2, paused 3.0 s, pauses 4, reasons ring memory
scheduler      ready 0 0 3 0 1
delivery       deliveries 9,876, p50 0.5 ms, p99 2 ms, lagged watchers 3, lags 12
subscriptions  lag 70,500, drainable lag 10, in flight 12, waiting 3, blocked keys 2,
               oldest unacknowledged 5 ms, delivered 9, acknowledged 8, redelivered 7, refused 6,
               dropped 5, skipped 1, dead lettered 4, evicted 3, unmatched 2, consumers 3,
               oldest unfinished 3 h 0 min, count 2, held 1
               topic orders, subscription audit, state held, reason the store does not answer,
               lag 500, consumers 1
               topic orders, subscription email, state running, lag 500, blocked keys 2, consumers 1
push           rate max 200, granted 200, rate 100, use 0.5, senders 2, in flight 1, attempts 5,000,
               records 4,990, failures 10, p50 2 ms, p99 16 ms, count 2, slow 1
               topic orders, subscription hook, mode slow, rate max 100, granted 100, rate 0.0167,
               senders 1, attempts 10, failures 10, outcomes: timed_out 10
               topic orders, subscription post, mode normal, rate max 100, granted 100, rate 99.9,
               senders 1, attempts 10, failures 10, held 12.0 s, outcomes: timed_out 10
routers        copied 40, filtered 3, lag 595, count 2, held 1
               router mirror, source orders, dest copies, state held, reason partition 0 is full,
               copied 40, filtered 3, lag 595
totals         requests acked 2,000, records acked 24,690, bytes acked 14.0 MiB, rejected 4,
               rejected by: throttled 4, objects committed 1,199, splits 1, merges 2
imports        topic moved, sources 2, lag records 4,000, told age 9.0 s
kafka          lag 40, connections 3, groups 1, members 2, pairs 2
               topic orders, group billing, lag 40, partitions 4
groups         1: 0 (2 shards)

shard  pid  cpu  restarts  heartbeat age  ring used  requests acked  records acked  bytes acked
    0  100    0         0          12 ms    3.0 MiB           1,000         12,345      7.0 MiB
    1  101    1         0          12 ms    3.0 MiB           1,000         12,345      7.0 MiB
"""


def test_status_is_a_table_for_people() -> None:
    with says(Answer(200, STATUS)) as server:
        result = run(server, "status")
    assert (result.exit_code, result.stdout, result.stderr) == (0, STATUS_TEXT, "")
    assert server.calls == [Call("GET", "/v0/status", None)]


def test_every_figure_of_the_parts_is_shown_by_its_name() -> None:
    """So whoever declares one need not write it down here."""
    parts = {name: part for name, part in STATUS.items() if isinstance(part, dict)}
    del parts["latency"]  # a table of its own, in `top`
    with says(Answer(200, STATUS)) as server:
        text = " ".join(run(server, "status").stdout.split())
    for name, part in parts.items():
        for figure in [name for name, value in part.items() if isinstance(value, int | float)]:
            words = re.sub("_(ms|s|bytes)$", "", figure).replace("_", " ")
            assert not part[figure] or f"{words} " in text, (name, figure)


def test_status_says_nothing_of_a_month_or_a_gib_before_there_is_enough() -> None:
    bill = STATUS["bill"] | {"usd_per_month": None, "usd_per_gib": None, "budget": None}
    with says(Answer(200, STATUS | {"bill": bill, "uptime_s": 0})) as server:
        text = run(server, "status").stdout
    assert "usd $0.0065" in text and "usd per" not in text and "budget" not in text
    assert text.startswith("headgate 0.1.0  ready  up less than 1 s\n")


def test_status_says_when_more_is_spent_than_the_budget() -> None:
    budget = STATUS["bill"]["budget"] | {"holds": False}
    with says(Answer(200, STATUS | {"bill": STATUS["bill"] | {"budget": budget}})) as server:
        assert "budget holds no" in run(server, "status").stdout


def test_status_as_json_has_the_fields_of_this_version() -> None:
    with says(Answer(200, STATUS | {"a_field_of_the_future": [1]})) as server:
        result = run(server, "status", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == STATUS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ready": False}, "the daemon is not ready"),
        (
            {"shards": [STATUS["shards"][0], STATUS["shards"][1] | {"pid": None}]},
            "shard 1 has no process",
        ),
        ({"alarms": [FAILING]}, "store failing for 42 s: No space"),
        (
            {"retention": {"records_evicted": 0, "clock_jump_ms": -7_200_000}},
            "the wall clock jumped back by 2 h",
        ),
    ],
)
def test_status_of_a_degraded_daemon_ends_in_4(change: dict[str, Any], reason: str) -> None:
    with says(Answer(200, STATUS | change)) as server:
        result = run(server, "status", "--output", "json")
        table = run(server, "status")
    assert result.exit_code == table.exit_code == 4
    assert json.loads(result.stdout) == STATUS | change
    assert reason in result.stderr and reason in table.stderr


def test_status_is_watched_until_ctrl_c_and_while_the_daemon_is_away() -> None:
    def script(call: Call) -> Answer:
        match len(server.calls):
            case 2:
                return refusal(503, "shutting_down", "later")
            case 4:
                signal.raise_signal(signal.SIGINT)
        return Answer(200, STATUS)

    with scripted(script) as server:
        result = run(server, "status", "--watch", "100ms", "-o", "json")
    assert result.exit_code == 0
    assert {json.loads(line)["epoch"] for line in result.stdout.splitlines()} == {7}
    assert len(result.stdout.splitlines()) >= 2
    assert "later" in result.stderr
