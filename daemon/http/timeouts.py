"""When a connection has waited too long, and what to do then.

Connections are looked at by a coarse wheel, since a timer per request would cost more than parsing
one. A connection is put into a slot when it is accepted and stays there; each tick of the process's
one timer looks at one slot.

Pure: state and time in, decisions out; nothing here reads a clock. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from daemon.http.limits import HttpLimits
from daemon.schemas.errors import ApiError

_MS = 1_000_000


class WaitsFor(Enum):
    """What must happen next on a connection."""

    REQUEST = auto()  # nothing is under way
    HEAD = auto()  # the rest of a head
    BODY = auto()  # the rest of a body
    REFUSED_BODY = auto()  # the rest of a body that is thrown away
    APPLICATION = auto()  # an answer
    CLIENT_READS = auto()  # the client must take its answers
    CLIENT_CLOSES = auto()  # the last answer was written


class Waiting(NamedTuple):
    """``since_ns``: when this wait began; ``last_ns``: when bytes were last received."""

    what: WaitsFor
    since_ns: int
    last_ns: int
    received_bytes: int = 0


class Overdue(Enum):
    """What to do."""

    NOTHING = auto()
    REFUSE_HEAD = auto()
    REFUSE_BODY = auto()
    END = auto()  # after what was written
    CLOSE = auto()  # nothing is under way
    ABORT = auto()  # whatever is under way


def overdue(waiting: Waiting, now_ns: int, limits: HttpLimits) -> Overdue:
    """What has taken too long by ``now_ns``."""
    waited_ms = (now_ns - waiting.since_ns) // _MS
    silent_ms = (now_ns - waiting.last_ns) // _MS
    what = waiting.what
    if what is WaitsFor.REQUEST:
        return Overdue.CLOSE if waited_ms > limits.idle_timeout_ms else Overdue.NOTHING
    if what is WaitsFor.HEAD:
        return Overdue.REFUSE_HEAD if waited_ms > limits.head_timeout_ms else Overdue.NOTHING
    if what is WaitsFor.BODY:
        # Neither silence nor a byte now and then may keep space in the ring for long.
        allowed_ms = (
            limits.body_timeout_ms + waiting.received_bytes * 1000 // limits.body_bytes_per_s_min
        )
        if silent_ms > limits.body_timeout_ms or waited_ms > allowed_ms:
            return Overdue.REFUSE_BODY
        return Overdue.NOTHING
    if what is WaitsFor.REFUSED_BODY:
        return Overdue.END if silent_ms > limits.body_timeout_ms else Overdue.NOTHING
    if what is WaitsFor.CLIENT_READS:
        return Overdue.ABORT if waited_ms > limits.write_timeout_ms else Overdue.NOTHING
    if what is WaitsFor.CLIENT_CLOSES:
        return Overdue.ABORT if waited_ms > limits.linger_ms else Overdue.NOTHING
    return Overdue.NOTHING


def too_slow(part: str, timeout_ms: int) -> ApiError:
    """503, never 408: agents throw a batch away when they get 408."""
    return ApiError(
        503,
        "body_timeout",
        f"the request's {part} was sent too slowly (more than {timeout_ms} ms); nothing was stored,"
        " send it again",
        {"timeout_ms": timeout_ms},
        retry_after_s=1,
        close=True,
    )


Member = TypeVar("Member")


class Wheel(Generic[Member]):
    """Members, spread evenly over ``slots``."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a wheel needs at least one slot, got {slots}")
        self._slots: list[dict[Member, None]] = [{} for _ in range(slots)]
        self._place: dict[Member, int] = {}
        self._next_place = 0
        self._next_turn = 0

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._place))

    def add(self, member: Member) -> None:
        """Puts a new member into a slot. Raises ValueError if it is there already."""
        if member in self._place:
            raise ValueError("the member is on the wheel already")
        place = self._next_place
        self._next_place = (place + 1) % len(self._slots)
        self._place[member] = place
        self._slots[place][member] = None

    def remove(self, member: Member) -> None:
        """Takes a member off, if it is there."""
        place = self._place.pop(member, None)
        if place is not None:
            del self._slots[place][member]

    def turn(self) -> list[Member]:
        """The members of the next slot; a copy, since a check may remove them."""
        slot = self._slots[self._next_turn]
        self._next_turn = (self._next_turn + 1) % len(self._slots)
        return list(slot)
