"""What subscriptions hold back from eviction, on topics that ask for it.

``retain_for_subscriptions`` is a number of bytes. As long as a partition has no more than this, a
cap or the time to live evicts nothing of it that a reliable subscription has not finished with.
Beyond it the oldest records go, finished or not: a subscription without consumers fills no store.
A trim holds for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from ledger import cursors, reads
from ledger.delivery import subscriptions
from ledger.tx import ReadTx


class HeldPartitions(Struct, frozen=True):
    """The first offset of each partition that some subscription has not finished with, and up to
    how many bytes it is held."""

    unfinished_from: dict[int, int]
    bytes_max: int

    def nothing_goes(self, partition: int, earliest_seq: int, bytes_held: int) -> bool:
        """Whether a partition can be left alone, whatever its limits are."""
        first = self.unfinished_from.get(partition)
        return first is not None and first <= earliest_seq and bytes_held <= self.bytes_max

    def lowered(
        self, partition: int, target: int, bytes_held: int, kept_from: Callable[[int], int]
    ) -> int:
        """The offset up to which a partition is evicted when its limits say ``target``.

        ``kept_from`` gives the offset from which on all stays if this many bytes are too many.
        """
        first = self.unfinished_from.get(partition)
        if first is None or first >= target:
            return target
        spare = bytes_held - self.bytes_max
        return min(target, max(first, kept_from(spare) if spare > 0 else 1))


def of_topic(tx: ReadTx, topic_id: int, bytes_max: int | None) -> HeldPartitions | None:
    """What is held of a topic with this setting; None: nothing."""
    if bytes_max is None:
        return None
    reliable = [each for each in subscriptions.page(tx, topic_id) if each.config.reliable]
    if not reliable:
        return None
    partitions = [state.partition for state in reads.partition_states(tx, topic_id)]
    floors = [
        {at.partition: at.seq for at in cursors.positions(tx, each.cursor_id)} for each in reliable
    ]
    return HeldPartitions(_lowest(partitions, floors), bytes_max)


def _lowest(partitions: Iterable[int], floors: list[dict[int, int]]) -> dict[int, int]:
    return {
        partition: 1 + min(each.get(partition, 0) for each in floors) for partition in partitions
    }
