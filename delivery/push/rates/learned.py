"""What the senders of a shard have learned, on its way to the ledger.

    note -> the next flush takes it -> kept, or offered again if the flush failed

Of each sender only the last counts, so there are as many as senders at most. It rides on the flush
of cursors: a second after a change, in the same transaction as all else that changes in a shard.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.delivery.push_rates import LearnedRate, SenderId


class LearnedRates:
    """The rates that one shard has learned; called in the loop."""

    def __init__(self) -> None:
        self._noted: dict[SenderId, LearnedRate] = {}
        self._taken: dict[SenderId, LearnedRate] = {}

    def note(self, subscription_id: int, sender: int, rate: LearnedRate) -> None:
        """What a sender has learned has changed."""
        self._noted[subscription_id, sender] = rate

    def learned(self) -> Mapping[SenderId, LearnedRate]:
        """What to write now. ``kept`` follows, before the next call."""
        self._taken, self._noted = self._noted, {}
        return self._taken

    def kept(self, *, written: bool) -> None:
        """Whether it was."""
        if not written:
            self._noted = self._taken | self._noted
        self._taken = {}
