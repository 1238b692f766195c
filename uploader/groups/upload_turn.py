"""When a group uploads, splits and merges, and whose turn it is: decisions only.

Functions of plain values; the same code runs in the daemon, in tests under a virtual clock and in
the simulation. Times are nanoseconds of one monotonic clock, sizes are bytes.

Vocabulary:

- The *window* is how long the oldest pending request may wait.
- A group is *idle* if its last pull was a window or more before that request arrived; then the
  request is pulled immediately.
- A request that *waits* (a router's copy) makes no group due before it has waited a window, idle or
  not: a PUT for the copy alone would double the PUTs of an idle topic. A request that does not wait
  takes the waiting ones along.
- An *urgent* request has too little time to wait for a window (``uploader/groups/urgent.py``).
- *Hysteresis* is how long a group must have been unchanged before it changes again, and how long
  both buddies must have been empty before they merge.
- A group is *empty* while no pull finds a whole object (``object_bytes_target``) in it and none is
  pending: everything is uploaded by age. Under a steady light load no group is ever literally
  empty, so buddies would never merge, and would upload one small object each in every window
  (docs/decisions/0003).
- *Grace* is how much longer than the window the holder of the turn may delay before another member
  takes the turn.

This module takes no lock and reads neither clocks nor shared memory. A decision that was made on
stale words is carried out only if, under the lock, the map and the turn are those that it was made
for (uploader/groups/puller.py).
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

NEVER = (1 << 63) - 1

# With windows of a millisecond, two of them are shorter than a hiccup of the machine, and a group
# gains nothing from changing more than ten times a second.
HYSTERESIS_NS_MIN = 100_000_000
# A dead holder of the turn may delay its group by one window. Below 5 ms the scheduler's latency on
# a busy core would already take the turn away.
GRACE_NS_MIN = 5_000_000


class Policy(Struct, frozen=True):
    """The part of the configuration that the decisions need."""

    object_bytes_target: int = 4 << 20
    hysteresis_windows: int = 2

    def hysteresis_ns(self, window_ns: int) -> int:
        """At least two windows between two changes of a group."""
        return max(self.hysteresis_windows * window_ns, HYSTERESIS_NS_MIN)


class GroupView(Struct, frozen=True):
    """A group as one of its members sees it.

    ``oldest_arrival_ns`` is of the requests that do not wait, ``oldest_waits_ns`` of those that do;
    NEVER if none is pending. ``urgent_ns`` is when the group is due whatever its window.
    """

    me: int
    leader: int
    members: int
    upload_turn: int
    backlog_bytes: int
    oldest_arrival_ns: int
    last_pull_ns: int
    last_change_ns: int
    window_ns: int
    free_slots: int
    can_split: bool
    oldest_waits_ns: int = NEVER
    urgent_ns: int = NEVER


class UploadAction(Enum):
    """What a member does next."""

    IDLE = "idle"  # nothing is pending
    WAIT = "wait"  # look again at ``at_ns``
    PULL = "pull"
    SPLIT = "split"  # halve the group, then pull
    TAKE_TURN = "take_turn"  # the holder is too late: take the turn and pull
    PASS_TURN = "pass_turn"  # due, but no lease slot is free here
    WAKE = "wake"  # due, and it is another member's turn: wake it, look again at ``at_ns``


class UploadDecision(Struct, frozen=True):
    """What to do, and when to look again unless a bell rings before."""

    do: UploadAction
    at_ns: int = NEVER


def due_ns(view: GroupView, policy: Policy) -> int:
    """When the group's pending requests must be pulled."""
    oldest_ns, waits_ns = view.oldest_arrival_ns, view.oldest_waits_ns
    if view.backlog_bytes >= policy.object_bytes_target:
        return min(oldest_ns, waits_ns)
    if NEVER > oldest_ns >= view.last_pull_ns + view.window_ns:
        return min(oldest_ns, waits_ns + view.window_ns)
    return min(min(oldest_ns, waits_ns) + view.window_ns, view.urgent_ns)


def wants_split(view: GroupView, now_ns: int, policy: Policy) -> bool:
    """Whether the leader, on its own turn, halves its group."""
    return (
        view.me == view.leader
        and view.can_split
        and view.backlog_bytes > 2 * policy.object_bytes_target * view.members
        and now_ns - view.last_change_ns >= policy.hysteresis_ns(view.window_ns)
    )


def decide(view: GroupView, now_ns: int, policy: Policy) -> UploadDecision:
    """What member ``view.me`` does about its group's pending requests."""
    if not view.backlog_bytes:
        return UploadDecision(UploadAction.IDLE)
    due = due_ns(view, policy)
    if view.upload_turn == view.me:
        if now_ns < due:
            return UploadDecision(UploadAction.WAIT, due)
        if not view.free_slots:
            return UploadDecision(UploadAction.PASS_TURN)
        return UploadDecision(
            UploadAction.SPLIT if wants_split(view, now_ns, policy) else UploadAction.PULL
        )
    stalled = due + max(view.window_ns, GRACE_NS_MIN)
    # A pull by the holder restarts its grace: what is pending after it waits for the next pull.
    stalled = max(stalled, view.last_pull_ns + max(view.window_ns, GRACE_NS_MIN))
    if now_ns >= stalled:
        if view.free_slots:
            return UploadDecision(UploadAction.TAKE_TURN)
        return UploadDecision(UploadAction.WAIT, now_ns + GRACE_NS_MIN)
    if now_ns >= due:
        return UploadDecision(UploadAction.WAKE, stalled)
    return UploadDecision(UploadAction.WAIT, due)


class BuddyView(Struct, frozen=True):
    """One of two buddies, as the leader of the lower one sees it when it considers a merge.

    ``last_full_ns`` is its last pull that found a whole object's bytes.
    """

    backlog_bytes: int
    last_full_ns: int
    last_change_ns: int


def merge_at_ns(low: BuddyView, high: BuddyView, window_ns: int, policy: Policy) -> int:
    """When two buddies may merge; NEVER while a whole object is pending in one of them."""
    if max(low.backlog_bytes, high.backlog_bytes) >= policy.object_bytes_target:
        return NEVER
    last = max(low.last_full_ns, high.last_full_ns, low.last_change_ns, high.last_change_ns)
    return last + policy.hysteresis_ns(window_ns)
