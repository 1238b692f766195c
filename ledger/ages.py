"""How old things are: a clock for ages that no step of the wall clock moves.

Idempotency keys, the grace time of a collection and read leases protect data for some time; that
time is measured by this clock (docs/protocol.md, 7).

Vocabulary: *age time* is in milliseconds. It starts as the wall clock and then advances by the time
that passes: within a boot of the machine by the clock that counts since the boot, so a step of the
wall clock has no effect; across boots by the wall clock, since nothing else knows how long the
machine was off. It never goes back. It is near the wall clock if nobody ever set that, and is
compared only with itself.

The ledger keeps a *note* of it with both clocks, and a new one after a step of the wall clock, so
that time across the next boot is measured from there.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ledger import notes
from ledger.tx import ReadTx

NOTE = "ages"  # its name among the notes
NOTE_MS = 600_000  # between notes: the longest time whose length a boot takes from the wall clock
STEP_MS = 1_000  # of the wall clock against the other; smaller ones are slews


class Clocks(Struct, frozen=True):
    """Both clocks at one moment: of the wall, and since the boot."""

    boot_id: str
    wall_ms: int
    boot_ms: int


class Aged(Clocks, frozen=True):
    """The age time at that moment."""

    age_ms: int


_decoder = msgspec.json.Decoder(Aged)


def aged_of(text: str | None) -> Aged | None:
    """A note as the ledger keeps it; None if there is none, or none that can be read."""
    try:
        return _decoder.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def note_of(aged: Aged) -> str:
    """What the ledger keeps."""
    return msgspec.json.encode(aged).decode()


def age_ms(aged: Aged | None, now: Clocks) -> int:
    """The age time now, given the last note; without one it starts."""
    if aged is None:
        return now.wall_ms
    if aged.boot_id == now.boot_id:
        return aged.age_ms + max(0, now.boot_ms - aged.boot_ms)
    return aged.age_ms + max(0, now.wall_ms - aged.wall_ms)


def of_wall_time(aged: Aged | None, wall_ms: int) -> int:
    """The age time of something that was dated by the wall clock near the last note."""
    return wall_ms if aged is None else wall_ms + aged.age_ms - aged.wall_ms


def is_due(aged: Aged | None, now: Clocks) -> bool:
    """Whether a new note is due."""
    if aged is None or aged.boot_id != now.boot_id:
        return True
    passed_ms = now.boot_ms - aged.boot_ms
    return passed_ms >= NOTE_MS or abs(now.wall_ms - aged.wall_ms - passed_ms) > STEP_MS


def noted(tx: ReadTx) -> Aged | None:
    """The last note."""
    return aged_of(notes.get(tx, NOTE))


def now_ms(tx: ReadTx, now: Clocks) -> int:
    """The age time now, by the last note."""
    return age_ms(noted(tx), now)
