"""Images of a ledger for tests: as bytes, and in a store where an entry may name them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ledger import commits
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import Image, image_key
from shards import checksum
from uploader.stores.base import PartedStore


def image_of(ledger: Ledger) -> bytes:
    """The whole ledger as it is now."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "copy"
        ledger.read(backup.copy_to, path, lambda: None)
        return path.read_bytes()


def put(store: PartedStore, ledger: Ledger, incarnation: int, after: int, nonce: int = 1) -> Image:
    """An image in the store that no entry names yet."""
    body = image_of(ledger)
    key = image_key(incarnation, after, nonce.to_bytes(8, "big"))
    made = store.put_in_parts(key)
    made.put(body)
    made.finish()
    return Image(key, len(body), checksum.crc32c(body), after, ledger.read(commits.latest_number))
