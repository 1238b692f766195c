"""What of a push subscription may be POSTed now, and what no more: the queue of one sender.

    add -> waits -> next (a unit: what one POST carries) -> done:    acknowledged
                                                         -> failed:  given back, returning
                                                         -> refused: bisected, until one is alone

A pure machine. A *series* is the messages that must arrive one after the other: those of a key
(``key_shared``), or of a partition (``exclusive``); in a batch they are next to each other.

* No two units that are under way have messages of one series, and of one partition the messages of
  a series go in the order of their offsets. Units under way are ``connections_max`` at most.
* A series whose delivery failed is *returning*: nothing of it is sent until the owner has answered
  the nack (``answered``). With the message that is nacked the owner takes back those after it, also
  such that it sent before it heard of the failure; what it sends later has a higher epoch.
* After ``clear`` (the stream was opened again) nothing that was queued counts. What is under way is
  *stale* until the owner sends it again: it takes the new epoch then. What is stale is neither
  acknowledged nor nacked, because the owner knows that it has to send it.
* Of a subscription that is not reliable, what fails is gone and the next message follows.

What is queued is limited by whoever reads the stream (``bytes``), as are units by the settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Generic

from delivery.push.units import M, Place, Series, Unit, is_after
from ledger.delivery.push_settings import PushSettings

COALESCING_WAIT_FACTOR = 4  # under pressure batches wait longer, so that fewer POSTs carry more
BATCH_WAIT_MAX_NS = 60_000_000_000


def _is_before(message: M, others: Iterable[M]) -> bool:
    """Whether a message is of the same partition as all others, and before them."""
    return all(is_after(other, message) for other in others)


class PushQueue(Generic[M]):
    """The messages of one sender. Times are in nanoseconds of any one clock."""

    def __init__(self, mode: str, settings: PushSettings, *, is_reliable: bool = True) -> None:
        self.settings = settings
        self.is_coalescing = False  # under pressure: batches wait longer
        self.bytes = 0
        self._mode = mode
        self._is_reliable = is_reliable
        self._known: dict[Place, M] = {}
        self._series: dict[str | int | None, Series[M]] = {}  # those that have a name
        self._ready: deque[Series[M]] = deque()  # free and with messages
        self._ready_count = 0  # of these messages
        self._ready_bytes = 0
        self._parts: deque[Unit[M]] = deque()  # of batches that were refused
        self._under_way: set[Unit[M]] = set()
        self._stale: set[Place] = set()
        self._epoch = 0  # of the last batch
        # Of series, up to which epoch the owner took back what follows; batches that were sent
        # before that may still come.
        self._taken_back: dict[str | int | None, tuple[int, list[M]]] = {}

    @property
    def messages(self) -> int:
        """How many there are, with those under way; ``bytes`` is their size."""
        return len(self._known)

    @property
    def under_way(self) -> int:
        """How many units are under way."""
        return len(self._under_way)

    # What comes

    def add(self, epoch: int, messages: Iterable[M], now_ns: int) -> None:
        """The owner has sent a batch, later than all before. What is here already takes the new
        epoch."""
        self._epoch = epoch
        if self._taken_back:
            late = self._taken_back.items()
            self._taken_back = {name: each for name, each in late if each[0] >= epoch}
        for message in messages:
            place = message.partition, message.seq
            back = self._taken_back.get(self._name_of(message)) if self._taken_back else None
            if back is not None and not _is_before(message, back[1]):
                continue
            known = self._known.get(place)
            if known is not None:
                known.epoch = epoch
                self._stale.discard(place)
                continue
            message.epoch = epoch
            self._known[place] = message
            self.bytes += message.size_bytes
            self._insert(self._series_of(message), message, now_ns)

    def _name_of(self, message: M) -> str | int | None:
        if self._mode == "exclusive":
            return message.partition
        return message.key if self._mode == "key_shared" else None

    def _series_of(self, message: M) -> Series[M]:
        name = self._name_of(message)
        if name is None:
            return Series(None)
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Series(name)
        return series

    def _insert(self, series: Series[M], message: M, now_ns: int) -> None:
        series.insert(message, now_ns)
        if series.is_listed:
            self._ready_count += 1
            self._ready_bytes += message.size_bytes
        else:
            self._list(series)

    def _list(self, series: Series[M]) -> None:
        """A series may be sent from now on, or is forgotten, or neither."""
        if not series.is_free or series.is_listed:
            return
        if series.waiting:
            series.is_listed = True
            self._ready.append(series)
            self._ready_count += len(series.waiting)
            self._ready_bytes += series.size_bytes
        elif series.name is not None and self._series.get(series.name) is series:
            del self._series[series.name]

    # What goes

    @property
    def _batch_max(self) -> int:
        return self.settings.batch_max if self.settings.format == "batch" else 1

    @property
    def _wait_ns(self) -> int:
        if self.settings.format != "batch":
            return 0
        wait_ns = self.settings.batch_wait_ms * 1_000_000
        factor = COALESCING_WAIT_FACTOR if self.is_coalescing else 1
        return min(wait_ns * factor, BATCH_WAIT_MAX_NS)

    def next(self, now_ns: int) -> Unit[M] | None:
        """What the next POST carries; it is under way then. None: nothing may be sent now."""
        if len(self._under_way) >= self.settings.connections_max:
            return None
        unit = self._next_part() or self._next_batch(now_ns)
        if unit is not None:
            self._under_way.add(unit)
            for series in unit.series:
                series.unit = unit
        return unit

    def _next_part(self) -> Unit[M] | None:
        before: set[int] = set()  # series of parts that must go first
        for part in self._parts:
            mine = {id(series): series for series in part.series}
            if not before & mine.keys() and all(each.unit is None for each in mine.values()):
                self._parts.remove(part)
                for series in mine.values():
                    series.parts -= 1
                return part
            before.update(mine)
        return None

    def _next_batch(self, now_ns: int) -> Unit[M] | None:
        due_ns = self.next_due_ns()
        if due_ns is None or due_ns > now_ns:
            return None
        pairs: list[tuple[M, Series[M]]] = []
        size, count_max = 0, self._batch_max
        while self._ready and len(pairs) < count_max:
            series = self._ready[0]
            message = series.waiting[0][0]
            if pairs and size + message.size_bytes > self.settings.batch_bytes_max:
                break
            self._unlist(self._ready.popleft())
            while series.waiting and len(pairs) < count_max:
                message = series.waiting[0][0]
                if pairs and size + message.size_bytes > self.settings.batch_bytes_max:
                    break
                series.waiting.popleft()
                series.size_bytes -= message.size_bytes
                size += message.size_bytes
                pairs.append((message, series))
        return Unit(pairs)

    def _unlist(self, series: Series[M]) -> None:
        series.is_listed = False
        self._ready_count -= len(series.waiting)
        self._ready_bytes -= series.size_bytes

    def next_due_ns(self) -> int | None:
        """When a batch that waits for more messages goes as it is. None: nothing may be sent."""
        if not self._ready or len(self._under_way) >= self.settings.connections_max:
            return None
        if (
            self._ready_count >= self._batch_max
            or self._ready_bytes >= self.settings.batch_bytes_max
        ):
            return 0
        return self._ready[0].waiting[0][1] + self._wait_ns

    # Outcomes

    def done(self, unit: Unit[M]) -> list[M]:
        """A unit was delivered; returns the messages to be acknowledged."""
        self._end(unit)
        current = [message for message in unit.messages if self._is_current(message)]
        for message in unit.messages:
            self._forget(message)
        self._free(unit.series)
        return current

    def failed(self, unit: Unit[M]) -> list[M]:
        """The receiver failed; returns the messages to be nacked, of each series one. The caller
        gives them to ``answered`` when the owner has answered."""
        self._end(unit)
        nacked: list[M] = []
        if not self._is_reliable:
            for message in unit.messages:
                self._forget(message)
            self._free(unit.series)
            return list(unit.messages)
        returning: dict[int, tuple[Series[M], list[M]]] = {}
        for message, series in zip(unit.messages, unit.series, strict=True):
            if not self._is_current(message):
                self._forget(message)
            elif series.name is None or id(series) not in returning:
                self._forget(message)
                nacked.append(message)
                series.nacked = [message]
                returning[id(series)] = series, []
            else:
                returning[id(series)][1].append(message)
        for series, after in returning.values():
            if series.name is not None:
                self._return(series, after)
        self._free(unit.series)
        return nacked

    def refused(self, unit: Unit[M]) -> list[M]:
        """The receiver does not want a record of a unit. One alone is returned, to be nacked as in
        ``failed``, counted; of several, the halves are sent again, until it is alone."""
        if len(unit.messages) == 1:
            return self.failed(unit)
        self._end(unit)
        for message in unit.messages:
            if not self._is_current(message):
                self._forget(message)
        self._insert_parts(unit.halves(self._known))
        self._free(unit.series)
        return []

    def answered(self, nacked: Iterable[M], epoch: int, refused: Collection[Place]) -> list[M]:
        """The owner has answered a nack, when ``epoch`` was its last batch; it refused some.

        Returns messages that the caller gives back, uncounted and without delay, and then to
        ``answered`` again: the owner may still take them for sent."""
        of_series: dict[int, tuple[Series[M], list[M]]] = {}
        for message in nacked:
            series = self._series.get(self._name_of(message))
            if series is not None and any(each is message for each in series.nacked):
                of_series.setdefault(id(series), (series, []))[1].append(message)
        back: list[M] = []
        for series, mine in of_series.values():
            taken = [each for each in mine if (each.partition, each.seq) not in refused]
            kept: deque[tuple[M, int]] = deque()
            left: list[M] = []
            for message, added_ns in series.waiting:
                if message.epoch > epoch or (taken and _is_before(message, taken)):
                    kept.append((message, added_ns))
                    continue
                self._forget(message)
                if not taken:
                    left.append(message)
            if taken and epoch > self._epoch:
                self._taken_back[series.name] = epoch, taken
            series.waiting = kept
            series.size_bytes = sum(message.size_bytes for message, _ in kept)
            answered = {id(each) for each in mine}
            series.nacked = [each for each in series.nacked if id(each) not in answered] + left
            back += left
            self._list(series)
        return back

    def _is_current(self, message: M) -> bool:
        return (message.partition, message.seq) not in self._stale

    def _end(self, unit: Unit[M]) -> None:
        self._under_way.remove(unit)
        for series in unit.series:
            series.unit = None

    def _free(self, all_series: Iterable[Series[M]]) -> None:
        for series in all_series:
            self._list(series)

    def _forget(self, message: M) -> None:
        place = message.partition, message.seq
        del self._known[place]
        self._stale.discard(place)
        self.bytes -= message.size_bytes

    def _return(self, series: Series[M], after: list[M]) -> None:
        """Nothing of a series is sent until the owner has answered; ``after`` was in the unit."""
        for part in [each for each in self._parts if series in each.series]:
            at = self._parts.index(part)
            left, mine = part.without(series)
            after += mine
            series.parts -= 1
            if left.messages:
                self._parts[at] = left
            else:
                del self._parts[at]
        for message in after:
            if self._is_current(message):
                series.insert(message, 0)
            else:
                self._forget(message)

    def _insert_parts(self, parts: Sequence[Unit[M]]) -> None:
        for part in reversed(parts):
            self._parts.appendleft(part)
            for series in set(part.series):
                series.parts += 1

    # Changes

    def clear(self) -> None:
        """The stream was opened again: nothing counts but what is under way, and that not before
        the owner has sent it again."""
        self._parts.clear()
        self._ready.clear()
        self._ready_count = self._ready_bytes = 0
        self._series.clear()
        self._known.clear()
        self._stale.clear()
        self._taken_back.clear()
        self._epoch = self.bytes = 0
        for unit in self._under_way:
            for message, series in zip(unit.messages, unit.series, strict=True):
                place = message.partition, message.seq
                self._known[place] = message
                self._stale.add(place)
                self.bytes += message.size_bytes
                series.waiting.clear()
                series.size_bytes = series.parts = 0
                series.nacked, series.is_listed = [], False
                if series.name is not None:
                    self._series[series.name] = series

    def set_settings(self, settings: PushSettings) -> None:
        """Other limits, from the next unit on."""
        self.settings = settings
        parts, self._parts = [*self._parts], deque()
        for part in parts:
            for series in set(part.series):
                series.parts -= 1
        self._insert_parts([piece for part in parts for piece in part.cut(self._batch_max)])

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        named = list(self._series.values())
        loose = {id(each): each for each in self._ready if each.name is None}
        everything = [*named, *loose.values()]
        waiting = [message for series in everything for message, _ in series.waiting]
        held = [*self._under_way, *self._parts]
        carried = [message for unit in held for message in unit.messages]
        places = [(message.partition, message.seq) for message in [*waiting, *carried]]
        assert len(places) == len(set(places)) and set(places) == self._known.keys()
        assert self.bytes == sum(message.size_bytes for message in self._known.values())
        assert self._stale <= {(m.partition, m.seq) for u in self._under_way for m in u.messages}
        seen: set[int] = set()
        for unit in self._under_way:
            mine = {id(series) for series in unit.series}
            assert not mine & seen and all(series.unit is unit for series in unit.series)
            seen |= mine
        for series in everything:
            assert series.is_listed == (series.is_free and bool(series.waiting))
            assert series.is_listed == (series in self._ready)
            assert series.size_bytes == sum(each.size_bytes for each, _ in series.waiting)
            assert series.parts == sum(series in part.series for part in self._parts)
            order = [message for message, _ in series.waiting]
            assert not any(is_after(a, b) for i, a in enumerate(order) for b in order[i + 1 :])
            assert series.waiting or not series.is_free, "it is forgotten"
        assert self._ready_count == sum(len(series.waiting) for series in self._ready)
        assert self._ready_bytes == sum(series.size_bytes for series in self._ready)
