"""Checks one request after all records were read. Returns a sentence for each finding."""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz.inputs import Sent

UNKNOWN = -1  # earlier framing was wrong, or nothing was read: no answer is known to belong to it

OUTCOME_UNKNOWN = 504  # of a request whose time is over: it may be stored, as a whole


class Said(NamedTuple):
    """What came back for a request: the status (0: nothing, or UNKNOWN), first and last offset of
    a produce, and whether it was a repeat. ``whole``: all its bytes were sent."""

    sent: Sent
    whole: bool
    status: int = 0
    first: int = 0
    last: int = 0
    deduped: bool = False


def judged(
    name: str,
    said: Said,
    stored: set[int],
    there: dict[int, tuple[int, int]],
    whose: tuple[int, int],
) -> list[str]:
    """``stored``: which of its records are there; ``there``: by offset, stream and request of the
    record; ``whose``: this one's."""
    sent = said.sent
    found: list[str] = []
    if 400 <= said.status < 600 and said.status != OUTCOME_UNKNOWN and stored:
        found.append(f"{name} was answered {said.status}, but {len(stored)} records are stored")
    if not sent.allowed and stored:
        found.append(f"{name} had no token, but {len(stored)} records are stored")
    if sent.framed and said.status == 0 and not said.whole and stored:
        found.append(f"{name} was cut off, but {len(stored)} records are stored")
    if sent.framed and sent.exact and stored not in (set(), set(range(sent.marks))):
        found.append(f"{name}: {len(stored)} of its {sent.marks} records are stored")
    if said.status == 200 and not said.deduped:
        count = said.last - said.first + 1
        if sent.exact and (count != sent.marks or not stored):
            found.append(
                f"{name}: of {sent.marks} records {len(stored)} are stored, {count} were answered"
            )
        others = [o for o in range(said.first, said.last + 1) if there.get(o, whose) != whose]
        if others:
            found.append(f"{name}: another's records are at its offsets {others[:5]}")
    return found
