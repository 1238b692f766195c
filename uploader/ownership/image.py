"""Images of the ledger in the store: when one is due, how it is put, and how it is read.

An image is put in parts from a copy of the ledger and read in ranges of the same size, so memory
does not grow with it. It is invisible before its last part, and means nothing before an entry of
the owner's log names it (``ledger/log/entry.py``).

``is_due`` decides. The rest blocks and does I/O on stores that repeat their calls themselves
(uploader/stores/retrying.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ledger.log.entry import EntryError, Image
from shards import checksum
from uploader.stores.base import ObjectMissing, ObjectStore, PartedPut
from uploader.stores.verified import verified

PART_BYTES = 16 << 20
PARTS_MAX = 10_000  # a limit of S3: 156 GiB
# An hour of steady writing; a recovery reads each entry.
ENTRIES_MIN = 720
# For a large ledger, the entries must also have a quarter of its bytes, so images put at most four
# times as much as the entries did. A day of steady writing is enough in any case.
ENTRY_BYTES_SHARE = 4
ENTRIES_MAX = 17_280


class ImageTooLarge(RuntimeError):
    """The ledger is larger than an object in parts of this size can be."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"the ledger has {size_bytes >> 30} GiB, but an image may have at most"
            f" {PARTS_MAX * PART_BYTES >> 30} GiB ({PARTS_MAX} parts of {PART_BYTES >> 20} MiB);"
            " make it smaller with headgate compact and headgate gc, or by retention"
        )


def is_due(entries: int, entry_bytes: int, ledger_bytes: int) -> bool:
    """Whether to take an image, given how many entries with how many bytes followed the last."""
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
    """The bytes of an image are not those that were put."""


def get_image(store: ObjectStore, image: Image, file: BinaryIO | None = None) -> None:
    """Reads an image part by part, into ``file`` if there is one. Raises StoreError, ImageDamaged.

    What looks damaged is first read again on a new connection.
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
    head = next((head for head in store.list(image.key) if head.key == image.key), None)
    if head is None:  # a newer one has replaced it
        raise ObjectMissing(f"{store.url}: there is no object {image.key}")
    crc32c = position = 0
    while position < image.size_bytes == head.size_bytes:
        length = min(PART_BYTES, image.size_bytes - position)
        part = store.get(head.locator, position, length)
        crc32c = checksum.crc32c(part, crc32c)
        position += len(part)
        yield part
    if (head.size_bytes, crc32c) != (image.size_bytes, image.crc32c):
        raise ImageDamaged(
            f"{store.url}: the image {image.key} is damaged: it has {head.size_bytes} bytes with"
            f" CRC32C {crc32c:08x}, but the entry that names it says {image.size_bytes} with"
            f" {image.crc32c:08x}; restore it from a copy, or move the folder ledger/ aside to"
            " recover from the objects alone, without settings and deletions of topics"
        )
