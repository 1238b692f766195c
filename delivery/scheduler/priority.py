"""How urgent an entry is: manual priority or recency, plus age.

    effective = clamp(priority, -1000, 1000)   if the topic has a priority
              | recency                        if not, and it has auto_priority
              | 0                              otherwise
              + age

    recency = 500 x 2^(-idle / 30 s)           0 from 5 minutes on, and if never consumed
    age     = 100 per second waited            1000 at most

All integers: recency is rounded (a table, with an error below 1), age is rounded down. Age is not
subject to the clamp. Ages are judged at ticks of 50 ms, and a tick only raises bands.

Between two ticks age gains 5 points and recency loses less than 1 and a rounding error, so the
effective priority of a waiting entry rises until its age is at its limit; then recency cannot lose
more than 500 of the 1000. So an entry never falls into a lower band, and when it will cross into
the next one follows from what is known when it is put in.
"""

from __future__ import annotations

from delivery.ready import PriorityInputs

PRIORITY_MIN = -1000
PRIORITY_MAX = 1000

RECENCY_MAX = 500
HALF_LIFE_MS = 30_000
FLOOR_MS = 300_000

TICK_NS = 50_000_000
POINT_NS = 10_000_000  # the wait that is worth a point
AGE_MAX = 1000

# Steps of a half-life. A step loses at most 500 x (1 - 2^(-1/1024)) = 0.34, rounding 0.5.
_STEPS = 1024
_RECENCY = tuple(
    round(RECENCY_MAX * 2 ** (-step / _STEPS)) for step in range(FLOOR_MS * _STEPS // HALF_LIFE_MS)
)


def clamp(priority: int) -> int:
    """A manual priority within its range; any integer may be set."""
    return max(PRIORITY_MIN, min(PRIORITY_MAX, priority))


def recency(idle_ms: int) -> int:
    """Points of a topic that was last consumed ``idle_ms`` ago, 0 to 500."""
    if idle_ms >= FLOOR_MS:
        return 0
    # The words of other shards may be a moment ahead.
    return _RECENCY[max(0, idle_ms) * _STEPS // HALF_LIFE_MS]


def age(waited_ns: int) -> int:
    """Points for having waited, 0 to 1000."""
    return min(max(0, waited_ns) // POINT_NS, AGE_MAX)


def base(inputs: PriorityInputs, now_ns: int) -> int:
    """Points without age."""
    if inputs.priority is not None:
        return clamp(inputs.priority)
    if not inputs.auto or not inputs.consumed_ns:
        return 0
    return recency((now_ns - inputs.consumed_ns) // 1_000_000)


def effective(inputs: PriorityInputs, since_ns: int, now_ns: int) -> int:
    """Points of an entry that waits since a time."""
    return base(inputs, now_ns) + age(now_ns - since_ns)


def crossing_tick(inputs: PriorityInputs, since_ns: int, edge: int) -> int | None:
    """The first tick after ``since_ns`` at which an entry that waits since then has ``edge``
    points, more than it has then; None if it never will."""
    needed = edge - base(inputs, since_ns)
    while needed <= AGE_MAX:
        # Recency does not grow, so the points that are missing must come from age at least.
        tick = -(-(since_ns + needed * POINT_NS) // TICK_NS)
        if inputs.priority is not None or not inputs.auto or not inputs.consumed_ns:
            return tick
        at_ns = tick * TICK_NS
        missing = edge - effective(inputs, since_ns, at_ns)
        if missing <= 0:
            return tick
        needed = age(at_ns - since_ns) + missing
    return None
