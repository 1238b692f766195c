"""A window of which only the look-ahead is real: for tests of what becomes of finished offsets."""

from __future__ import annotations

from collections.abc import Iterable

from delivery.subscriptions.window.look_ahead import LookAhead
from ledger.delivery.progress import ROW_BYTES, ROW_OFFSETS


def rows_of(offsets: Iterable[int]) -> list[tuple[int, bytes]]:
    """Finished offsets as the ledger has them, row by row."""
    rows: dict[int, int] = {}
    for offset in offsets:
        row, bit = divmod(offset, ROW_OFFSETS)
        rows[row] = rows.get(row, 0) | 1 << bit
    return [(row, bits.to_bytes(ROW_BYTES, "little")) for row, bits in sorted(rows.items())]


class FinishingWindow:
    """Offsets of some partitions that a test finishes by their numbers."""

    def __init__(self, partitions: int = 1, epoch: int = 0) -> None:
        self.look_aheads = {partition: LookAhead(partition, 0) for partition in range(partitions)}
        self.epoch = epoch
        self._news: dict[int, list[int]] = {}

    def finish(self, partition: int, *offsets: int) -> None:
        """As an acknowledgment does; what is not admitted yet is."""
        look_ahead = self.look_aheads[partition]
        look_ahead.add_loose(max(0, max(offsets) - look_ahead.end))
        for offset in offsets:
            if not look_ahead.is_done(offset):
                self._news.setdefault(partition, []).append(offset)
                look_ahead.finish_all((offset,))

    def take_news(self) -> dict[int, list[int]]:
        news, self._news = self._news, {}
        return news
