"""An entry of the owner's log: what is told to the bucket, so that another machine can go on.

One msgpack map with named fields, so that later versions may add some. ``kind``:

- ``entry``: changes since the entry before;
- ``snapshot``: a whole image; entries before it are not needed any more;
- ``seal``: written by the next start into the log of the one before, which then can add nothing;
- ``release``: a clean stop, with the last changes; the next start need not wait.

The log of one incarnation is numbered from 1 without gaps; the first one to write a number has
it. This module only encodes and decodes.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from ledger.backup import Changes, Mark

# 2: what is told of the lake. A program that knows only 1 would pass it over.
VERSION = 3
PREFIX = "ledger/"


class EntryError(ValueError):
    """Bytes that are no entry of a version this program knows."""


class Owner(Struct, frozen=True):
    """Which daemon wrote an entry. ``device`` and ``inode`` are those of its directory's lock
    file: as long as one of its processes lives, no other file has that inode."""

    host: str
    pid: int
    boot_id: str
    device: int
    inode: int
    data_dir: str

    def same_directory(self, other: Owner) -> bool:
        """Whether both are runs on one directory of one machine since its last boot."""
        mine = (self.boot_id, self.device, self.inode)
        return mine == (other.boot_id, other.device, other.inode)

    def before_a_boot(self, other: Owner) -> bool:
        """Whether ``other`` seems to be a run on our directory before the machine's last boot.

        A copy of the whole machine looks the same. Devices may be numbered anew.
        """
        mine = (self.host, self.inode, self.data_dir)
        there = (other.host, other.inode, other.data_dir)
        return mine == there and self.boot_id != other.boot_id


class Entry(Struct, frozen=True):
    """One entry. ``mark`` says what it and all before it cover."""

    version: int
    nonce: bytes
    incarnation: int
    number: int
    kind: Literal["entry", "snapshot", "seal", "release"]
    owner: Owner
    created_ms: int
    mark: Mark
    changes: Changes | None = None
    image: bytes | None = None


class _Version(Struct):
    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)
_version_decoder = msgspec.msgpack.Decoder(_Version)


def entry_key(incarnation: int, number: int) -> str:
    """The key of an entry; sorts by incarnation, then number."""
    return f"{PREFIX}{incarnation:012d}/{number:012d}"


def parse_entry_key(key: str) -> tuple[int, int]:
    """The inverse of entry_key. Raises EntryError."""
    parts = key.removeprefix(PREFIX).split("/")
    if len(parts) != 2 or not all(len(p) == 12 and p.isdigit() for p in parts):
        raise EntryError(
            f"{key!r} is no key of an entry: ledger/INCARNATION/NUMBER, 12 digits each"
        )
    return int(parts[0]), int(parts[1])


def encode(entry: Entry) -> bytes:
    """The bytes of an entry."""
    return _encoder.encode(entry)


def decode(data: bytes, key: str) -> Entry:
    """The entry in ``data``. Raises EntryError, naming ``key``."""
    try:
        version = _version_decoder.decode(data).version
        if not 1 <= version <= VERSION:
            raise EntryError(
                f"{key} has version {version}, this headgate knows {VERSION}; use the newer one"
            )
        entry = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EntryError(f"{key} is no entry of the owner's log: {error}") from error
    if entry_key(entry.incarnation, entry.number) != key:
        raise EntryError(f"{key} holds the entry {entry.incarnation}/{entry.number}")
    return entry
