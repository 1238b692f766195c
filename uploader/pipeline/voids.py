"""Taking back requests that were accepted and not pulled: they become void, their space is freed.

A request whose deadline has passed is answered 503 only if no pull has taken it, and then no pull
may ever take it. So this is decided under the lock of the shard's group, as a pull is: a request
at or above ``pulled`` is in no lease, and one store makes it void (shards/ring.py). A request below
``pulled`` is on its way to the store, and its outcome is unknown.

A later lease covers the voids before it. But if no part of the ring is leased and voids come
first, there may be no later lease, since the ring may be full of voids. So ``pass_over`` moves
``pulled`` and then ``committed`` past them: no holder of a lease writes ``committed`` there, and no
lease can begin while the lock is held. A death between the two stores leaves the mark, and the
shard that finds it computes ``pulled`` again.

One per shard, used by its loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shards import layout as at
from shards.ring import RingReader, RingWriter
from shards.segment import Segment
from uploader.groups.puller import Puller

Run = tuple[int, int]  # ring positions: of a request, and of another one or head


class Voids:
    """The requests of one shard that were taken back."""

    def __init__(self, segment: Segment, puller: Puller, ring: RingWriter) -> None:
        self._words = segment.words
        base = segment.layout.shard(puller.shard)
        self._pulled_at = base + at.S_PULLED
        self._committed_at = base + at.S_COMMITTED
        self._puller = puller
        self._ring = ring
        self._reader = RingReader(segment, puller.shard)
        self._until = ring.head  # no void ends above it; a dead predecessor's may end there

    def take_back(self, choose: Callable[[int], Iterable[Run]]) -> bool:
        """Makes requests void; False if another shard holds the lock, and nothing was done.

        ``choose`` gets the end of what was pulled and returns runs at or above that.
        """
        group = self._puller.enter()
        if group is None:
            return False
        try:
            pulled = int(self._words[self._pulled_at])
            for start, end in choose(pulled):
                if start < pulled:
                    raise ValueError(
                        f"the request at {start} is already pulled: all below {pulled} are"
                    )
                self._ring.make_void(start, end)
                self._until = max(self._until, end)
            self._pass_over()
            self._puller.unmark(group)
        finally:
            self._puller.unlock(group)
        return True

    def pass_over(self) -> bool:
        """Frees the space of voids if nothing before them is leased; False: try again."""
        committed = self._words[self._committed_at]
        if self._until <= committed or committed != self._words[self._pulled_at]:
            return True
        if self._reader.void_end(committed, self._ring.head) == committed:
            return True
        return self.take_back(lambda _: ())

    def _pass_over(self) -> None:
        pulled, committed = int(self._words[self._pulled_at]), self._words[self._committed_at]
        if pulled == committed:
            end = self._reader.void_end(pulled, self._ring.head)
            if end > pulled:
                self._words[self._pulled_at] = end
                self._words[self._committed_at] = end
