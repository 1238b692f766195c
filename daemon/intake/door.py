"""The door: whether new requests are taken in at all. Decided once per tick, for all shards.

The supervisor looks at the alarms and at the disks, and tells by one word of the segment why the
door is shut (0: it is open); each shard reads the word when its bell rings, so a request costs
nothing. What came in before the door was shut is finished, or ends at its deadline.

Space: what was accepted and is not stored yet must still fit, and SPARE_BYTES more, for what
comes in before the next look and for the files of SQLite. A door that was shut opens when twice
the spare is free, so that it does not flap at the limit. ``Door`` decides and is pure but for
the two words that it reads from the file system through ``room_of``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import IntFlag
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from daemon.alarms import MEANINGS, Trouble
from daemon.config import Config
from shards.alarms import AlarmKind

# A tick's intake at 600 MB/s; of a small disk the twentieth part, as file systems keep for root.
SPARE_BYTES = 64 << 20
SPARE_SHARE = 20


class Shut(IntFlag):
    """Why new requests are refused: the value of the word."""

    STORE_FAILING = 1
    LEDGER_DISK = 2
    STORE_DISK = 4


class Room(Struct, frozen=True):
    """A file system as a process without privileges may use it."""

    free_bytes: int
    total_bytes: int

    @property
    def spare_bytes(self) -> int:
        """What is not given to new requests."""
        return min(SPARE_BYTES, self.total_bytes // SPARE_SHARE)


def room_of(path: Path) -> Room | None:
    """The room where ``path`` lies, or will lie; None where it cannot be asked."""
    for place in (path, *path.parents):
        try:
            found = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None  # whoever writes there meets the error, and says it
        return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
    return None


class Disk(Struct, frozen=True):
    """A place that must keep room: for what is ``pending`` too, where objects go there."""

    why: Shut
    name: str
    path: Path
    takes_objects: bool


def disks_of(config: Config) -> list[Disk]:
    """The ledger's, and the embedded store's."""
    disks = [Disk(Shut.LEDGER_DISK, "the ledger's disk", Path(config.ledger_path).parent, False)]
    store = urlsplit(config.store_url)
    if store.scheme == "file":
        path = Path(unquote(store.path))
        disks.append(Disk(Shut.STORE_DISK, "the store's disk", path, True))
    return disks


class Door:
    """What is open or shut, and why."""

    def __init__(
        self, disks: Iterable[Disk], room: Callable[[Path], Room | None] = room_of
    ) -> None:
        self._disks = tuple(disks)
        self._room = room
        self.shut = Shut(0)
        self.short = ""  # which disk is short, in words

    def look(self, troubles: Iterable[Trouble], pending_bytes: int) -> Shut:
        """Why the door is shut now; ``pending_bytes`` are accepted and not stored."""
        failing = MEANINGS[AlarmKind.STORE_FAILING].name
        shut = Shut(0)
        if any(trouble.alarm == failing for trouble in troubles):
            shut |= Shut.STORE_FAILING
        short = []
        for disk in self._disks:
            room = self._room(disk.path)
            if room is None:
                continue
            spare_bytes = room.spare_bytes * (2 if self.shut & disk.why else 1)
            needed_bytes = spare_bytes + (pending_bytes if disk.takes_objects else 0)
            if room.free_bytes < needed_bytes:
                shut |= disk.why
                short.append(
                    f"{disk.name} ({disk.path}) has {room.free_bytes >> 10} KiB free, new requests"
                    f" need {needed_bytes >> 10} KiB"
                )
        self.shut = shut
        self.short = "; ".join(short)
        return shut
