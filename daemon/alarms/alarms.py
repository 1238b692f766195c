"""What each alarm means: its name for people and programs, and when it makes the daemon not ready.

Pure functions of the segment, the configuration and ``now``. A comment at each kind's meaning says
who raises it; ``shards/alarms.py`` keeps alarms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec import Struct

from daemon.alarms.standing import says, standing
from daemon.config import Config
from daemon.schemas.status import AlarmStatus, StandingStatus
from shards import layout as at
from shards.alarms import Alarm, AlarmKind, raised
from shards.segment import Segment


class Meaning(Struct, frozen=True):
    """``says`` begins the message. ``not_ready_after_ms`` is None if the daemon stays ready."""

    name: str
    says: str
    not_ready_after_ms: Callable[[Config], int] | None


def _immediately(_: Config) -> int:
    return 0


def _store_down(config: Config) -> int:
    return config.store_down_not_ready_ms


MEANINGS: dict[AlarmKind, Meaning] = {
    # a shard's uploads, the supervisor's owner thread
    AlarmKind.STORE_FAILING: Meaning("store_failing", "store failing", _store_down),
    # a shard's uploads
    AlarmKind.FOREIGN_OBJECT: Meaning(
        "foreign_object", "the store holds other bytes under a key of ours", _immediately
    ),
    # the supervisor (uploader/groups/adopt.py)
    AlarmKind.LEASE_STUCK: Meaning(
        "lease_stuck", "a lease cannot be committed, and all after it wait", _immediately
    ),
    # a shard's uploads and its following of the commits, the supervisor's owner thread
    AlarmKind.LEDGER_FAILING: Meaning("ledger_failing", "ledger failing", _store_down),
    # the supervisor's gate
    AlarmKind.DISK_SHORT: Meaning("disk_short", "disk short of space", _store_down),
    # the supervisor's gate of producers
    AlarmKind.MEMORY_SHORT: Meaning(
        "memory_short", "new requests are refused for want of memory", _store_down
    ),
    # the supervisor's upkeep thread
    AlarmKind.DEDUPE_WINDOW_SHORT: Meaning(
        "dedupe_window_short", "idempotency keys are forgotten before their window is over", None
    ),
    # the supervisor's image thread; entries go on, a recovery has more of them to read
    AlarmKind.IMAGE_FAILING: Meaning("image_failing", "image of the ledger failing", None),
    # the supervisor's billing
    AlarmKind.BUDGET_EXCEEDED: Meaning("budget_exceeded", "PUT budget exceeded", None),
    # the supervisor's governor, which takes both for full pressure
    AlarmKind.SENSOR_BROKEN: Meaning("sensor_broken", "sensors without a value", None),
    AlarmKind.SENSOR_STALE: Meaning("sensor_stale", "sensors without news", None),
    # each shard; what was read before stays in force
    AlarmKind.TOKENS_UNUSABLE: Meaning("tokens_unusable", "changes of tokens have no effect", None),
    # the supervisor; likewise
    AlarmKind.CERTIFICATE_UNUSABLE: Meaning(
        "certificate_unusable", "the new certificate is not shown", None
    ),
}


# Not a row of alarms: it is derived from the boards (``standing.py``), and is logged there.
STANDS_STILL = Meaning("stands_still", "nothing goes on although it could", None)
# Neither is this one: it is configured, and logged at the start.
INSECURE_OPEN = Meaning(
    "insecure_open", "every client that reaches the daemon may do everything", None
)
NAMES = [*(meaning.name for meaning in MEANINGS.values()), STANDS_STILL.name, INSECURE_OPEN.name]


def active(
    segment: Segment, config: Config, now_ns: int, still: list[StandingStatus] | None = None
) -> list[AlarmStatus]:
    """The alarms that are raised, one for each kind; the oldest row of a kind gives its text.
    ``still``: what stands still, if it was looked at already."""
    by_kind: dict[AlarmKind, list[Alarm]] = {}
    for alarm in raised(segment):
        by_kind.setdefault(alarm.kind, []).append(alarm)
    found = [_status(kind, by_kind[kind], config, now_ns) for kind in sorted(by_kind)]
    if still is None:
        still = standing(segment, config, now_ns)
    if still:
        found.append(_still(still))
    if config.insecure_open and config.auth_file is None:
        age_ms = (now_ns - int(segment.words[at.G_STARTED_NS])) // 1_000_000
        message = (
            f"{INSECURE_OPEN.says}: insecure_open is on and there is no auth_file; make a token"
            " with `headgate tokens create` and set auth_file"
        )
        found.append(AlarmStatus(INSECURE_OPEN.name, max(0, age_ms), 1, message, False))
    return found


def _still(standing_: list[StandingStatus]) -> AlarmStatus:
    first, count = standing_[0], len(standing_)
    others = f"; and {count - 1} more: `headgate status`" if count > 1 else ""
    message = f"{STANDS_STILL.says}{_lasting(first.age_ms)}: {says(first)}{others}"
    return AlarmStatus(STANDS_STILL.name, first.age_ms, count, message, False)


def _status(kind: AlarmKind, alarms: list[Alarm], config: Config, now_ns: int) -> AlarmStatus:
    meaning = MEANINGS[kind]
    first = min(alarms, key=lambda alarm: alarm.since_ns)
    age_ms = max(0, now_ns - first.since_ns) // 1_000_000
    after = meaning.not_ready_after_ms
    return AlarmStatus(
        alarm=meaning.name,
        age_ms=age_ms,
        count=sum(alarm.count for alarm in alarms),
        message=f"{meaning.says}{_lasting(age_ms)}: {first.text}",
        not_ready=after is not None and age_ms >= after(config),
    )


def _lasting(age_ms: int) -> str:
    """Of what has just begun nothing, rather than 0 s."""
    return f" for {age_ms // 1000} s" if age_ms >= 1000 else ""


LOG_AGAIN_NS = 60_000_000_000
# An alarm that comes and goes (a store that takes one PUT in ten) counts as one that lasts.
OVER_AFTER_NS = 3_000_000_000


class _Told:
    """An alarm that was logged."""

    def __init__(self, status: AlarmStatus, now_ns: int) -> None:
        self.since_ns = now_ns - status.age_ms * 1_000_000
        self.told_ns = self.seen_ns = now_ns
        self.message, self.age_ms = status.message, status.age_ms
        self.passed = 0  # counts of an alarm that was cleared and raised again
        self.count = self.told_count = status.count

    def see(self, status: AlarmStatus, now_ns: int) -> None:
        if status.age_ms <= self.age_ms:
            self.passed += self.count
        self.count, self.age_ms = status.count, status.age_ms
        self.seen_ns = now_ns
        self.message = status.message

    @property
    def total(self) -> int:
        return self.passed + self.count

    @property
    def times(self) -> str:
        return f", {self.total} times" if self.total > 1 else ""


class AlarmLog:
    """Log lines about alarms: when one begins, once a minute while it lasts, when it is over."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def lines(self, active: Iterable[AlarmStatus], now_ns: int) -> list[tuple[int, str]]:
        """The lines that are due, with their levels."""
        found: list[tuple[int, str]] = []
        for status in active:
            if status.alarm in (STANDS_STILL.name, INSECURE_OPEN.name):
                continue
            told = self._told.get(status.alarm)
            if told is None:
                self._told[status.alarm] = _Told(status, now_ns)
                see = f"docs/operations.md#{status.alarm}"
                found.append((logging.ERROR, f"{status.message} ({see})"))
                continue
            told.see(status, now_ns)
            if now_ns - told.told_ns >= LOG_AGAIN_NS:
                more = told.total - told.told_count
                found.append((logging.ERROR, f"{told.message}{told.times}, {more} of them new"))
                told.told_ns, told.told_count = now_ns, told.total
        for alarm, told in [*self._told.items()]:
            if now_ns - told.seen_ns >= OVER_AFTER_NS:
                del self._told[alarm]
                lasted_s = (told.seen_ns - told.since_ns) // 1_000_000_000
                found.append((logging.WARNING, f"{alarm} is over after {lasted_s} s{told.times}"))
        return found
