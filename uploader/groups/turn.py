"""When a group uploads, splits, merges, and whose turn it is: decisions only.

Plain values in, a decision out; the same code runs in the daemon, in tests under a virtual clock
and in the simulation. Times are nanoseconds of one monotonic clock, sizes are bytes.

Vocabulary: the *window* is how long the oldest pending request may wait. A group is *idle* when
its last pull is a window or more before that request's arrival: then the request goes at once.
*Hysteresis* is how long a group's map must have been unchanged before it changes again, and how
long both buddies must have been empty before they merge. A group counts as *empty* while no pull
finds a whole object (``object_bytes_target``) in it and none is pending: what each window brings
goes out by age and leaves nothing behind. (Literally empty is what no group is under a steady
light load; buddies would stay apart for ever and upload a small object each in every window, see
docs/decisions/0003.) *Grace* is how much longer than the window a turn-holder may dawdle before
any member takes the turn.

It takes no lock, reads no clock and no shared memory: a decision made on stale words is checked
again under the lock by its executor (uploader/groups/puller.py).
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

NEVER = (1 << 63) - 1

# At windows of a millisecond two windows are shorter than a hiccup of the machine; a group that
# changes more than ten times a second gains nothing.
HYSTERESIS_NS_MIN = 100_000_000
# One window is the seed's promise for a dead turn-holder; below 5 ms it would be the scheduler's
# latency of a busy core that takes the turn away.
GRACE_NS_MIN = 5_000_000


class Policy(Struct, frozen=True):
    """What of the configuration the decisions need."""

    object_bytes_target: int = 4 << 20
    hysteresis_windows: int = 2

    def hysteresis_ns(self, window_ns: int) -> int:
        """At least two windows between two changes of a group."""
        return max(self.hysteresis_windows * window_ns, HYSTERESIS_NS_MIN)


class GroupView(Struct, frozen=True):
    """A group as one of its members sees it."""

    me: int
    leader: int
    members: int
    turn: int
    backlog_bytes: int
    oldest_arrival_ns: int
    last_pull_ns: int
    last_change_ns: int
    window_ns: int
    free_slots: int
    can_split: bool


class Do(Enum):
    """What a member does next."""

    IDLE = "idle"  # nothing is pending
    WAIT = "wait"  # look again at ``at_ns``
    PULL = "pull"
    SPLIT = "split"  # halve the group, then pull
    TAKE_TURN = "take_turn"  # the holder let its time pass: take the turn and pull
    PASS_TURN = "pass_turn"  # due, but no lease slot is free here
    WAKE = "wake"  # due, and it is another member's turn: wake it, look again at ``at_ns``


class Decision(Struct, frozen=True):
    """What to do, and when to look again if nothing rings before."""

    do: Do
    at_ns: int = NEVER


def due_ns(view: GroupView, policy: Policy) -> int:
    """When the group's pending requests must be pulled."""
    if view.backlog_bytes >= policy.object_bytes_target:
        return view.oldest_arrival_ns
    if view.oldest_arrival_ns - view.last_pull_ns >= view.window_ns:
        return view.oldest_arrival_ns
    return view.oldest_arrival_ns + view.window_ns


def wants_split(view: GroupView, now_ns: int, policy: Policy) -> bool:
    """Whether the leader, on its own turn, halves its group."""
    return (
        view.me == view.leader
        and view.can_split
        and view.backlog_bytes > 2 * policy.object_bytes_target * view.members
        and now_ns - view.last_change_ns >= policy.hysteresis_ns(view.window_ns)
    )


def decide(view: GroupView, now_ns: int, policy: Policy) -> Decision:
    """What member ``view.me`` does about its group's pending requests."""
    if not view.backlog_bytes:
        return Decision(Do.IDLE)
    due = due_ns(view, policy)
    if view.turn == view.me:
        if now_ns < due:
            return Decision(Do.WAIT, due)
        if not view.free_slots:
            return Decision(Do.PASS_TURN)
        return Decision(Do.SPLIT if wants_split(view, now_ns, policy) else Do.PULL)
    stalled = due + max(view.window_ns, GRACE_NS_MIN)
    # A pull by the holder restarts its patience: what is pending behind it waits for the next.
    stalled = max(stalled, view.last_pull_ns + max(view.window_ns, GRACE_NS_MIN))
    if now_ns >= stalled:
        if view.free_slots:
            return Decision(Do.TAKE_TURN)
        return Decision(Do.WAIT, now_ns + GRACE_NS_MIN)
    if now_ns >= due:
        return Decision(Do.WAKE, stalled)
    return Decision(Do.WAIT, due)


class BuddyView(Struct, frozen=True):
    """One of two buddies, as the lower one's leader sees it when it thinks of merging.

    ``last_full_ns`` is its last pull that found a whole object's bytes.
    """

    backlog_bytes: int
    last_full_ns: int
    last_change_ns: int


def merge_at_ns(low: BuddyView, high: BuddyView, window_ns: int, policy: Policy) -> int:
    """When two buddies may merge: NEVER while one has a whole object pending."""
    if max(low.backlog_bytes, high.backlog_bytes) >= policy.object_bytes_target:
        return NEVER
    last = max(low.last_full_ns, high.last_full_ns, low.last_change_ns, high.last_change_ns)
    return last + policy.hysteresis_ns(window_ns)
