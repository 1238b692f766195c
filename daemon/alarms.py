"""What each alarm means: its name for people and programs, and when it makes the daemon not ready.

Pure: segment, configuration and ``now`` in, troubles out. Who raises an alarm is said beside its
kind's meaning; how it is kept is in ``shards/alarms.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from daemon.config import Config
from shards.alarms import Alarm, AlarmKind, raised
from shards.segment import Segment


class Meaning(Struct, frozen=True):
    """``not_ready_after_ms`` None: the daemon stays ready; ``says`` begins the message."""

    name: str
    says: str
    not_ready_after_ms: Callable[[Config], int] | None


class Trouble(Struct, frozen=True):
    """One kind of alarm over all processes, as `/v0/status` shows it."""

    alarm: str
    age_ms: int
    count: int
    message: str
    not_ready: bool


def _immediately(_: Config) -> int:
    return 0


MEANINGS: dict[AlarmKind, Meaning] = {
    # a shard's uploads, the supervisor's owner thread
    AlarmKind.STORE_FAILING: Meaning("store_failing", "the store fails", lambda _: 30_000),
    # a shard's uploads
    AlarmKind.FOREIGN_OBJECT: Meaning(
        "foreign_object", "the store holds other bytes under a key of ours", _immediately
    ),
    # the supervisor, from the leases' adoptions
    AlarmKind.LEASE_STUCK: Meaning(
        "lease_stuck", "a lease cannot be committed, and all after it wait", _immediately
    ),
    # a shard's uploads
    AlarmKind.LEDGER_FAILING: Meaning("ledger_failing", "the ledger fails", lambda _: 30_000),
}


def troubles(segment: Segment, config: Config, now_ns: int) -> list[Trouble]:
    """What is wrong now, in the order of the kinds; the longest-standing row gives the text."""
    by_kind: dict[AlarmKind, list[Alarm]] = {}
    for alarm in raised(segment):
        by_kind.setdefault(alarm.kind, []).append(alarm)
    return [_trouble(kind, by_kind[kind], config, now_ns) for kind in sorted(by_kind)]


def _trouble(kind: AlarmKind, alarms: list[Alarm], config: Config, now_ns: int) -> Trouble:
    meaning = MEANINGS[kind]
    first = min(alarms, key=lambda alarm: alarm.since_ns)
    age_ms = max(0, now_ns - first.since_ns) // 1_000_000
    after = meaning.not_ready_after_ms
    return Trouble(
        alarm=meaning.name,
        age_ms=age_ms,
        count=sum(alarm.count for alarm in alarms),
        message=f"{meaning.says} for {age_ms // 1000} s: {first.text}",
        not_ready=after is not None and age_ms >= after(config),
    )
