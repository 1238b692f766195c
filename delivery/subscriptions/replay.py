"""What a dead shard left in its journal is written into the ledger, before its successor delivers.
If it has no successor because the daemon ends, the supervisor writes it, last of all.

    entries -> lots of rows, as the ledger has them -> a transaction each -> the journal is empty

After a death in between it begins again: bits are only added. A subscription that was deleted or
sought meanwhile is passed over, because its entries are of another generation. A damaged journal
gives what is before the damage; what is after it is delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from ledger.delivery import progress
from ledger.delivery.progress import ROW_BYTES, ROW_OFFSETS, SubscriptionFlush
from ledger.errors import LedgerError
from ledger.tx import WriteTx
from shards.journal import FinishedJournal, JournalDamaged, JournalEntry

log = logging.getLogger("headgate.subscriptions")

LOT_ROWS = 512  # in one transaction: about 5 ms of the ledger lock, while commits wait
PAUSE_S = 1.0  # after an error of the ledger

Lot = dict[tuple[int, int], dict[tuple[int, int], bytearray]]
"""By subscription and generation: by partition and row, the bits of finished offsets."""


class Replayed(NamedTuple):
    """What was found."""

    entries: int
    offsets: int


async def replay(
    journal: FinishedJournal,
    write: Callable[[Lot], Awaitable[object]],
    sleep_s: Callable[[float], Awaitable[object]],
) -> Replayed:
    """Writes what the journal has, and empties it; waits out errors of the ledger."""
    found = _Counter()
    try:
        for lot in lots(found.counted(journal.entries())):
            while True:
                try:
                    await write(lot)
                    break
                except LedgerError as error:
                    log.warning("acknowledgments of this shard's former process cannot be written"
                                " to the ledger, and are tried again: %s", error)  # fmt: skip
                    await sleep_s(PAUSE_S)
    except JournalDamaged as error:
        log.error("messages that were acknowledged in the last seconds may be delivered again:"
                  " in the journal of this shard, %s", error)  # fmt: skip
    journal.clear()
    if found.entries:
        log.info("%d acknowledged messages of a former process of this shard were written to the"
                 " ledger", found.offsets)  # fmt: skip
    return Replayed(found.entries, found.offsets)


def replay_last(journal: FinishedJournal, write: Callable[[Lot], object]) -> None:
    """As ``replay``, but does not wait: the journal ends with the process."""
    try:
        for lot in lots(journal.entries()):
            write(lot)
    except (LedgerError, JournalDamaged) as error:
        log.error("messages that were acknowledged in the last seconds may be delivered again:"
                  " the journal of a shard cannot be written to the ledger: %s", error)  # fmt: skip


class _Counter:
    def __init__(self) -> None:
        self.entries = 0
        self.offsets = 0

    def counted(self, entries: Iterable[JournalEntry]) -> Iterator[JournalEntry]:
        for entry in entries:
            self.entries += 1
            self.offsets += len(entry.offsets)
            yield entry


def lots(entries: Iterable[JournalEntry]) -> Iterator[Lot]:
    """Entries as rows; a lot has LOT_ROWS, or the rows of one entry more."""
    lot: Lot = {}
    count = 0
    try:
        for entry in entries:
            rows = lot.setdefault((entry.subscription_id, entry.generation), {})
            before = len(rows)
            for offset in entry.offsets:
                row, bit = divmod(offset, ROW_OFFSETS)
                bits = rows.get((entry.partition, row))
                if bits is None:
                    bits = rows[entry.partition, row] = bytearray(ROW_BYTES)
                bits[bit >> 3] |= 1 << (bit & 7)
            count += len(rows) - before
            if count >= LOT_ROWS:
                yield lot
                lot, count = {}, 0
    except JournalDamaged:
        if lot:
            yield lot
        raise
    if lot:
        yield lot


def add(tx: WriteTx, lot: Lot) -> None:
    """Adds a lot to what is finished, except what is below the floors already."""
    flushes = []
    for (subscription_id, generation), rows in lot.items():
        there = progress.state_of(tx, subscription_id)
        if there is None or there.generation != generation:
            continue
        partitions = {partition for partition, _ in rows}
        floors = [each for each in there.floors.items() if each[0] in partitions]
        kept = [(*key, bytes(bits)) for key, bits in sorted(rows.items())]
        flushes.append(SubscriptionFlush(subscription_id, generation, there.epoch, floors, kept))
    progress.flush(tx, flushes)
