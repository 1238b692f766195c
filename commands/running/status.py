"""``headgate status``: the state of a running daemon."""

from __future__ import annotations

import click

from commands.client.http import Client, decoded
from commands.live.degraded import troubles
from commands.output import (
    Cell,
    bytes_text,
    count_text,
    duration_text,
    say,
    show,
    table,
    usd_text,
)
from commands.shell.exits import DEGRADED
from commands.shell.options import client_option, output_option
from daemon.schemas.api import (
    BillStatus,
    DeliveryStatus,
    GateStatus,
    PushStatus,
    RoutersStatus,
    ShardStatus,
    Status,
    SubscriptionsStatus,
)

GROUPS_SHOWN_MAX = 8
SHARD_HEAD = (
    "shard", "pid", "cpu", "group", "restarts", "heartbeat", "ring used", "ring",
    "requests", "records", "bytes",
)  # fmt: skip


@click.command()
@client_option
@output_option
@click.pass_context
def status(context: click.Context, client: Client, as_json: bool) -> None:
    """Show the state of the daemon, its store and its shards.

    Exit code 4 if the daemon is degraded; the reasons are on stderr.

    \b
    Examples:
      headgate status
      headgate status --url http://10.0.0.5:7440 -o json
    """
    found = decoded(client, client.call("GET", "/v0/status"), Status)
    show(found, as_json, _text)
    why = troubles(found)
    for trouble in why:
        say(f"degraded: {trouble}")
    context.exit(DEGRADED if why else 0)


def _text(status: Status) -> str:
    store, totals, pressure = status.store, status.totals, status.pressure
    uptime = duration_text(status.uptime_s * 1000) if status.uptime_s else "less than 1 s"
    rung = "" if pressure.rung == "none" else f" ({pressure.rung})"
    lines = [
        f"headgate {status.version}  {'ready' if status.ready else 'NOT READY'}  up {uptime}",
        "",
        f"store     {store.url}",
        (
            f"          {count_text(store.puts)} puts of objects, {bytes_text(store.put_bytes)},"
            f" {count_text(store.put_failures)} failed;"
            f" {count_text(store.gets)} gets of {bytes_text(store.get_bytes)};"
            f" {count_text(store.lists)} lists"
        ),
        *_billed(status.bill, store.puts),
        f"window    {duration_text(status.window_ms)}",
        f"pressure  {pressure.level:.2f}{rung}",
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
        *_gated(status.gates),
        *_delivered(status.delivery),
        *_consumed(status.subscriptions),
        *_pushed(status.push),
        *_routed(status.routers),
        f"groups    {len(status.groups)}: {_groups(status)}",
        "",
        table(SHARD_HEAD, [_shard_row(shard) for shard in status.shards]),
    ]
    return "\n".join(lines)


def _billed(bill: BillStatus, objects: int) -> list[str]:
    """``objects``: PUTs of objects. Nothing while the store is free and nothing limits it."""
    if not bill.usd and not bill.per_shard.usd and bill.budget is None:
        return []
    per_gib = "-" if bill.usd_per_gib is None else usd_text(bill.usd_per_gib)
    a_month = "-" if bill.usd_per_month is None else usd_text(bill.usd_per_month)
    lines = [
        (
            f"bill      {usd_text(bill.usd)} ({bill.store_class}), {per_gib} per GiB;"
            f" {a_month} a month now"
        ),
        (
            f"          {count_text(bill.puts)} puts, {count_text(bill.puts - objects)} of them of"
            f" the log; {count_text(bill.per_shard.puts)}"
            f" ({usd_text(bill.per_shard.usd)}) if each shard uploaded for itself,"
            f" {count_text(bill.single_stream.puts)} ({usd_text(bill.single_stream.usd)}) in one"
            " stream"
        ),
    ]
    budget = bill.budget
    if budget is not None:
        lines.append(
            f"budget    {usd_text(budget.usd_per_month)} a month for puts,"
            f" {'held' if budget.holds else 'EXCEEDED'}: windows of at least"
            f" {duration_text(budget.window_ms)}, objects of {bytes_text(budget.target_bytes)}"
        )
    return lines


