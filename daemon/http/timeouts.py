"""When a connection has waited too long, and what to do then.

Pure functions of state and time. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

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
