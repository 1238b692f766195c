"""Which window a subscription has, by its settings, and where it begins.

A seek, another mode or filter, and other keys give a subscription another window; consumers stay,
and what they had is not theirs any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import NEVER_NS, WindowPolicy
from delivery.subscriptions.window.key_shared import KeyRunsWindow, KeySharedWindow
from delivery.subscriptions.window.unkeyed import ExclusiveWindow, SharedWindow
from delivery.subscriptions.window.unreliable import UnreliableWindow
from ledger.delivery.progress import SubscriptionProgress
from ledger.delivery.subscription_rules import MODES, Mode
from ledger.delivery.subscriptions import SubscriptionConfig, SubscriptionView

_Made = Callable[[WindowPolicy, int], SubscriptionWindow]
_OF_MODES: dict[Mode, _Made] = {
    "key_shared": KeySharedWindow,
    "shared": SharedWindow,
    "exclusive": ExclusiveWindow,
}
_PUSHED: dict[Mode, _Made] = {
    **_OF_MODES,
    "key_shared": KeyRunsWindow,
    "exclusive": partial(ExclusiveWindow, in_runs=True),
}


def policy_of(config: SubscriptionConfig) -> WindowPolicy:
    """What the window needs of the settings."""
    low_ms, high_ms = config.backoff_ms
    in_flight_max, ack_timeout_ns = config.window_max, config.ack_timeout_ms * 1_000_000
    run_max = 1
    if config.push is not None:
        # Messages rest while a receiver fails. So their number, which BLOCKED_BYTES is for each, is
        # what the senders may have; they are there as long as their streams, and wait for the rate.
        in_flight_max = min(in_flight_max, config.push.senders * config.consumer_max)
        ack_timeout_ns = NEVER_NS
        run_max = config.push.batch_max if config.push.format == "batch" else 1
    return WindowPolicy(
        in_flight_max=in_flight_max,
        member_max=config.consumer_max,
        ack_timeout_ns=ack_timeout_ns,
        redeliveries_max=config.redeliveries_max,
        backoff_min_ns=low_ms * 1_000_000,
        backoff_max_ns=high_ms * 1_000_000,
        poison=config.poison,
        unmatched=config.unmatched,
        run_max=run_max,
    )


def kind_of(config: SubscriptionConfig) -> tuple[object, ...]:
    """What decides which window a subscription has, and by which keys."""
    return config.mode, config.takes_nodes, config.reliable, config.push is not None


def window_for(
    mode: Mode,
    policy: WindowPolicy,
    epoch: int = 0,
    *,
    reliable: bool = True,
    is_pushed: bool = False,
) -> SubscriptionWindow:
    """The window of a mode, without partitions. No batch has been sent with a number above
    ``epoch``."""
    if not reliable:
        return UnreliableWindow(policy, epoch, MODES[mode])
    return (_PUSHED if is_pushed else _OF_MODES)[mode](policy, epoch)


def _window(config: SubscriptionConfig, epoch: int) -> SubscriptionWindow:
    return window_for(
        config.mode,
        policy_of(config),
        epoch,
        reliable=config.reliable,
        is_pushed=config.push is not None,
    )


def window_after(
    view: SubscriptionView,
    known: SubscriptionProgress,
    epoch: int,
    head: Callable[[tuple[int, int]], int | None],
) -> SubscriptionWindow:
    """A window that goes on after what is ``known`` to be finished; no members. ``head`` gives a
    partition's last committed offset, if it is known."""
    config = view.subscription.config
    window = _window(config, epoch)
    for partition, (_, state) in enumerate(view.partitions):
        floor = known.floors.get(partition, 0)
        if not config.reliable:  # what came while nobody could listen is not for anybody
            floor = head((view.topic.topic_id, partition)) or state.head_seq
        window.open(partition, floor)
    if config.reliable:
        for partition, row, bits in known.rows:
            window.look_aheads[partition].restore(row, bits)
    return window


def moved_over(view: SubscriptionView, former: SubscriptionWindow) -> SubscriptionWindow:
    """A window of another kind or filter, which goes on where the former one is; no members."""
    window = _window(view.subscription.config, former.epoch)
    for partition, look_ahead in former.look_aheads.items():
        opened = window.open(partition, look_ahead.floor)
        opened.take_over(look_ahead)
    return window
