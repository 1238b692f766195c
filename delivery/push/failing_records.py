"""Which failed attempts are their records' own, and which are an outage of the receiver.

A receiver that answers 500 does not say whether it has failed or the record has made it fail. The
other records do: an attempt is *its record's own* failure if POSTs of others were delivered before
and after it, and none failed in between. In an outage others fail as well, so it counts against
nobody.

    a record fails, after one was delivered -> the next one that ends is delivered: it is *known*
    -> the record fails again: the attempt that is known counts

- So an attempt counts when the next one of its record fails, and the last attempts never do if
  nothing else is sent.
- Failures of records that have failed before do not matter to others: several records that make a
  receiver fail come again together.
- An answer that is about the receiver (429, a refused connection) is never the record's own, and
  is evidence against all that failed before it.
- Of several records in a POST it is unknown whose failure it is: if it is known, the halves are
  sent, and one alone counts if something was delivered since.

Pure. Bounds: TRIES_MAX records, at 200 bytes each; of more, the oldest are as if they were new.
"""

from __future__ import annotations

from collections.abc import Sequence

from delivery.subscriptions.window.batches import Place

TRIES_MAX = 2_000


class _Tried:
    """A record that failed, and has not been delivered since."""

    __slots__ = ("is_halved", "known_at")

    def __init__(self) -> None:
        self.known_at: int | None = None  # an attempt is known to be its own since; None: none is
        self.is_halved = False  # since it was known


class FailingRecords:
    """The failing records of one sender."""

    def __init__(self) -> None:
        self._tried: dict[Place, _Tried] = {}
        self._delivered = 0  # POSTs
        self._is_up = False  # the last POST of records that had not failed before was delivered
        self._open: dict[Place, None] = {}  # failed since; known if the next POST is delivered

    def clear(self) -> None:
        """Nothing that was tried so far counts."""
        self._tried.clear()
        self._open.clear()
        self._is_up = False

    def delivered(self, places: Sequence[Place]) -> None:
        """A POST with these records was delivered."""
        if self._tried:
            for place in places:
                self._tried.pop(place, None)
            for place in self._open:
                tried = self._tried.get(place)
                if tried is not None and tried.known_at is None:
                    tried.known_at = self._delivered
            self._open.clear()
        self._delivered += 1
        self._is_up = True

    def failed(self, places: Sequence[Place], *, may_be_theirs: bool) -> bool:
        """A POST with these records failed. Whether an attempt of theirs counts now; of several
        records, whether the halves are to be sent."""
        known = [tried for place in places if (tried := self._tried.get(place)) is not None]
        is_theirs = may_be_theirs and self._is_known(known, is_alone=len(places) == 1)
        for place in places:  # the last ones are those that were tried last
            self._tried[place] = self._tried.pop(place) if place in self._tried else _Tried()
        while len(self._tried) > TRIES_MAX:
            del self._tried[next(iter(self._tried))]
        if known and may_be_theirs:
            if self._is_up:
                self._open.update(dict.fromkeys(places))
        else:
            self._open = dict.fromkeys(places) if self._is_up and may_be_theirs else {}
            self._is_up = False
        return is_theirs

    def _is_known(self, tried: Sequence[_Tried], *, is_alone: bool) -> bool:
        known = [each for each in tried if each.known_at is not None]
        if is_alone:
            is_theirs = any(self._delivered > (each.known_at or 0) for each in known)
            for each in known:
                each.is_halved = False
                each.known_at = None if is_theirs else each.known_at
            return is_theirs
        for each in known:
            if not each.is_halved:
                each.is_halved, each.known_at = True, self._delivered
        return bool(known)
