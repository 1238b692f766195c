"""What the senders of a shard have learned, on its way to the ledger.

    note -> the next flush takes it -> kept, or offered again if the flush failed

Of each sender only the last counts, so there are as many as senders at most. It rides on the flush
of cursors: a second after a change, in the same transaction as all else that changes in a shard.
"""

from __future__ import annotations

from collections.abc import Sequence

from delivery.push.limiter import LimiterState
from ledger.delivery.push_rates import PushRate


class LearnedRates:
    """Those of one shard; called in the loop."""

    def __init__(self) -> None:
        self._noted: dict[tuple[int, int], PushRate] = {}
        self._taken: dict[tuple[int, int], PushRate] = {}

    def note(self, subscription_id: int, sender: int, state: LimiterState) -> None:
        """What a sender has learned has changed."""
        self._noted[subscription_id, sender] = PushRate(
            subscription_id, sender, int(state.mode), state.rate, state.ceiling
        )

    def learned(self) -> Sequence[PushRate]:
        """What to write now. ``kept`` follows, before the next call."""
        self._taken, self._noted = self._noted, {}
        return list(self._taken.values())

    def kept(self, *, written: bool) -> None:
        """Whether it was."""
        if not written:
            self._noted = self._taken | self._noted
        self._taken = {}
