"""Images of the ledger in the store: when one is due, how it gets there, and how it comes back.

An image is put in parts from a copy of the ledger, so what it takes in memory does not grow with
it, and read in ranges of the same size. It is seen by nobody before its last part and means
nothing before an entry of the owner's log names it (``ledger/log/entry.py``).

``is_due`` decides. The rest blocks and does I/O on stores that repeat their calls themselves
(uploader/stores/retrying.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ledger.log.entry import EntryError, Image
from shards import checksum
from uploader.stores.base import ObjectStore, PartedPut
from uploader.stores.verified import verified

PART_BYTES = 16 << 20
PARTS_MAX = 10_000  # S3's own limit: 156 GiB
# An hour of steady writing; a recovery reads each of them.
ENTRIES_MIN = 720
# With a large ledger also as much in entries as this share of it: four times what was told is
# put at most. And at the latest after a day of steady writing.
ENTRY_BYTES_SHARE = 4
ENTRIES_MAX = 17_280


class ImageTooLarge(RuntimeError):
    """The ledger is larger than an object can be put in parts of this size."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"the ledger has {size_bytes >> 30} GiB, an image of it at most"
            f" {PARTS_MAX * PART_BYTES >> 30} GiB ({PARTS_MAX} parts of {PART_BYTES >> 20} MiB);"
            " collect what is not needed any more (headgate compact, headgate gc), or evict"
        )


def is_due(entries: int, entry_bytes: int, ledger_bytes: int) -> bool:
    """Whether to take an image: ``entries`` with ``entry_bytes`` came after the last one."""
    if entries >= ENTRIES_MAX:
        return True
    return entries >= ENTRIES_MIN and entry_bytes * ENTRY_BYTES_SHARE >= ledger_bytes


def put_image(made: PartedPut, path: Path, going_on: Callable[[], object]) -> tuple[int, int]:
    """Puts the file's parts and the end of the object; returns (size in bytes, CRC32C).

    ``going_on`` is called before each call of the store, and raises to give the image up.
    Raises StoreError, OSError, ImageTooLarge.
    """
    size_bytes = path.stat().st_size
    if size_bytes > PARTS_MAX * PART_BYTES:
        raise ImageTooLarge(size_bytes)
    crc32c = 0
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            going_on()
            crc32c = checksum.crc32c(part, crc32c)
            made.put(part)
    going_on()
    made.finish()
    return size_bytes, crc32c


class ImageDamaged(EntryError):
    """An image's bytes are not those that were put."""


def get_image(store: ObjectStore, image: Image, file: BinaryIO | None = None) -> None:
    """Reads an image part by part, into ``file`` if there is one. Raises StoreError, ImageDamaged.

    What looks damaged is read again on a new connection first.
    """

    def read() -> None:
        if file is not None:
            file.seek(0)
            file.truncate()
        for part in _parts(store, image):
            if file is not None:
                file.write(part)

    verified(read, store.reconnect, ImageDamaged, image.key)


def _parts(store: ObjectStore, image: Image) -> Iterator[bytes]:
    head = next(head for head in store.list(image.key) if head.key == image.key)
    crc32c = position = 0
    while position < image.size_bytes == head.size_bytes:
        length = min(PART_BYTES, image.size_bytes - position)
        part = store.get(head.locator, position, length)
        crc32c = checksum.crc32c(part, crc32c)
        position += len(part)
        yield part
    if (head.size_bytes, crc32c) != (image.size_bytes, image.crc32c):
        raise ImageDamaged(
            f"{store.url}: the image {image.key} is damaged: {head.size_bytes} bytes with CRC32C"
            f" {crc32c:08x}, the entry that names it says {image.size_bytes} with"
            f" {image.crc32c:08x}; put it back from a copy, or move the folder ledger/ aside to"
            " recover from the objects alone, without settings and deletions of topics"
        )
