"""The ready set with bands: which topic's work comes next.

    mark -> (held for the coalescing delay) -> ready, in a band -> take -> finish -> gone, or ready
    again after all others of its band

It decides only *when* work is done: never offsets, retention, what can be read or what is durable.

* An entry is in here at most once, however often its topic is written. One whose turn was given out
  is not given out again before ``finish``; if its topic is written meanwhile, it is ready then.
* Bands share bytes by their weights (``bands.py``), within a band the entry that has been ready
  longest is first, and age moves entries up (``aging.py``). Age counts since the entry became ready
  and begins again only when it is served.
* While *deferring*, entries of topics with a negative manual priority get no turns and no credit,
  whatever their age, and their age stands still. Route entries that become ready meanwhile are one
  band lower.
* The coalescing delay is deliberate: it counts neither as age nor as waiting.
* What may be deferred is not part of the sensors, deferred or not. Otherwise the end of a deferral,
  when all of it is ready, would look like the overload that deferring is for.

**The waiting bound.** Let an entry become ready while K others are in here, and let no turn cost
more than C bytes, C >= QUANTUM_BYTES. Then turns of at most

    (16 K + 85) C + 96 QUANTUM_BYTES

bytes are given out before its own; those given out while it is deferred do not count, and each time
that it is deferred adds 21 C + 32 QUANTUM_BYTES at most. This holds for every manual priority,
however much is written to topics of higher priority. Why: in its band, only entries that were ready
earlier come first, and each of the K comes first once at most, because after its turn it is ready
later. So the bands that the entry passes through serve K C bytes at most before it. They get at
least QUANTUM_BYTES in each round, less a debt of C when the entry enters one, and it enters 5 at
most: these are (K + 5) C / QUANTUM_BYTES + 5 rounds. A round gives out 16 QUANTUM_BYTES; the bands
begin with the credit of one round, and each overdraws C.

Age adds speed to this, not the bound itself: an entry of priority p >= -250 is in the top band
after (750 - p) / 100 s, with half of the capacity. Below -250 it never gets there, because age ends
at 1000: it stays in band 3 from -500 on, in 2 from -750, in 1 from -1000. After 10 s none is in
band 0, except routes that were lowered.
"""

from __future__ import annotations

from collections import deque

from delivery.ready import EntryKey, EntryView, Kind, PriorityInputs, Turn
from delivery.scheduler.aging import GONE, HELD, NO_TICK, SERVED, AgingBands, ReadyEntry
from delivery.scheduler.bands import BANDS, QUANTUM_BYTES, Credit

# Entries come from pinned partitions (delivery/reading/followed.py), with three kinds of work each.
ENTRIES_MAX = 100_000
ENTRY_BYTES = 640  # as measured, with its places in a band and on the wheel
COALESCE_NS_MAX = 20_000_000

_NOTHING = [0] * BANDS


