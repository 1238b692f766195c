"""What a subscription's owner calls, whatever the mode is.

The owner admits messages in the order of their offsets, takes batches for consumers that can be
written to, reads their payloads, and says what came of it. It loops over such consumers until each
``take`` gives None: one ``take`` gives a consumer its part, not all there is. If the window is not
reliable it admits all there is, whether a consumer has room or not; else not before one has.

After any call the owner looks at ``take_news``, to make durable what is finished before it answers,
and at ``dead_letters``, to send those that are new. ``tick`` is due at ``next_due_ns``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from delivery.subscriptions.window.batches import (
    Batch,
    Blocked,
    Outcome,
    Place,
    WindowCounts,
)
from delivery.subscriptions.window.blocked import WaitingLetters
from delivery.subscriptions.window.exclusive import ExclusiveWindow
from delivery.subscriptions.window.key_queue import KeyQueue
from delivery.subscriptions.window.key_runs import KeyRunsWindow
from delivery.subscriptions.window.key_shared import DeliveryWindow
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.members import Members
from delivery.subscriptions.window.policy import WindowPolicy
from delivery.subscriptions.window.resent import ResentMessages
from delivery.subscriptions.window.shared import SharedWindow
from delivery.subscriptions.window.unreliable import UnreliableWindow


class SubscriptionWindow(Protocol):
    """One subscription's messages and members. ``deliveries.py`` documents the methods."""

    is_reliable: bool
    policy: WindowPolicy
    epoch: int
    members: Members
    look_aheads: dict[int, LookAhead]
    resent: ResentMessages
    counts: WindowCounts
    dead_letters: WaitingLetters

    @property
    def in_flight(self) -> int: ...
    @property
    def batches(self) -> Mapping[int, Batch]: ...
    @property
    def stuck(self) -> Mapping[Place, Blocked]: ...
    @property
    def resting(self) -> Mapping[Place, Blocked]: ...
    @property
    def is_failing(self) -> bool: ...
    @property
    def unfinished(self) -> int: ...
    @property
    def drainable(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def held_count(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    def is_active(self, name: str) -> bool: ...
    @property
    def why_held(self) -> str: ...
    def longest_key(self) -> tuple[str, int] | None: ...
    def oldest_sent_ns(self) -> int | None: ...
    def queue_of(self, key: str) -> KeyQueue | None: ...

    def open(self, partition: int, floor: int) -> LookAhead: ...
    def admit(self, partition: int, keys: Sequence[str | None]) -> None: ...
    def admit_loose(self, partition: int, count: int) -> None: ...
    def admit_again(self, look_ahead: LookAhead, key: str | None) -> None: ...
    def pass_over(self, partition: int, count: int) -> None: ...
    def evict(self, partition: int, before: int) -> None: ...

    def join(self, name: str, patterns: Sequence[str] = ()) -> None: ...
    def leave(self, name: str) -> None: ...
    def returned(self, name: str) -> None: ...

    def room(self, name: str) -> int: ...
    def settle(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def takers(self) -> list[str]: ...
    @property
    def has_loose(self) -> bool: ...
    def take(self, name: str, count: int, now_ns: int) -> Batch | None: ...
    def sent(self, epoch: int, now_ns: int) -> None: ...
    def give_back(self, epoch: int, messages: Iterable[Place] | None = None) -> None: ...
    def missing(self, epoch: int, messages: Iterable[Place]) -> None: ...

    def ack(
        self, name: str, epoch: int, now_ns: int, messages: Iterable[Place] | None = None,
        but: Iterable[Place] = (),
    ) -> Outcome: ...  # fmt: skip
    def nack(
        self, name: str, epoch: int, now_ns: int, messages: Iterable[Place] | None = None,
        but: Iterable[Place] = (), delay_ns: int = 0, why: str = ..., is_counted: bool = True,
    ) -> Outcome: ...  # fmt: skip
    def is_finished(self, partition: int, offset: int) -> bool: ...
    def take_news(self) -> dict[int, list[int]]: ...
    def not_moved(self, place: Place) -> None: ...

    def tick(self, now_ns: int) -> list[str]: ...
    def next_due_ns(self) -> int | None: ...
    def set_policy(self, policy: WindowPolicy) -> None: ...
    def retry(self, partition: int, offset: int) -> bool: ...
    def moved(self, partition: int, offset: int) -> bool: ...
    def check_invariants(self) -> None: ...


_Made = Callable[[WindowPolicy, int], SubscriptionWindow]
_OF_MODES: dict[str, _Made] = {
    "key_shared": DeliveryWindow,
    "shared": SharedWindow,
    "exclusive": ExclusiveWindow,
}
_PUSHED: dict[str, _Made] = {
    **_OF_MODES,
    "key_shared": KeyRunsWindow,
    "exclusive": partial(ExclusiveWindow, in_runs=True),
}


def window_for(
    mode: str,
    policy: WindowPolicy,
    epoch: int = 0,
    *,
    reliable: bool = True,
    is_pushed: bool = False,
) -> SubscriptionWindow:
    """The window of a mode. No batch has been sent with a number above ``epoch``."""
    if not reliable:
        return UnreliableWindow(policy, epoch, mode)
    return (_PUSHED if is_pushed else _OF_MODES)[mode](policy, epoch)
