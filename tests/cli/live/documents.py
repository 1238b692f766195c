"""Status documents: one recorded from a daemon, and the same daemon with more shards."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon.schemas.overview import completed
from daemon.schemas.status import Status

MIB = 1 << 20

RECORDED: dict[str, Any] = {
    "version": "0.4.0", "uptime_s": 4_000, "ready": True, "alarms": [], "incarnation": 3,
    "epoch": 9, "commits": 192_000,
    "store": {
        "url": "s3://lake/headgate", "puts": 10_000, "put_bytes": 30_000 * MIB, "put_failures": 0,
        "gets": 4, "get_bytes": 99, "lists": 2,
    },
    "window_ms": 640.0, "object_bytes_target": 4 * MIB,
    "pressure": {
        "level": 0.62, "rung": "widen", "hard_level": 0.33, "rungs": ["coalesce", "widen"],
        "inputs": {"busy": 0.62, "ring": 0.33},
        "sensors": [
            {"sensor": name, "raw": 1.0, "unit": "ms", "pressure": pressure, "hard": hard,
             "shard": 1, "source": "where it is from"}
            for name, pressure, hard in (
                ("ready", 0.12, False), ("scheduling", 0.4, False), ("busy", 0.62, False),
                ("uploads", 0.25, False), ("store", 0.0, False), ("ledger", 0.01, False),
                ("ring", 0.33, True), ("memory", 0.2, True), ("disk", 0.0, True),
            )
        ],
    },
    "memory_bound_bytes": 2_607_204_416,
    "retention": {"records_evicted": 0, "clock_jump_ms": None},
    "delivery": {"deliveries": 70_000, "p50_ms": 0.51, "p99_ms": 2.05},
    "latency": {
        stage: {"count": 100, "p50_ms": ms / 2, "p99_ms": ms}
        for stage, ms in (
            ("admitted", 8.2), ("published", 0.3), ("pulled", 210.0), ("put", 140.0),
            ("committed", 2.0), ("answered", 0.12), ("acknowledged", 352.0),
            ("dispatched", 0.5), ("delivered", 2.0),
        )
    },
    "bill": {"usd_per_month": 43.215, "puts": 10_040, "single_stream": {"puts": 10_040},
             "optimum_put_rate": 67.4},
    "shards": [
        {"shard": shard, "pid": 500 + shard, "ready": True, "cpu": shard, "group": 0,
         "restarts": 0, "heartbeat_age_ms": 48, "cpu_ms": 600_000 * (shard + 1),
         "ring_bytes": 64 * MIB, "ring_used_bytes": 16 * MIB, "connections": 20, "streams": 5,
         "requests_acked": 4_000_000, "records_acked": 40_000_000, "bytes_acked": 8_000 * MIB}
        for shard in range(2)
    ],
    "groups": [
        {"group": group, "shards": [group], "turn": group, "backlog_bytes": 3 * MIB,
         "last_upload_age_ms": 20, "last_change_age_ms": 9, "splits": 1, "merges": 0}
        for group in range(2)
    ],
    "totals": {
        "requests_acked": 8_000_000, "records_acked": 80_000_000, "bytes_acked": 16_000 * MIB,
        "rejected": 40, "rejected_by": {"throttled": 40}, "objects_committed": 10_000,
        "orphans_adopted": 0, "splits": 1, "merges": 0,
    },
}  # fmt: skip


def seen(document: dict[str, Any]) -> Status:
    """As `top` reads it."""
    return msgspec.json.decode(completed(document), type=Status)


def with_shards(count: int, group_size: int) -> dict[str, Any]:
    """The recorded daemon with more shards; the higher the number, the busier."""
    first = RECORDED["shards"][0]
    shards = [
        first
        | {"shard": n, "pid": 500 + n, "cpu": n, "ring_used_bytes": n * 64 * MIB // count,
           "cpu_ms": 4_000_000 * n // count}
        for n in range(count)
    ]  # fmt: skip
    group = RECORDED["groups"][0]
    groups = [
        group
        | {"group": low, "turn": low, "shards": list(range(low, min(low + group_size, count)))}
        for low in range(0, count, group_size)
    ]
    return RECORDED | {"shards": shards, "groups": groups}
