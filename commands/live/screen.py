"""The screen of `top`. Pure: a status and rates in, lines out.

It never wraps and never scrolls: what does not fit is summarized (a tree stops at the level that
fits, the busiest shards stand for all, a strip has one character per shard or per run of shards),
and in the end cut. 80 columns and 24 lines are enough for any number of shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from commands.live.delivering import consumed, pushed, routed
from commands.live.group_tree import tree_rows
from commands.live.spans import Line, Span, rate_text
from commands.output import bytes_text, duration_text, printable
from daemon.schemas.overview import Rates
from daemon.schemas.status import GroupStatus, SensorStatus, ShardStatus, Status

COLUMNS_ENDLESS = 1 << 20
BAR_WIDTH = 20
STRIP = " ▁▂▃▄▅▆▇█"
STRIP_WIDTH = 64
MEMBERS_MAX = 8  # a longer list of shards is shown as its range
STAGES = ("published", "pulled", "put", "committed", "answered")
SHARD_HEAD = (
    f"{'shard':>5} {'cpu':>4} {'busy':>5}  {'ring':<15} {'requests/s':>10} {'records/s':>10}"
    f" {'bytes/s':>9} {'conns':>5} {'streams':>7}"
)


class Size(NamedTuple):
    """Columns and lines; None: as many as it takes."""

    width: int | None
    height: int | None


class View(Struct, frozen=True):
    """What is shown: the newest status, and what must be said about it. ``keys`` is the line at the
    bottom; ``answers``: the status is that of now."""

    status: Status
    rates: Rates
    notes: list[str] = []
    keys: str = ""
    answers: bool = True


def screen(view: View, size: Size) -> list[Line]:
    """The lines, within the size."""
    columns = size.width or COLUMNS_ENDLESS
    head = [*_head(view), *_flow(view), *_pressure(view.status, columns)]
    foot: list[Line] = [[Span(view.keys, "dim")]] if view.keys else []
    if size.height is None:
        lines = [*head, [], *_tree(view.status, None), [], *_shards(view, None), *foot]
    else:
        left = max(0, size.height - len(head) - len(foot))
        body = _body(view, left)
        blank: list[Line] = [[] for _ in range(left - len(body))]
        lines = [*head[: size.height - len(foot)], *body, *blank, *foot][: size.height]
    return [_cut(line, columns) for line in lines]


def plain(lines: Sequence[Line]) -> str:
    """The text alone."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def _cut(line: Line, width: int) -> Line:
    kept: Line = []
    for span in line:
        kept.append(Span(printable(span.text[:width]), span.style))
        width -= len(span.text)
        if width <= 0:
            break
    return kept


