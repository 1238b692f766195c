"""``headgate status`` and ``headgate groups``: what /v0/status says, as tables.

The shapes are those of the HTTP API (docs/http-api.md). Fields may be added there at any time, so
unknown ones are ignored here, and one that is missing is shown as ``-``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from commands.client import Client, UnknownAnswer
from commands.output import bytes_text, count_text, duration_text, table
from commands.tree import Group, draw


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

    @property
    def troubles(self) -> list[str]:
        """Why the daemon is degraded; empty when it is not."""
        dead = [f"shard {shard.shard} has no process" for shard in self.shards if not shard.pid]
        jumped = []
        if (jump_ms := self.retention.clock_jump_ms) is not None:
            jumped.append(
                f"the wall clock went {'ahead' if jump_ms > 0 else 'back'} by"
                f" {duration_text(abs(jump_ms))}: time to live evicts nothing until the time is"
                " accepted, by `headgate gc --accept-clock`"
            )
        raised = [alarm.message for alarm in self.alarms]
        return ([] if self.ready else ["the daemon is not ready"]) + raised + dead + jumped


def fetch(client: Client) -> tuple[Status, dict[str, Any]]:
    """The status, typed for tables and as it came for programs. Raises UnknownAnswer."""
    body = client.call("GET", "/v0/status")
    try:
        return msgspec.json.decode(body, type=Status), msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownAnswer(f"the status of {client.url} cannot be read: {error}") from error


def status_text(status: Status) -> str:
    """The whole status for people."""
    store, totals, pressure = status.store, status.totals, status.pressure
    uptime = duration_text(None if status.uptime_s is None else status.uptime_s * 1000)
    level = "-" if pressure.level is None else f"{pressure.level:.2f}"
    rung = "" if pressure.rung in (None, "", "none") else f" ({pressure.rung})"
    lines = [
        f"headgate {status.version}  {'ready' if status.ready else 'NOT READY'}  up {uptime}",
        "",
        f"store     {store.url}",
        (
            f"          {count_text(store.puts)} puts of {bytes_text(store.put_bytes)},"
            f" {count_text(store.put_failures)} failed;"
            f" {count_text(store.gets)} gets of {bytes_text(store.get_bytes)};"
            f" {count_text(store.lists)} lists"
        ),
        f"window    {duration_text(status.window_ms)}",
        f"pressure  {level}{rung}",
        f"memory    at most {bytes_text(status.memory_bound_bytes)} by its bounds",
        (
            f"acked     {count_text(totals.requests_acked)} requests,"
            f" {count_text(totals.records_acked)} records, {bytes_text(totals.bytes_acked)};"
            f" {count_text(totals.rejected)} rejected"
        ),
        (
            f"objects   {count_text(totals.objects_committed)} committed,"
            f" {count_text(totals.orphans_adopted)} adopted"
        ),
        f"evicted   {count_text(status.retention.records_evicted)} records",
        f"groups    {len(status.groups)}: {_groups(status)}",
        "",
        table(SHARD_HEAD, [_shard_row(shard) for shard in status.shards]),
    ]
    return "\n".join(lines)


def groups_text(status: Status) -> str:
    """The buddy tree."""
    return draw(status.groups, len(status.shards))


SHARD_HEAD = (
    "shard", "pid", "cpu", "group", "restarts", "heartbeat", "ring used", "ring",
    "requests", "records", "bytes",
)  # fmt: skip


def _shard_row(shard: Shard) -> list[str]:
    beat = "-" if shard.heartbeat_age_ms is None else f"{duration_text(shard.heartbeat_age_ms)} ago"
    return [
        str(shard.shard),
        "-" if shard.pid is None else str(shard.pid),
        "-" if shard.cpu is None else str(shard.cpu),
        "-" if shard.group is None else str(shard.group),
        count_text(shard.restarts),
        beat,
        bytes_text(shard.ring_used_bytes),
        bytes_text(shard.ring_bytes),
        count_text(shard.requests_acked),
        count_text(shard.records_acked),
        bytes_text(shard.bytes_acked),
    ]


def _groups(status: Status) -> str:
    shown = [
        f"{group.group} ({len(group.shards)} shard{'s' if len(group.shards) != 1 else ''})"
        for group in status.groups[:8]
    ]
    return ", ".join(shown) + (", ..." if len(status.groups) > 8 else "")
