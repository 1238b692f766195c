"""What of a status needs a look: the same wherever a status is shown."""

from __future__ import annotations

from msgspec import Struct

from commands.output import duration_text
from daemon.schemas.kafka import KafkaGroupFigures
from daemon.schemas.status import (
    GateStatus,
    PushFigures,
    RouterFigures,
    Status,
    SubscriptionFigures,
)


def needs_a_look(each: Struct) -> bool:
    """Whether a subscription, a receiver, a router or a gate is not as it should be, or a group of
    Kafka has lag."""
    match each:
        case SubscriptionFigures():
            return bool(each.reason or each.blocked_keys)
        case PushFigures():
            return each.mode != "normal" or bool(each.held_ms)
        case RouterFigures():
            return each.state in ("held", "stopped")
        case GateStatus():
            return each.pauses > 0
        case KafkaGroupFigures():
            return each.lag > 0
    return False


def troubles(status: Status) -> list[str]:
    """Why a daemon is degraded, one sentence for each reason; empty if it is not."""
    found = [] if status.ready else ["the daemon is not ready"]
    found += [f"{alarm.message} (docs/operations.md#{alarm.alarm})" for alarm in status.alarms]
    found += [f"shard {shard.shard} has no process" for shard in status.shards if not shard.pid]
    jump_ms = status.retention.clock_jump_ms
    if jump_ms is not None:
        found.append(
            f"the wall clock jumped {'ahead' if jump_ms > 0 else 'back'} by"
            f" {duration_text(abs(jump_ms))}: time to live evicts nothing until"
            " `headgate gc --accept-clock` accepts the new time"
        )
    return found
