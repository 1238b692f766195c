"""The status as the daemon's API tells of it.

Fields may be added there at any time: unknown ones are ignored, and one that is missing is None.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from commands.client.http import Client, decoded


class Group(Struct, frozen=True):
    """An element of ``groups`` in /v0/status."""

    group: int
    shards: list[int]
    turn: int | None = None
    backlog_bytes: int | None = None
    last_upload_age_ms: float | None = None
    last_change_age_ms: float | None = None
    splits: int | None = None
    merges: int | None = None


class Store(Struct, frozen=True):
    """Calls on the object store since the daemon started."""

    url: str = "-"
    puts: int | None = None
    put_bytes: int | None = None
    put_failures: int | None = None
    gets: int | None = None
    get_bytes: int | None = None
    lists: int | None = None


class Pressure(Struct, frozen=True):
    """The governor's level, and the highest rung of its ladder in force."""

    level: float | None = None
    rung: str | int | None = None


class Shard(Struct, frozen=True):
    """One shard; ``pid`` is None while it has no process."""

    shard: int
    pid: int | None = None
    cpu: int | None = None
    group: int | None = None
    restarts: int | None = None
    heartbeat_age_ms: float | None = None
    ring_bytes: int | None = None
    ring_used_bytes: int | None = None
    requests_acked: int | None = None
    records_acked: int | None = None
    bytes_acked: int | None = None


class Totals(Struct, frozen=True):
    """Sums over all shards since the daemon started."""

    requests_acked: int | None = None
    records_acked: int | None = None
    bytes_acked: int | None = None
    rejected: int | None = None
    objects_committed: int | None = None
    orphans_adopted: int | None = None


class Alarm(Struct, frozen=True):
    """What is wrong now; ``message`` is a sentence for people."""

    alarm: str
    message: str = "-"
    age_ms: int | None = None
    count: int | None = None
    not_ready: bool = False


class Retention(Struct, frozen=True):
    """``clock_jump_ms`` is set while time to live evicts nothing, for the wall clock jumped."""

    records_evicted: int | None = None
    clock_jump_ms: int | None = None


class Status(Struct, frozen=True):
    """The answer of GET /v0/status."""

    version: str
    ready: bool
    shards: list[Shard]
    groups: list[Group]
    uptime_s: float | None = None
    alarms: list[Alarm] = []
    store: Store = Store()
    window_ms: float | None = None
    pressure: Pressure = Pressure()
    memory_bound_bytes: int | None = None
    retention: Retention = Retention()
    totals: Totals = Totals()


def fetch(client: Client) -> tuple[Status, dict[str, Any]]:
    """The status, typed for tables and as it came for programs. Raises UnknownAnswer."""
    body = client.call("GET", "/v0/status")
    return decoded(client, body, Status), msgspec.json.decode(body)
