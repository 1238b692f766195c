"""What standbys and owners say of each other in their status."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shards.boards.figures import figure


class StandbyFigures(Struct, frozen=True):
    """What a standby knows of its owner."""

    able: Annotated[bool, figure("whether it could take over now")]
    trouble: Annotated[str, figure("why it could not; empty otherwise")]
    owner: Annotated[str | None, figure("whose log it follows; null: nobody has owned the prefix")]
    commits: Annotated[int, figure("commits in its ledger")]
    entries: Annotated[int, figure("entries of the owner's log that it has applied")]
    behind_ms: Annotated[int, figure("since it has found nothing new in the owner's log")]
    silent_ms: Annotated[int, figure("for how long the owner has shown no sign of life")]
    answered_ms: Annotated[int | None, figure("since the owner last answered it")]


class StandbyStatus(Struct, frozen=True):
    """The status of a standby, which has no shards."""

    version: str
    uptime_s: int
    standby: StandbyFigures
    ready: bool = False


class StandbysStatus(Struct, frozen=True):
    """The standbys that have asked for this owner lately. One that cannot write, or has not caught
    up, asks nothing."""

    known: Annotated[int, figure("standbys that have asked lately", "headgate_standbys")] = 0
    seen_ms: Annotated[int | None, figure("since one asked last; null: never")] = None
    commits: Annotated[
        int, figure("commits in the ledger of the best standby", "headgate_standbys_commits")
    ] = 0