def _delivered(delivery: DeliveryStatus) -> list[str]:
    lines = []
    if delivery.p50_ms is not None and delivery.p99_ms is not None:
        within = duration_text(delivery.p50_ms), duration_text(delivery.p99_ms)
        writes = count_text(delivery.deliveries)
        lines.append(
            f"streams   {writes} writes; from the commit, half within {within[0]}, 99 % {within[1]}"
        )
    if delivery.lags:
        lines.append(
            f"watchers  {count_text(delivery.lagged_watchers)} have lagged and are not at the end"
            f" again; {count_text(delivery.lags)} times since the start"
        )
    return lines


def _gated(gates: list[GateStatus]) -> list[str]:
    """Those that have ever closed."""
    lines = []
    for gate in gates:
        if gate.pauses:
            times = "once" if gate.pauses == 1 else f"{count_text(gate.pauses)} times"
            if gate.paused_ms is None:
                now = "open"
            else:
                s = "" if gate.paused_shards == 1 else "s"
                now = (
                    f"closed on {count_text(gate.paused_shards)} shard{s}"
                    f" ({', '.join(gate.reasons)}) for {duration_text(gate.paused_ms)}"
                )
            lines.append(f"gate      of {gate.gate} {now}; closed {times} since the start")
    return lines


def _shard_row(shard: ShardStatus) -> list[Cell]:
    beat = shard.heartbeat_age_ms
    return [
        shard.shard,
        shard.pid,
        shard.cpu,
        shard.group,
        count_text(shard.restarts),
        None if beat is None else f"{duration_text(beat)} ago",
        bytes_text(shard.ring_used_bytes),
        bytes_text(shard.ring_bytes),
        count_text(shard.requests_acked),
        count_text(shard.records_acked),
        bytes_text(shard.bytes_acked),
    ]


def _consumed(all_: SubscriptionsStatus) -> list[str]:
    """Nothing without subscriptions; those that stand or have blocked keys by name."""
    if not all_.count:
        return []
    age_ms = all_.oldest_unfinished_ms
    oldest = f" from {duration_text(age_ms)} ago on" if age_ms else ""
    lines = [
        (
            f"consumers {count_text(all_.consumers)} in {count_text(all_.count)} subscriptions;"
            f" lag {count_text(all_.lag)}{oldest}, {count_text(all_.in_flight)} in flight,"
            f" {count_text(all_.blocked_keys)} blocked keys"
        )
    ]
    for each in all_.first:
        if each.reason or each.blocked_keys:
            blocked = f", {count_text(each.blocked_keys)} blocked keys" if each.blocked_keys else ""
            why = f": {each.reason}" if each.reason else ""
            lines.append(
                f"          {each.topic} {each.subscription} {each.state}, lag"
                f" {count_text(each.lag)}{blocked}{why}"
            )
    return lines


def _pushed(all_: PushStatus) -> list[str]:
    """Nothing without push subscriptions; those whose receivers fail or want to wait by name."""
    if not all_.count:
        return []
    took = "" if all_.p99_ms is None else f", 99 % within {duration_text(all_.p99_ms)}"
    lines = [
        (
            f"push      {count_text(all_.attempts)} POSTs of {count_text(all_.count)} subscriptions"
            f"{took}; {count_text(all_.failures)} failed; {count_text(all_.records)} records"
        )
    ]
    for each in all_.first:
        if each.mode != "normal" or each.held_ms:
            held = f", held for {duration_text(each.held_ms)}" if each.held_ms else ""
            lines.append(
                f"          {each.topic} {each.subscription} {each.mode}, {each.rate:.3g} of"
                f" {each.rate_max:g} POST/s{held}, {count_text(each.failures)} failed"
            )
    return lines


def _routed(all_: RoutersStatus) -> list[str]:
    """Nothing without routers; those that are held or stopped by name."""
    if not all_.count:
        return []
    counts = f"{count_text(all_.copied)} copied, {count_text(all_.filtered)} filtered out"
    return [
        f"routers   {count_text(all_.count)}, lag {count_text(all_.lag)}; {counts}",
        *(
            f"          {each.router} from {each.source} to {each.dest} {each.state}, lag"
            f" {count_text(each.lag)}: {each.reason}"
            for each in all_.first
            if each.state in ("held", "stopped")
        ),
    ]


def _groups(status: Status) -> str:
    shown = [
        f"{group.group} ({len(group.shards)} shard{'s' if len(group.shards) != 1 else ''})"
        for group in status.groups[:GROUPS_SHOWN_MAX]
    ]
    return ", ".join(shown) + (", ..." if len(status.groups) > GROUPS_SHOWN_MAX else "")
