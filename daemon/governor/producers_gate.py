"""The gate of producers: whether any shard takes new requests in. Decided once per tick.

The supervisor looks at the alarms, the disks and the pressure of memory, and stores in one word of
the segment why the gate is closed (0: it is open). Each shard reads the word when its bell rings,
so a request costs nothing. Requests that came in before the gate closed are finished, or end at
their deadline. No other pressure closes it: a busy daemon is slower, and refuses what no longer
fits into its rings (daemon/intake/admission.py).

Memory: refused above ``gate_pause_above``, taken again below ``gate_resume_below`` (``gate.py``).
If memory stays above although nothing waits to be stored, nothing will lower it: ``accept`` is
called, so that what is left can be used.

Disk space: what was accepted and is not yet stored must still fit, and SPARE_BYTES more, for what
comes in before the next tick and for the files of SQLite. A closed gate opens when twice the spare
is free, so that it does not flap at the limit. ``ProducersGate`` is pure, except that it reads the
free space through ``space_of``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import IntFlag
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from daemon.alarms.alarms import MEANINGS
from daemon.config import Config
from daemon.governor.gate import Gate
from daemon.schemas.api import AlarmStatus
from shards.alarms import AlarmKind

# What comes in during a tick at 600 MB/s; on a small disk a twentieth, as file systems reserve.
SPARE_BYTES = 64 << 20
SPARE_SHARE = 20


class ClosedBy(IntFlag):
    """Why new requests are refused: the value of the word."""

    STORE_FAILING = 1
    LEDGER_DISK = 2
    STORE_DISK = 4
    MEMORY = 8


class DiskSpace(Struct, frozen=True):
    """A file system as a process without privileges may use it."""

    free_bytes: int
    total_bytes: int

    @property
    def spare_bytes(self) -> int:
        """What is not given to new requests."""
        return min(SPARE_BYTES, self.total_bytes // SPARE_SHARE)


def space_of(path: Path) -> DiskSpace | None:
    """The space where ``path`` is or will be; None if the system does not say."""
    for place in chain((path,), path.parents):  # which are made as they are needed
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None  # whoever writes there meets the error, and reports it
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
    return None


class Disk(Struct, frozen=True):
    """A place that must keep free space; where objects go, for what is ``pending`` too."""

    why: ClosedBy
    name: str
    path: Path
    takes_objects: bool


def disks_of(config: Config) -> list[Disk]:
    """The disk of the ledger, and that of an embedded store."""
    ledger = Path(config.ledger_path).parent
    disks = [Disk(ClosedBy.LEDGER_DISK, "the ledger's disk", ledger, takes_objects=False)]
    store = urlsplit(config.store_url)
    if store.scheme == "file":
        path = Path(unquote(store.path))
        disks.append(Disk(ClosedBy.STORE_DISK, "the store's disk", path, takes_objects=True))
    return disks


class ProducersGate:
    """Whether requests are taken in, and if not, why."""

    def __init__(
        self,
        disks: Iterable[Disk],
        memory: Gate,
        accept: Callable[[int], object],
        space: Callable[[Path], DiskSpace | None] = space_of,
    ) -> None:
        self._disks = tuple(disks)
        self._space = space
        self._memory = memory
        self._accept = accept
        self.closed_by = ClosedBy(0)
        self.short = ""  # which disk is short of space, in words

    def look(
        self, alarms: Iterable[AlarmStatus], pending_bytes: int, memory: float, now_ns: int
    ) -> ClosedBy:
        """Why the gate is closed now; ``pending_bytes`` are accepted and not stored, ``memory`` is
        a pressure."""
        failing = MEANINGS[AlarmKind.STORE_FAILING].name
        closed_by = ClosedBy(0)
        if not self._memory.look(memory, now_ns, is_drained=not pending_bytes):
            closed_by |= ClosedBy.MEMORY
            if self._memory.is_stuck(now_ns):
                self._accept(now_ns)
        if any(alarm.alarm == failing for alarm in alarms):
            closed_by |= ClosedBy.STORE_FAILING
        short = []
        for disk in self._disks:
            space = self._space(disk.path)
            if space is None:
                continue
            spare_bytes = space.spare_bytes * (2 if self.closed_by & disk.why else 1)
            needed_bytes = spare_bytes + (pending_bytes if disk.takes_objects else 0)
            if space.free_bytes < needed_bytes:
                closed_by |= disk.why
                short.append(
                    f"{disk.name} ({disk.path}) has {space.free_bytes >> 10} KiB free, new requests"
                    f" need {needed_bytes >> 10} KiB"
                )
        self.closed_by = closed_by
        self.short = "; ".join(short)
        return closed_by
