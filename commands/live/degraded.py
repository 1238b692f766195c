"""Why a daemon is degraded: the same sentences wherever its status is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commands.output import duration_text

if TYPE_CHECKING:
    from daemon.schemas.api import Status


def troubles(status: Status) -> list[str]:
    """One sentence for each; empty if it is not degraded."""
    found = [] if status.ready else ["the daemon is not ready"]
    found += [alarm.message for alarm in status.alarms]
    found += [f"shard {shard.shard} has no process" for shard in status.shards if not shard.pid]
    jump_ms = status.retention.clock_jump_ms
    if jump_ms is not None:
        found.append(
            f"the wall clock jumped {'ahead' if jump_ms > 0 else 'back'} by"
            f" {duration_text(abs(jump_ms))}: time to live evicts nothing until"
            " `headgate gc --accept-clock` accepts the new time"
        )
    return found