def _body(view: View, lines: int) -> list[Line]:
    """Tree and shards in this many lines: all of both if they fit, else the tree in half."""
    tree, shards = _tree(view.status, None), _shards(view, None)
    if len(tree) + len(shards) + 2 <= lines:
        return [[], *tree, [], *shards]
    if len(tree) + len(shards) > lines:
        tree = _tree(view.status, max(1, (lines + 1) // 2, lines - len(shards)))
        shards = _shards(view, lines - len(tree))
    return [*tree, *shards][:lines]


def _head(view: View) -> list[Line]:
    status, rates = view.status, view.rates
    if view.answers:
        state = Span("ready", "green") if status.ready else Span("NOT READY", "bold red")
    else:
        state = Span("NO ANSWER", "bold red")
    over = "since the start" if rates.since_start else f"over {duration_text(rates.span_s * 1e3)}"
    uptime = duration_text(status.uptime_s * 1000) if status.uptime_s else "< 1 s"
    title: Line = [
        Span(f"headgate {status.version}", "bold"), Span("  "), state,
        Span(f"  up {uptime}, rates {over}  "),
        Span(status.store.url, "dim"),
    ]  # fmt: skip
    notes = view.notes
    more = f" (and {len(notes) - 1} more: headgate status)" if len(notes) > 1 else ""
    # The number of notes must be seen whatever the length of the first one.
    return [title, [Span(notes[0][: 79 - len(more)] + more, "bold red")] if notes else []]


def _flow(view: View) -> list[Line]:
    status, rates = view.status, view.rates
    rejected = f"{rate_text(rates.rejected)} rejected/s"
    acked: Line = [
        Span(f"{'acked':<10}"),
        Span(f"{rate_text(rates.requests)} requests/s", "bold"),
        Span(f"  {rate_text(rates.records)} records/s  {bytes_text(rates.bytes)}/s  "),
        Span(rejected, "red" if rates.rejected else ""),
    ]
    puts: Line = [
        Span(f"{'store':<10}{rate_text(rates.puts)} PUT/s"),
        Span(f"  optimum {rate_text(rates.optimum_puts)}"),
        Span(f"  {_fill(rates.object_bytes, status.object_bytes_target)}"),
        Span(f"  window {duration_text(status.window_ms)}"),
        *_bill(status),
    ]
    streams = sum(shard.streams for shard in status.shards)
    connections = sum(shard.connections for shard in status.shards)
    return [
        acked,
        [Span(f"{'latency':<10}{_latency(status)}")],
        *([[Span(f"{'p99 ms':<10}{stages}")]] if (stages := _stages(status)) else []),
        puts,
        [
            Span(
                f"{'watchers':<10}{streams:,} streams  {rate_text(rates.deliveries)} writes/s"
                f"  {connections:,} connections"
            )
        ],
        *consumed(status, rates),
        *pushed(status, rates),
        *routed(status),
    ]


def _bill(status: Status) -> Line:
    bill = status.bill
    if bill.usd_per_month is None:
        return []
    text = f"  {dollars_text(bill.usd_per_month)}"
    if bill.budget is None:
        return [Span(f"{text}/month")]
    text = f"{text} of {dollars_text(bill.budget.usd_per_month)}/mo"
    return [Span(text, "" if bill.budget.holds else "bold red")]


def _fill(object_bytes: float | None, target_bytes: int) -> str:
    if object_bytes is None or not target_bytes:
        return "fill -"
    return f"fill {object_bytes / target_bytes:.0%}"


def _latency(status: Status) -> str:
    found = []
    whole, delivered = status.latency.get("acknowledged"), status.delivery
    if whole is not None and whole.p50_ms is not None:
        found.append(_quantiles("acknowledged", whole.p50_ms, whole.p99_ms))
    if delivered.p50_ms is not None:
        found.append(_quantiles("streamed", delivered.p50_ms, delivered.p99_ms))
    return "   ".join(found) or "-"


def _quantiles(name: str, p50_ms: float | None, p99_ms: float | None) -> str:
    return f"{name} p50 {duration_text(p50_ms)}, p99 {duration_text(p99_ms)}"


def _stages(status: Status) -> str:
    """The 99th percentile of each stage."""
    found = [
        f"{name} {rate_text(stage.p99_ms)}"
        for name in STAGES
        if (stage := status.latency.get(name)) is not None and stage.p99_ms is not None
    ]
    return "  ".join(found)


def _pressure(status: Status, columns: int) -> list[Line]:
    pressure = status.pressure
    rungs = ", ".join(reversed(pressure.rungs)) or "none"
    level: Line = [
        Span(f"{'pressure':<10}"),
        Span(f"{pressure.level:.2f} {bar(pressure.level, BAR_WIDTH)}", _color(pressure.level)),
        Span(f"  hard {pressure.hard_level:.2f}  rungs: "),
        Span(rungs, "bold" if pressure.rungs else ""),
    ]
    return [level, *_inputs(sorted(pressure.sensors, key=lambda sensor: sensor.hard), columns)]


def _inputs(sensors: list[SensorStatus], columns: int) -> list[Line]:
    """Soft ones, then hard ones, on as many lines as they need."""
    lines: list[Line] = [[Span(f"{'inputs':<10}")]]
    used = 10
    was_hard = False
    for sensor in sensors:
        name = f"{'hard: ' if sensor.hard and not was_hard else ''}{sensor.sensor} "
        was_hard = sensor.hard
        if used + len(name) + 4 > columns:
            lines.append([Span(" " * 10)])
            used = 10
        lines[-1] += [Span(name), Span(f"{sensor.pressure:.2f}", _color(sensor.pressure))]
        lines[-1].append(Span("  "))
        used += len(name) + 6
    return lines


def _tree(status: Status, lines: int | None) -> list[Line]:
    """The groups, as many levels as fit into the lines."""
    count = len(status.shards)
    levels = 64
    rows = list(tree_rows(status.groups, count, _group, _several, levels))
    if lines is not None and len(rows) > lines:
        levels = 0
        rows = list(tree_rows(status.groups, count, _group, _several, levels))
        while True:
            deeper = list(tree_rows(status.groups, count, _group, _several, levels + 1))
            if len(deeper) > lines:
                break
            rows, levels = deeper, levels + 1
    width = max((len(name) for name, _ in rows), default=0)
    return [[Span(f"{name:<{width}}  {text}")] for name, text in rows]


def _group(group: GroupStatus) -> str:
    shards = group.shards
    if len(shards) > MEMBERS_MAX:
        members = f"{shards[0]}..{shards[-1]}, {group.turn}*"
    else:
        members = " ".join(f"{each}*" if each == group.turn else str(each) for each in shards)
    age = group.last_upload_age_ms
    ago = "never" if age is None else f"{duration_text(age)} ago"
    return f"group {group.group} [{members}]  backlog {bytes_text(group.backlog_bytes)}, put {ago}"


def _several(groups: list[GroupStatus]) -> str:
    sizes = sorted({len(group.shards) for group in groups})
    of = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    backlog = sum(group.backlog_bytes for group in groups)
    return f"{len(groups)} groups of {of}, backlog {bytes_text(backlog)}"


def _shards(view: View, lines: int | None) -> list[Line]:
    """A line per shard if they fit, else strips over all and the busiest ones."""
    shards = view.status.shards
    head: Line = [Span(SHARD_HEAD, "bold")]
    if lines is None or len(shards) + 1 <= lines:
        return [head, *(_shard(shard, view.rates) for shard in shards)]
    if lines < 1:
        return []
    busy = [_busy(shard, view.rates) for shard in shards]
    strips: list[Line] = [
        [
            Span(f"{'busy':<5}"),
            Span(strip(busy, STRIP_WIDTH), "cyan"),
            Span(f" most {max(busy):.0%}"),
        ],
        [
            Span(f"{'ring':<5}"),
            Span(strip([_full(shard) for shard in shards], STRIP_WIDTH), "cyan"),
            Span(f" most {max(_full(shard) for shard in shards):.0%}"),
        ],
    ]
    shown = lines - len(strips) - 1
    if shown < 1:
        return strips[:lines]
    first = sorted(shards, key=lambda shard: _rank(shard, view.rates))[:shown]
    return [*strips, head, *(_shard(shard, view.rates) for shard in first)]


def _rank(shard: ShardStatus, rates: Rates) -> tuple[bool, float, int]:
    """What is down comes first, then what is loaded most."""
    return bool(shard.pid), -max(_busy(shard, rates), _full(shard)), shard.shard


def _full(shard: ShardStatus) -> float:
    return shard.ring_used_bytes / shard.ring_bytes if shard.ring_bytes else 0.0


def _busy(shard: ShardStatus, rates: Rates) -> float:
    found = rates.shards.get(shard.shard)
    return found.busy if found is not None and found.busy is not None else 0.0


def _shard(shard: ShardStatus, rates: Rates) -> Line:
    name = f"{shard.shard:>5} {shard.cpu:>4} "
    if not shard.pid or not shard.ready:
        state = "starts" if shard.pid else "has no process"
        return [Span(name), Span(f" {state}, restart {shard.restarts}", "bold red")]
    found = rates.shards[shard.shard]
    busy = "-" if found.busy is None else f"{found.busy:.0%}"
    share = _full(shard)
    return [
        Span(name),
        Span(f"{busy:>5}", _color(found.busy or 0.0)),
        Span(f"  {bar(share, 8)}{share:>5.0%}", _color(share)),
        Span(
            f" {rate_text(found.requests):>10} {rate_text(found.records):>10}"
            f" {bytes_text(found.bytes):>9} {shard.connections:>5} {shard.streams:>7}"
        ),
    ]


def _color(share: float) -> str:
    return "green" if share < 0.4 else "yellow" if share < 0.8 else "red"


def bar(share: float, width: int) -> str:
    """``[####----]``"""
    filled = round(min(1.0, max(0.0, share)) * (width - 2))
    return f"[{'#' * filled}{'-' * (width - 2 - filled)}]"


def strip(values: Sequence[float], width: int) -> str:
    """A character per value, or per run of values with the largest of the run."""
    per = -(-len(values) // width)
    runs = [max(values[at : at + per]) for at in range(0, len(values), per)]
    top = len(STRIP) - 1
    return "".join(STRIP[min(top, max(0, -int(-value * top // 1)))] for value in runs)


def dollars_text(usd: float) -> str:
    """``$0``, ``$0.0012``, ``$43.22``, ``$120,000``."""
    if not usd:
        return "$0"
    return f"${usd:,.4f}" if usd < 0.1 else f"${usd:,.2f}" if usd < 1000 else f"${usd:,.0f}"
