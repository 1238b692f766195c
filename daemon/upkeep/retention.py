"""What retention decides by the clock: when topics are looked at, and whether the time is trusted.

Pure: times and settings in, decisions out. What is evicted, ``ledger/space/retention.py`` decides.

Vocabulary: a clock is *noted* as (boot, wall time, time since the boot). Within a boot the two must
agree; what the wall clock gained on the other is a *jump*. A jump of more than an hour stops time
to live, until an operator accepts it (protocol 7): evicted offsets never come back, and a year too
far ahead would take all there is. Caps go on.

    trusted --jump of more than JUMP_MS--> stopped --the note is gone: accepted--> trusted

Across a boot only a clock that went back is noticed: how long the machine was off, it alone can
tell. S3 refuses requests whose time is a quarter of an hour off, so there a start already fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ledger.ages import Clocks
from ledger.space.retention import limits_of
from ledger.types import Topic

JUMP_MS = 3_600_000
NOTE_MS = 600_000  # between notes: small steps of the clock never add up to a jump
RELOOK_MAX_MS = 60_000  # records may come with times of their own

CLOCK_NOTE = "clock"  # its name in the ledger's meta


class Noted(Clocks, frozen=True):
    """Two clocks at one moment. ``jump_ms`` is not 0 when time is stopped: ahead, or back if
    negative."""

    jump_ms: int = 0


_decoder = msgspec.json.Decoder(Noted)


def noted_of(text: str | None) -> Noted | None:
    """A note as the ledger keeps it; None if it is missing or cannot be read."""
    try:
        return _decoder.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def note_of(noted: Noted) -> str:
    """What the ledger keeps."""
    return msgspec.json.encode(noted).decode()


def jumped_ms(noted: Noted, now: Noted) -> int:
    """How much the wall clock gained on the other since the note; back is negative."""
    if noted.boot_id == now.boot_id:
        return (now.wall_ms - noted.wall_ms) - (now.boot_ms - noted.boot_ms)
    return min(0, now.wall_ms - noted.wall_ms)


def judge(noted: Noted | None, now: Noted) -> Noted:
    """The note to keep from now on; time to live evicts by ``now`` unless its jump is set."""
    if noted is None:
        return now
    if noted.jump_ms:
        return noted
    jump_ms = jumped_ms(noted, now)
    if abs(jump_ms) > JUMP_MS:
        return msgspec.structs.replace(noted, jump_ms=jump_ms)
    due = noted.boot_id != now.boot_id or now.boot_ms - noted.boot_ms >= NOTE_MS
    return now if due else noted


class Schedule:
    """The topics with limits, and when each may have something old by its time to live.

    When to look is counted by the clock that never jumps (``boot_ms``), what is old by the other.
    """

    def __init__(self) -> None:
        self._topics: dict[int, Topic] = {}  # a thousand bytes each, as many as have limits
        self._due_ms: dict[int, int] = {}  # since the boot

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def has_times(self) -> bool:
        """Whether any topic has a time to live."""
        return bool(self._due_ms)

    def changed(self, topic: Topic) -> None:
        """Takes a topic as it is now, or that it is deleted."""
        limits = limits_of(topic.config)
        self._topics.pop(topic.topic_id, None)
        self._due_ms.pop(topic.topic_id, None)
        if topic.deleted_ms is None and limits.any:
            self._topics[topic.topic_id] = topic
            if limits.ttl_ms is not None:
                self._due_ms[topic.topic_id] = 0

    def turn(self, boot_ms: int, *, by_time: bool) -> Iterator[tuple[Topic, bool]]:
        """All topics with limits, each with whether to look by time: not while nothing can be old.

        Without ``by_time``, for time is stopped, caps alone are looked at.
        """
        for topic_id, topic in list(self._topics.items()):
            due_ms = self._due_ms.get(topic_id)
            if by_time and due_ms is not None and boot_ms >= due_ms:
                yield topic, True
            elif due_ms is None or topic.config.cap_records or topic.config.cap_bytes:
                yield topic, False

    def looked(self, topic: Topic, boot_ms: int, wait_ms: int, interval_ms: int) -> None:
        """A look by time: the topic's oldest piece will be old in ``wait_ms``."""
        ttl_ms = topic.config.ttl_ms
        if ttl_ms is None or topic.topic_id not in self._due_ms:
            return
        latest_ms = min(max(ttl_ms // 10, interval_ms), RELOOK_MAX_MS)
        self._due_ms[topic.topic_id] = boot_ms + max(0, min(wait_ms, latest_ms))

    def due_ms(self, topic_id: int) -> int | None:
        """When a topic is looked at by time again."""
        return self._due_ms.get(topic_id)
