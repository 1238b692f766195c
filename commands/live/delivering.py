"""The lines of `top` about subscriptions: their consumers, and their senders if they push."""

from __future__ import annotations

from commands.live.degraded import needs_a_look
from commands.live.spans import Line, Span, rate_text
from commands.output import duration_text
from daemon.schemas.overview import Rates
from daemon.schemas.status import PushFigures, RouterFigures, Status, SubscriptionFigures

SUBSCRIPTIONS_SHOWN = 3
NAME_WIDTH = 24


def consumed(status: Status, rates: Rates) -> list[Line]:
    """All together, then those that need a look: up to SUBSCRIPTIONS_SHOWN, if any has a lag."""
    seen = status.subscriptions
    if not seen.count:
        return []
    oldest_ms = seen.oldest_unfinished_ms
    together: Line = [
        Span(f"{'consumers':<10}{seen.consumers:,} in {seen.count:,} subscriptions  "),
        Span(f"lag {rate_text(seen.lag)}", "bold"),
        *([Span(f" from {duration_text(oldest_ms)} ago")] if oldest_ms else []),
        *([Span(f"  {seen.held:,} held", "bold red")] if seen.held else []),
        *([Span(f"  {seen.blocked_keys:,} blocked keys", "red")] if seen.blocked_keys else []),
        Span(f"  {rate_text(rates.acknowledged)} acked/s  {rate_text(rates.consumed)} sent/s"),
    ]
    shown = [each for each in seen.first if each.lag or needs_a_look(each)]
    return [together, *map(_subscription, shown[:SUBSCRIPTIONS_SHOWN])]


def _subscription(seen: SubscriptionFigures) -> Line:
    line: Line = [
        Span(f"{'':<10}{_name(seen.topic, seen.subscription):<{NAME_WIDTH}}"),
        Span(f" lag {rate_text(seen.lag)}  {seen.consumers:,} consumers"),
    ]
    if seen.oldest_unacknowledged_ms:
        line.append(Span(f"  oldest {duration_text(seen.oldest_unacknowledged_ms)}"))
    if seen.blocked_keys:
        line.append(Span(f"  {seen.blocked_keys:,} blocked", "red"))
    if seen.state != "running":
        line.append(Span(f"  {seen.state}", "bold red" if seen.state != "paused" else ""))
        line.append(Span(f": {seen.reason}" if seen.reason else ""))
    return line


def pushed(status: Status, rates: Rates) -> list[Line]:
    """All senders together, then the receivers that fail: up to SUBSCRIPTIONS_SHOWN."""
    seen = status.push
    if not seen.count:
        return []
    took = "" if seen.p99_ms is None else f"  p99 {duration_text(seen.p99_ms)}"
    together: Line = [
        Span(f"{'push':<10}{seen.count:,} to receivers  "),
        Span(f"{rate_text(rates.attempts)} POST/s", "bold"),
        Span(f" of {rate_text(seen.rate_max)}"),
        *([Span(f"  {seen.slow:,} slow", "bold red")] if seen.slow else []),
        *([Span(f"  {rate_text(rates.failures)} failed/s", "red")] if rates.failures else []),
        Span(f"{took}  {rate_text(rates.pushed)} records/s"),
    ]
    shown = [*filter(needs_a_look, seen.first)]
    return [together, *map(_pushing, shown[:SUBSCRIPTIONS_SHOWN])]


def _pushing(seen: PushFigures) -> Line:
    line: Line = [
        Span(f"{'':<10}{_name(seen.topic, seen.subscription):<{NAME_WIDTH}}"),
        Span(f" {rate_text(seen.rate)} of {rate_text(seen.rate_max)} POST/s"),
    ]
    if seen.mode != "normal":
        line.append(Span(f"  {seen.mode}", "bold red"))
    if seen.held_ms:
        line.append(Span(f"  held for {duration_text(seen.held_ms)}"))
    return line


def routed(status: Status) -> list[Line]:
    """All routers together, then those that do not run: up to SUBSCRIPTIONS_SHOWN."""
    seen = status.routers
    if not seen.count:
        return []
    together: Line = [
        Span(f"{'routers':<10}{seen.count:,}  "),
        Span(f"lag {rate_text(seen.lag)}", "bold"),
        *([Span(f"  {seen.held:,} held", "bold red")] if seen.held else []),
        *([Span(f"  {seen.stopped:,} stopped", "bold red")] if seen.stopped else []),
        Span(f"  {rate_text(seen.copied)} copied"),
    ]
    shown = [*filter(needs_a_look, seen.first)]
    return [together, *map(_routing, shown[:SUBSCRIPTIONS_SHOWN])]


def _routing(seen: RouterFigures) -> Line:
    name = seen.router if len(seen.router) <= NAME_WIDTH else f"{seen.router[: NAME_WIDTH - 1]}…"
    return [
        Span(f"{'':<10}{name:<{NAME_WIDTH}} lag {rate_text(seen.lag)}"),
        Span(f"  {seen.state}", "bold red"),
        Span(f": {seen.reason}" if seen.reason else ""),
    ]


def _name(topic: str, subscription: str) -> str:
    name = f"{topic} {subscription}"
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"
