"""Subscriptions and their keys as text for people."""

from __future__ import annotations

from commands.figures import figure_lines
from commands.output import (
    Cell,
    count_text,
    counted_text,
    duration_text,
    printable,
    table,
    time_text,
)
from commands.pushing.texts import push_lines, senders_text
from commands.shell.filters import filter_text
from daemon.schemas.subscriptions import SubscriptionStatus, SubscriptionSummary
from delivery.subscriptions.schemas import (
    BlockedKey,
    KeyState,
    PartitionProgress,
    RepairedMessages,
    ResentMessage,
)
from shards.boards.figures import SubscriptionCounts


def list_text(found: list[SubscriptionSummary]) -> str:
    """A row for each subscription."""
    rows = [
        [
            each.topic, each.subscription, each.config.mode, each.state, count_text(each.lag),
            count_text(each.in_flight), count_text(each.blocked_keys), count_text(each.consumers),
            _age_text(each.oldest_unacknowledged_ms),
        ]
        for each in found
    ]  # fmt: skip
    head = ("topic", "subscription", "mode", "state", "lag", "in flight", "blocked", "consumers",
            "oldest")  # fmt: skip
    return table(head, rows)


def created_text(made: SubscriptionSummary) -> str:
    """A subscription that was created."""
    return "\n".join(
        [f"subscription {made.subscription} of {made.topic}", "", progress_text(made.partitions)]
    )


def show_text(state: SubscriptionStatus) -> str:
    """All of a subscription."""
    config = state.config
    rules = [f"{config.mode} by key or node" if config.takes_nodes else config.mode]
    if not config.reliable:
        rules.append("not reliable")
    if config.paused:
        rules.append("paused")
    if config.reliable:
        letters = f" to {config.dead_letter_topic}" if config.poison == "dead_letter" else ""
        rules.append(f"after {config.redeliveries_max} redeliveries {config.poison}{letters}")
        rules.append(f"time-out {duration_text(config.ack_timeout_ms)}")
    lines = [f"subscription {state.subscription} of {state.topic}", f"  {', '.join(rules)}"]
    if config.filter is not None:
        lines.append(f"  only {filter_text(config.filter)}")
    if config.paused_because:
        lines.append(f"  paused by the daemon: {config.paused_because}")
    if state.held:
        lines.append(f"  held: {state.held}")
    if state.blocked_letters:
        lines.append(f"  blocked letters: {state.blocked_letters}")
    lines += push_lines(state)
    lines += figure_lines(state, "  ", SubscriptionCounts.__struct_fields__)
    lines += [
        f"  missing: {gap.gap_from} to {gap.gap_to} of partition {gap.partition} ({gap.reason})"
        for gap in state.gaps
    ]
    consumers = [
        [
            each.consumer, each.kind, ", ".join(each.filters) or "-", f"{each.share:.0%}",
            count_text(each.in_flight), _presence_text(each.active, each.connected),
        ]
        for each in state.consumers
    ]  # fmt: skip
    lines += ["", progress_text(state.partitions)]
    if state.push_senders:
        lines += ["", senders_text(state)]
    if consumers:
        head = ("consumer", "kind", "filters", "share", "in flight", "state")
        lines += ["", table(head, consumers)]
    if state.blocked:
        lines += ["", keys_text(state.blocked)]
    return "\n".join(lines)


def _presence_text(active: bool, connected: bool) -> str:
    return "active" if active and connected else "stands by" if connected else "away"


def progress_text(partitions: list[PartitionProgress]) -> str:
    """A row for each partition."""
    rows = [
        [str(each.partition), str(each.floor), str(each.head_seq), count_text(each.lag)]
        for each in partitions
    ]
    return table(("partition", "finished up to", "head seq", "lag"), rows)


def keys_text(found: list[BlockedKey]) -> str:
    """A row for each blocked key."""
    rows: list[list[Cell]] = [
        [
            each.key if each.key is not None else "(none)", each.partition, each.seq,
            each.attempts, time_text(each.since_ms), count_text(each.waiting), each.reason,
        ]
        for each in found
    ]  # fmt: skip
    return table(("key", "partition", "seq", "failed", "since", "waiting", "reason"), rows)


def key_text(state: KeyState) -> str:
    """One key."""
    lines = [f"key {state.key}: {state.state}" + (f", {state.reason}" if state.reason else "")]
    lines.append(f"  consumer {state.owner or '-'}")
    if state.seq is not None:
        since = "" if state.since_ms is None else f" since {time_text(state.since_ms)}"
        lines.append(f"  first message {state.seq} of partition {state.partition}{since}")
        lines.append(f"  failed {state.attempts}, waiting {count_text(state.waiting)}")
    return "\n".join(map(printable, lines))


def settled_text(found: BlockedKey | RepairedMessages | ResentMessage, what: str) -> str:
    """What has become of a message, or of many."""
    if isinstance(found, RepairedMessages):
        are = "is" if found.repaired == 1 else "are"
        text = f"{counted_text(found.repaired, 'message')} {are} {what}"
        left = counted_text(found.moving, "dead letter")
        return f"{text}; {left} on the way to the topic left alone" if found.moving else text
    of_key = "" if found.key is None else f" of key {found.key}"
    return printable(f"message {found.seq} of partition {found.partition}{of_key} is {what}")


def _age_text(milliseconds: int) -> str:
    return duration_text(milliseconds) if milliseconds else "-"
