"""A row group that is decoded block by block on demand, for the daemon.

A reader that takes 256 of 65,536 records should neither wait until all are decoded nor keep them
all. So the encoded bytes are kept, which are a fraction of the decoded ones, and the caller decides
which blocks to keep.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from compaction.parquet.file_bytes import LakeFileDamaged, Window
from compaction.parquet.reader import ParquetFooter, RowGroup, decoded, opened, undecodable
from compaction.parquet.rows import COLUMNS, INDEX_COLUMNS, Block, Rows, block_of, one_chunk
from uploader.stores.verified import verified

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 20  # a page of the data column; takes 1 to 2 ms to decode


def open_rows(footer: ParquetFooter, group: RowGroup) -> BlockRows:
    """A row group's bytes and its index. Raises StoreError, ObjectMissing, LakeFileDamaged."""
    return verified(
        lambda: BlockRows(footer, group, footer.fetch(group.first_byte, group.length)),
        footer.reconnect, LakeFileDamaged, footer.path,
    )  # fmt: skip


class BlockRows(Rows):
    """A row group in encoded form, whose blocks are decoded one after the other.

    Parquet pages can be skipped only by decoding them. So a later block costs the decoding of those
    between, and an earlier one that of all blocks from the first on.
    """

    def __init__(self, footer: ParquetFooter, group: RowGroup, data: bytes) -> None:
        self._footer = footer
        self._group = group
        self._data = data
        index = decoded(footer, group, Window(data, group.first_byte), COLUMNS[:INDEX_COLUMNS])
        super().__init__(footer.path, group.index, *map(one_chunk, index.columns))
        # While it decodes, it holds one page of each column.
        self.size_bytes += len(data) + min(BLOCK_BYTES, group.decoded_bytes)
        self.block_rows = max(1, group.rows * BLOCK_BYTES // max(group.decoded_bytes, BLOCK_BYTES))
        self._lock = threading.Lock()
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._next = -1  # the block that the iterator yields next; -1: there is no iterator

    def block(self, number: int) -> Block:
        """A block. Raises LakeFileDamaged if its pages are wrong, also when they are read again;
        StoreError, ObjectMissing."""
        with self._lock:
            return verified(
                lambda: self._block(number), self._fetch_again, LakeFileDamaged, self.path
            )

    def _fetch_again(self) -> None:
        self._footer.reconnect()
        self._data = self._footer.fetch(self._group.first_byte, self._group.length)

    def _block(self, number: int) -> Block:
        if not 0 <= self._next <= number:
            self._batches = self._iterator()
            self._next = 0
        at, self._next = self._next, -1  # after an error it starts over
        batch: pa.RecordBatch | None = None
        while at <= number:
            batch = next(self._batches, None)
            wanted = min(self.block_rows, len(self.offsets) - at * self.block_rows)
            if batch is None or batch.num_rows != wanted:
                raise undecodable(self._footer, self._group, f"block {at} is incomplete")
            at += 1
        assert batch is not None
        self._next = at
        return block_of(number * self.block_rows, batch.columns)

    def _iterator(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            with opened(self._footer, Window(self._data, self._group.first_byte)) as file:
                yield from file.iter_batches(
                    self.block_rows, [self._group.index], COLUMNS[INDEX_COLUMNS:],
                    use_threads=False,
                )  # fmt: skip
        except (pa.ArrowException, OSError) as error:
            raise undecodable(self._footer, self._group, str(error)) from error
