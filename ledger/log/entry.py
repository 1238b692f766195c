"""An entry of the owner's log: what goes to the bucket so that another machine can continue.

One msgpack map with named fields, so that later versions may add some. ``kind``:

- ``entry``: changes since the previous entry;
- ``snapshot``: of versions up to 3, a whole image, which replaces all entries before it;
- ``seal``: written by the next start into the log of the previous one, which can then add nothing;
- ``release``: a clean stop, with the last changes; the next start need not wait.

The log of one incarnation is numbered from 1 without gaps; the first to write a number has it.

An *image* of the whole ledger is an object of its own. It counts once an entry with changes *names*
it: then entries up to the one that the image was taken *after* are not needed. So an entry is
small, however large an image is.

This module only encodes and decodes.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import Struct

from ledger.log.backup import Changes, Mark

# 2: the lake. 3: its quarantine, and tables' names. 4: images outside the log. 5: cursors. 6:
# subscriptions. 7: what cursors follow. 8: with which tokens routers and push were set up. 9:
# idempotent producers. 10: what groups of Kafka have committed. 11: when they were last used. A
# program that does not know them would skip them.
VERSION = 11
PREFIX = "ledger/"


class EntryError(ValueError):
    """The bytes are not an entry of a version that this program knows."""


class LogIncomplete(EntryError):
    """Entries are missing; an image that is put right now may have replaced them."""


class Owner(Struct, frozen=True):
    """Which daemon wrote an entry. ``device`` and ``inode`` are those of its directory's lock file:
    while one of its processes lives, no other file has that inode."""

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

        A copy of the whole machine looks the same. Devices may have other numbers.
        """
        mine = (self.host, self.inode, self.data_dir)
        there = (other.host, other.inode, other.data_dir)
        return mine == there and self.boot_id != other.boot_id


class Image(Struct, frozen=True):
    """An image that an entry of its incarnation names.

    It holds everything that entries up to number ``after`` carried, and what the ledger had in
    addition when the image was taken, up to commit ``commit_number``. Later entries are applied on
    top of it.
    """

    key: str
    size_bytes: int
    crc32c: int
    after: int
    commit_number: int


class Entry(Struct, frozen=True):
    """One entry. ``mark`` says what it and all entries before it cover."""

    version: int
    nonce: bytes
    incarnation: int
    number: int
    kind: Literal["entry", "snapshot", "seal", "release"]
    owner: Owner
    created_ms: int
    mark: Mark
    changes: Changes | None = None
    image: bytes | None = None  # of a snapshot
    names: Image | None = None
    hands_over: bool = False  # its owner waits for a standby, and then releases


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
            f"{key!r} is not the key of an entry: ledger/INCARNATION/NUMBER, 12 digits each"
        )
    return int(parts[0]), int(parts[1])


_IMAGE_KEY = re.compile(rf"{PREFIX}(\d{{12}})/image-(\d{{12}})-[0-9a-f]{{16}}")


def image_key(incarnation: int, after: int, nonce: bytes) -> str:
    """The key of an image; ``nonce``, 8 random bytes, makes it unique."""
    return f"{PREFIX}{incarnation:012d}/image-{after:012d}-{nonce.hex()}"


def parse_image_key(key: str) -> tuple[int, int] | None:
    """(incarnation, number of the entry it was taken after); None if it is not an image's key."""
    found = _IMAGE_KEY.fullmatch(key)
    return None if found is None else (int(found[1]), int(found[2]))


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
        raise EntryError(f"{key} is not an entry of the owner's log: {error}") from error
    if entry_key(entry.incarnation, entry.number) != key:
        raise EntryError(f"{key} holds the entry {entry.incarnation}/{entry.number}")
    return entry
