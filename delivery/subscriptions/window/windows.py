"""What a subscription's owner calls, whatever the mode is.

The owner admits messages in the order of their offsets, takes batches for consumers that can be
written to, reads their payloads, and says what came of it. It goes around these consumers until
``take`` gives None for each: one ``take`` gives a consumer its part, not everything that waits. The
owner of a reliable window admits messages only while a consumer has room for them. The owner of one
that is not reliable admits all there are, and the window drops what no consumer has room for.

After any call the owner looks at ``take_news``, to make durable what is finished before it answers,
and at ``dead_letters``, to send those that are new. ``tick`` is due at ``next_due_ns``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.exclusive import ExclusiveWindow
from delivery.subscriptions.window.key_runs import KeyRunsWindow
from delivery.subscriptions.window.key_shared import DeliveryWindow
from delivery.subscriptions.window.policy import WindowPolicy
from delivery.subscriptions.window.shared import SharedWindow
from delivery.subscriptions.window.unreliable import UnreliableWindow
from ledger.delivery.subscription_rules import MODES, Mode

_Made = Callable[[WindowPolicy, int], SubscriptionWindow]
_OF_MODES: dict[Mode, _Made] = {
    "key_shared": DeliveryWindow,
    "shared": SharedWindow,
    "exclusive": ExclusiveWindow,
}
_PUSHED: dict[Mode, _Made] = {
    **_OF_MODES,
    "key_shared": KeyRunsWindow,
    "exclusive": partial(ExclusiveWindow, in_runs=True),
}


def window_for(
    mode: Mode,
    policy: WindowPolicy,
    epoch: int = 0,
    *,
    reliable: bool = True,
    is_pushed: bool = False,
) -> SubscriptionWindow:
    """The window of a mode. No batch has been sent with a number above ``epoch``."""
    if not reliable:
        return UnreliableWindow(policy, epoch, MODES[mode])
    return (_PUSHED if is_pushed else _OF_MODES)[mode](policy, epoch)
