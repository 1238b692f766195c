"""What a shared subscription may send to whom: any message to any consumer, in no order.

    admit -> loose -> take (``deliveries.py`` has the rest)

Consumers get equal parts of what waits, as far as they have room: each ``take`` gives at most the
part of one. A message that failed rests alone; nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from delivery.subscriptions.window.batches import SentMessage
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.members import Member


class SharedWindow(SubscriptionWindow):
    """One shared subscription's messages and members."""

    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition; their keys mean nothing."""
        self.admit_loose(partition, len(keys))

    def join(self, name: str, patterns: Sequence[str] = ()) -> None:
        """A consumer is present; patterns that it had in another mode mean nothing."""
        super().join(name)

    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        return self.loose.pick(min(left, self.loose.part_of(len(self.members.by_name))))

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        offsets = [message[1] for message in messages]
        look_ahead.finish_all(offsets)
        for offset in offsets:
            self.loose.finished(look_ahead, offset)

    def _again(self, message: SentMessage) -> None:
        self.loose.again(message.look_ahead, message.offset)