class BandedReadySet:
    """Entries that are ready, in five bands with weighted shares."""

    def __init__(self) -> None:
        self._entries: dict[EntryKey, ReadyEntry] = {}
        self._held: deque[tuple[int, ReadyEntry]] = deque()  # with when each was marked
        self._held_from_ns = 0  # none of them is ready before
        self._plain = AgingBands()
        # Entries that may be deferred. Its clock stands still meanwhile.
        self._deferrable = AgingBands()
        self._deferring = False
        self._stopped_ns = 0  # when deferring began
        self._frozen_ns = 0  # how long it lasted in all, before
        self._coalesce_ns = 0
        self._credit = Credit()
        self._sequence = 0
        self._served: dict[EntryKey, tuple[ReadyEntry, int]] = {}  # with the band that pays

    def __len__(self) -> int:
        """Entries in here, without those whose turn was given out."""
        return len(self._entries) - len(self._served)

    def depths(self) -> list[int]:
        """How many entries are ready in each band, deferred ones too."""
        counts = zip(self._plain.counts, self._deferrable.counts, strict=True)
        return [plain + deferrable for plain, deferrable in counts]

    def deferred(self) -> int:
        """How many entries are deferred."""
        return sum(self._deferrable.counts) if self._deferring else 0

    def mark(self, key: EntryKey, inputs: PriorityInputs, published_ns: int, now_ns: int) -> bool:
        """Puts an entry in, unless it is there; returns whether it was not.

        Raises RuntimeError at the limit."""
        if self._held:
            self._release(now_ns)  # what is due is older than what is marked now
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= ENTRIES_MAX:
                raise RuntimeError(f"the scheduler has its {ENTRIES_MAX} entries")
            self._entries[key] = entry = ReadyEntry(key, inputs, published_ns)
            self._admit(entry, now_ns)
            return True
        if entry.band == SERVED:
            was_marked = entry.again_ns != NO_TICK
            if not was_marked:
                entry.again_ns = published_ns
            entry.set_inputs(inputs)
            return not was_marked
        if inputs.priority != entry.inputs.priority or inputs.auto != entry.inputs.auto:
            self._change(entry, inputs, now_ns)
        return False

    def take(self, now_ns: int) -> Turn | None:
        """The next turn; None if nothing may be done now. ``finish`` must follow."""
        if self._held:
            self._release(now_ns)
        plain, deferrable = self._plain, self._deferrable
        if now_ns >= plain.look_ns:
            plain.settle(now_ns)
        if self._deferring:
            band = self._credit.choose(plain.counts, _NOTHING)
            entry, other = plain.first(band), None
        else:
            if now_ns - self._frozen_ns >= deferrable.look_ns:
                deferrable.settle(now_ns - self._frozen_ns)
            band = self._credit.choose(plain.counts, deferrable.counts)
            entry, other = plain.first(band), deferrable.first(band)
        if entry is None or (other is not None and other.sequence < entry.sequence):
            if other is None:
                return None
            deferrable.remove(other, SERVED)
            entry = other
        else:
            plain.remove(entry, SERVED)
        self._served[entry.key] = (entry, band)
        waited_ns = None if entry.deferrable else now_ns - entry.sensed_ns
        return Turn(entry.key, QUANTUM_BYTES, entry.published_ns, entry.enqueued_ns, waited_ns)

    def finish(self, turn: Turn, cost_bytes: int, more: bool, now_ns: int) -> None:
        """The turn is over. With ``more``, the entry waits again, after all others of its band."""
        entry, band = self._served.pop(turn.key)
        self._credit.charge(band, cost_bytes)
        if self._held:
            self._release(now_ns)
        if more and not entry.forgotten:
            again = ReadyEntry(entry.key, entry.inputs, entry.published_ns)
            self._entries[entry.key] = again
            self._ready(again, now_ns, now_ns)
        elif entry.again_ns != NO_TICK:
            again = ReadyEntry(entry.key, entry.inputs, entry.again_ns)
            self._entries[entry.key] = again
            self._admit(again, now_ns)
        else:
            del self._entries[entry.key]

    def next_due_ns(self) -> int | None:
        """When ``take`` will have a turn; None if no entry waits for a time."""
        if any(self._plain.counts) or (not self._deferring and any(self._deferrable.counts)):
            return 0
        while self._held and self._held[0][1].band != HELD:
            self._held.popleft()
        if self._held:
            return max(self._held[0][0] + self._coalesce_ns, self._held_from_ns)
        return None

    def set_pressure(self, coalesce_ns: int, deferring: bool, now_ns: int) -> None:
        """What the governor asks for: the coalescing delay, and whether to defer."""
        if not 0 <= coalesce_ns <= COALESCE_NS_MAX:
            raise ValueError(f"coalesce_ns is {coalesce_ns}; it must be 0 to {COALESCE_NS_MAX}")
        self._release(now_ns)
        if coalesce_ns < self._coalesce_ns:
            self._held_from_ns = now_ns
        self._coalesce_ns = coalesce_ns
        self._release(now_ns)
        if deferring and not self._deferring:
            self._stopped_ns = now_ns
        elif self._deferring and not deferring:
            self._frozen_ns += now_ns - self._stopped_ns
        self._deferring = deferring

    def forget(self, key: EntryKey) -> None:
        """Takes an entry out, if it is there: nobody wants its work any more."""
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.band == SERVED:
            entry.forgotten, entry.again_ns = True, NO_TICK
            return
        if entry.band >= 0:
            self._bands(entry).remove(entry, GONE)
        entry.band = GONE
        del self._entries[key]

    def oldest_wait_ns(self, now_ns: int) -> int:
        """How long the oldest entry that is never deferred has waited, without the coalescing
        delay; 0 for none."""
        oldest_ns = now_ns
        for band in range(BANDS):
            entry = self._plain.first(band)
            if entry is not None and entry.sensed_ns < oldest_ns:
                oldest_ns = entry.sensed_ns
        return now_ns - oldest_ns

    def view(self, key: EntryKey) -> EntryView | None:
        """What ``status`` shows of an entry that waits; None for others."""
        entry = self._entries.get(key)
        if entry is None or entry.band < 0:
            return None
        deferred = entry.deferrable and self._deferring
        return EntryView(entry.band, entry.enqueued_ns, deferred)

    # How an entry gets in

    def _admit(self, entry: ReadyEntry, now_ns: int) -> None:
        """Holds a push for the coalescing delay, if there is one. Copies of routers share commits
        anyway, and each delay would be one of the whole pipeline."""
        if self._coalesce_ns and entry.key[1] is Kind.WATCH:
            entry.band = HELD
            self._held.append((now_ns, entry))
        else:
            self._ready(entry, now_ns, entry.published_ns)

    def _release(self, now_ns: int) -> None:
        """Makes entries ready whose delay is over."""
        held = self._held
        while held:
            marked_ns, entry = held[0]
            due_ns = max(marked_ns + self._coalesce_ns, self._held_from_ns)
            if entry.band == HELD and due_ns > now_ns:
                return
            held.popleft()
            if entry.band == HELD:
                self._ready(entry, due_ns, entry.published_ns + due_ns - marked_ns)

    def _ready(self, entry: ReadyEntry, at_ns: int, sensed_ns: int) -> None:
        self._sequence += 1
        entry.sequence = self._sequence
        entry.enqueued_ns = at_ns
        entry.sensed_ns = sensed_ns
        entry.lowered = 1 if self._deferring and entry.key[1] == Kind.ROUTE else 0
        entry.since_ns = self._clock_ns(entry, at_ns)
        self._bands(entry).insert(entry)

    def _change(self, entry: ReadyEntry, inputs: PriorityInputs, now_ns: int) -> None:
        """Takes a new manual priority of an entry that waits; what it has waited counts on."""
        if entry.band < 0:
            entry.set_inputs(inputs)
            return
        moved = ReadyEntry(entry.key, inputs, entry.published_ns)
        moved.sequence, moved.lowered = entry.sequence, entry.lowered
        moved.enqueued_ns = entry.enqueued_ns
        moved.sensed_ns = now_ns if entry.deferrable else entry.sensed_ns
        clock_ns = self._clock_ns(moved, now_ns)
        moved.since_ns = clock_ns - (self._clock_ns(entry, now_ns) - entry.since_ns)
        self._bands(entry).remove(entry, GONE)
        self._entries[entry.key] = moved
        self._bands(moved).reinsert(moved, clock_ns)

    def _bands(self, entry: ReadyEntry) -> AgingBands:
        return self._deferrable if entry.deferrable else self._plain

    def _clock_ns(self, entry: ReadyEntry, now_ns: int) -> int:
        """A time on the clock of the entry's bands."""
        if not entry.deferrable:
            return now_ns
        return (min(now_ns, self._stopped_ns) if self._deferring else now_ns) - self._frozen_ns

    def check_invariants(self) -> None:
        """Raises AssertionError unless the head of the module holds. Looks at everything; for
        tests."""
        waiting = [entry for entry in self._entries.values() if entry.band >= 0]
        for bands in (self._plain, self._deferrable):
            bands.check_invariants([entry for entry in waiting if self._bands(entry) is bands])
        held = [entry for _, entry in self._held if entry.band == HELD]
        assert len(set(map(id, held))) == len(held)
        assert len(waiting) + len(held) == len(self)
        assert all(entry.key == key for key, entry in self._entries.items())
        served = {key for key, entry in self._entries.items() if entry.band == SERVED}
        assert served == set(self._served)
        ages = sorted(waiting, key=lambda entry: entry.sequence)
        times = [entry.enqueued_ns for entry in ages]
        assert times == sorted(times), "the order of sequences is that of the times"
        self._credit.check_invariants()
