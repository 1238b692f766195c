"""The shared segment: one memfd that the supervisor creates and every shard maps.

Lifecycle: create (supervisor) -> inherit the descriptor -> attach (shard) -> close. A segment owns
its descriptor, whether it created it or was given it, and ``close`` closes both. The kernel frees
the memory when the last process that maps it has ended; there is no name that could remain.

``multiprocessing.shared_memory`` is not used: it unlinks the segment when any process that attached
it exits. ``shards/layout.py`` says who may write which word.
"""

from __future__ import annotations

import errno
import mmap
import os

from ledger.types import LeaseId
from shards import layout as at
from shards.barrier import keep_order
from shards.layout import Layout

MADV_POPULATE_WRITE = 23  # linux/mman.h; Python does not name it


class SegmentError(RuntimeError):
    """A descriptor that is not a segment of this program's version."""


class Segment:
    """A mapped segment: ``words`` as u64 and ``data`` as bytes, over the same memory.

    ``sparse`` are the words of senders of push subscriptions, and of limits. To read one that was
    never written takes a page of memory too, so they are read only where an offer says that there
    is a sender, or a limit is set.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.fd = fd
        self.layout = layout
        self._map = mmap.mmap(fd, layout.size_bytes)
        self.data = memoryview(self._map)
        self.words = self.data[: layout.words * at.WORD_BYTES].cast("Q")
        self.sparse = self.data[layout.sparse :].cast("Q")

    @classmethod
    def create(cls, layout: Layout) -> Segment:
        """A new zeroed segment; its descriptor can be inherited by ``pass_fds``."""
        fd = os.memfd_create("headgate", os.MFD_CLOEXEC)
        os.ftruncate(fd, layout.size_bytes)
        segment = cls(fd, layout)
        segment._populate(0, layout.sparse)
        segment.words[at.G_VERSION] = at.VERSION
        segment.words[at.G_MAGIC] = at.MAGIC
        return segment

    @classmethod
    def attach(cls, fd: int, layout: Layout) -> Segment:
        """Maps a segment that another process created; the descriptor is its own from then on.
        Raises SegmentError, and then it is not."""
        size_bytes = os.fstat(fd).st_size
        if size_bytes != layout.size_bytes:
            raise SegmentError(
                f"the segment has {size_bytes} bytes, but the layout has {layout.size_bytes}"
            )
        segment = cls(fd, layout)
        found = (segment.words[at.G_MAGIC], segment.words[at.G_VERSION])
        if found != (at.MAGIC, at.VERSION):
            segment._unmap()
            raise SegmentError(f"not a segment of version {at.VERSION}: it begins with {found}")
        return segment

    def map_ring(self, shard: int) -> None:
        """Maps all pages of a ring into this process, its writer. They are there, but without this
        each costs a page fault on the first lap: 16 for a request of 64 KiB."""
        start = self.layout.ring(shard)
        begin = start - start % mmap.PAGESIZE
        self._populate(begin, start + self.layout.ring_bytes - begin)

    def _populate(self, start: int, size: int) -> None:
        """Allocates the memory now. Otherwise producers would pay a page fault per 4 KiB on the
        first lap of each ring, and a lack of memory would not show at the start."""
        try:
            self._map.madvise(MADV_POPULATE_WRITE, start, size)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel before 5.14 allocates on first touch
                raise SegmentError(
                    f"cannot allocate {self.layout.sparse >> 20} MiB of shared memory"
                    f" ({error.strerror}); lower ring_bytes or shards"
                ) from error

    def ring(self, shard: int) -> memoryview:
        """The bytes of a shard's ring."""
        start = self.layout.ring(shard)
        return self.data[start : start + self.layout.ring_bytes]

    def journal(self, shard: int) -> memoryview:
        """The bytes of a shard's journal."""
        start = self.layout.journal(shard)
        return self.data[start : start + self.layout.journal_bytes]

    def next_lease_id(self, shard: int) -> LeaseId:
        """A lease id that was never used; only the loop of ``shard`` itself may call this."""
        epoch = self.follow_epoch(shard)
        index = self.layout.shard(shard) + at.S_LEASE_COUNTER
        counter = self.words[index] + 1
        self.words[index] = counter
        return LeaseId(self.words[at.G_INCARNATION], epoch, shard, counter)

    def follow_epoch(self, shard: int) -> int:
        """Notes that a shard's next leases have the present epoch; by its loop, between leases.

        Its leases of earlier epochs are in their slots by then, so a reader of this word first and
        the slots second misses none (``LeaseTable.oldest_epoch``).
        """
        epoch = int(self.words[at.G_EPOCH])
        index = self.layout.shard(shard) + at.S_EPOCH
        if self.words[index] != epoch:
            keep_order()
            self.words[index] = epoch
        return epoch

    def close(self) -> None:
        """Unmaps the segment and closes its descriptor, once. Views that still exist keep the
        memory until they are gone."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self._unmap()

    def _unmap(self) -> None:
        self.words.release()
        self.sparse.release()
        self.data.release()
        try:
            self._map.close()
        except BufferError:
            return  # a view of a ring still exists; the mapping ends with the process
