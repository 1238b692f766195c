"""Push subscriptions and exchanges with receivers as text for people."""

from __future__ import annotations

from collections.abc import Iterable

from commands.figures import figure_lines, rate_text
from commands.output import (
    Cell,
    count_text,
    counted_text,
    duration_text,
    printable,
    table,
    time_text,
)
from daemon.schemas.push import PushResumed
from daemon.schemas.subscriptions import SubscriptionStatus, SubscriptionSummary
from delivery.subscriptions.schemas import PushAttempts, PushExchange, PushHeader
from shards.clock import wall_ms


def list_text(found: list[SubscriptionSummary]) -> str:
    """A row for each push subscription."""
    rows: list[list[Cell]] = []
    for each in found:
        config, told = each.config.push, each.push
        assert config is not None  # others are not listed
        state: str = each.state
        if told is not None and state == "running":
            state = told.mode if told.held_until_ms is None else "held"
        rows.append(
            [
                each.topic, each.subscription, config.endpoint,
                state,
                rate_text(None if told is None else told.rate), rate_text(config.rate_max),
                count_text(each.lag),
                count_text(None if told is None else told.attempts),
                count_text(None if told is None else told.failures),
                duration_text(None if told is None else told.p50_ms),
            ]
        )  # fmt: skip
    head = ("topic", "subscription", "endpoint", "state", "rate", "maximum", "lag", "attempts",
            "failures", "p50")  # fmt: skip
    return table(head, rows)


def push_lines(state: SubscriptionStatus) -> list[str]:
    """Where a subscription is pushed, and what its senders do."""
    config, told = state.config.push, state.push
    if config is None:
        return []
    how = [config.format, f"at most {rate_text(config.rate_max)}/s"]
    if config.type_from is not None:
        how.append(f"type from {config.type_from}")
    if config.headers:
        how.append(f"headers {', '.join(config.headers)}")
    if config.signed:
        secrets = "secret" if config.secrets_count == 1 else "secrets"
        how.append(f"signed with {config.secrets_count} {secrets}")
    lines = [f"  pushed to {config.endpoint}", f"    {', '.join(how)}"]
    if told is None:
        return [*lines, "    nobody sends yet"]
    shown = [name for name in told.__struct_fields__ if name != "held_until_ms"]
    lines += figure_lines(told, "    ", shown)
    if told.held_until_ms is not None:
        lines.append(f"    the receiver asked for a pause: {_until_text(told.held_until_ms)}")
    return lines


def senders_text(state: SubscriptionStatus) -> str:
    """A row for each sender."""
    rows: list[list[Cell]] = [
        [
            each.shard, each.mode, rate_text(each.rate), rate_text(each.granted),
            rate_text(each.ceiling), f"{each.use:.0%}", count_text(each.attempts),
            count_text(each.failures), duration_text(each.p50_ms), duration_text(each.p99_ms),
            _until_text(each.next_attempt_ms),
        ]
        for each in state.push_senders
    ]  # fmt: skip
    head = ("shard", "mode", "rate", "share", "ceiling", "used", "attempts", "failures", "p50",
            "p99", "next attempt")  # fmt: skip
    return table(head, rows)


def exchange_text(shown: PushExchange) -> str:
    """A request and its answer, as in a protocol."""
    at = f" ({shown.address})" if shown.address else ""
    lines = [f"POST {shown.endpoint}{at}", *_headers("> ", shown.request_headers), ">"]
    lines += [f"> {line}" for line in shown.request_body.splitlines()]
    if shown.status is not None:
        lines += [f"< {shown.status}", *_headers("< ", shown.answer_headers), "<"]
        lines += [f"< {line}" for line in shown.answer_body.splitlines()]
    if shown.failure is not None:
        lines.append(f"! {shown.failure}: {shown.message}")
    waited = f", after {duration_text(shown.waited_ms)}" if shown.waited_ms >= 1 else ""
    lines.append(f"{shown.outcome}, {duration_text(shown.took_ms)}{waited}: {shown.meaning}")
    return "\n".join(map(printable, lines))


def attempts_text(shown: PushAttempts) -> str:
    """A row for each POST of a message."""
    if not shown.attempts:
        return f"no such attempts; {counted_text(shown.kept, 'attempt')} of others are kept"
    rows: list[list[Cell]] = [
        [
            time_text(each.began_ms), each.partition, each.seq, each.attempt,
            each.outcome, each.failure or each.status, duration_text(each.took_ms),
            each.message or "-",
        ]
        for each in shown.attempts
    ]  # fmt: skip
    head = ("began", "partition", "seq", "attempt", "outcome", "answer", "took", "message")
    return table(head, rows)


def resumed_text(shown: PushResumed) -> str:
    """What ``push resume`` did."""
    return f"{'resumed' if shown.was_paused else 'was not paused'}; senders are in normal mode"


def _headers(mark: str, headers: Iterable[PushHeader]) -> list[str]:
    return [f"{mark}{each.name}: {each.value}" for each in headers]


def _until_text(epoch_ms: int | None) -> str:
    if epoch_ms is None:
        return "-"
    left_ms = epoch_ms - wall_ms()
    return "now" if left_ms <= 0 else f"in {duration_text(left_ms)}"
