"""The owner's log in an embedded store on a disk that loses power."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from crc32c import crc32c

from ledger.log.backup import Mark
from ledger.log.entry import Entry, Image, Owner, image_key
from tests.powerloss import Disk
from uploader.ownership.ownerlog import OwnerLog
from uploader.stores.file import FileStore

OWNER = Owner("host", 1, "boot", 1, 100, "/data")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where an fsync takes no time."""
    with TemporaryDirectory(prefix="headgate-power-", dir="/dev/shm") as parent:
        (Path(parent) / "disk").mkdir()
        yield Path(parent)


def open_log(root: Path) -> tuple[FileStore, OwnerLog]:
    store = FileStore(root / "store")
    return store, OwnerLog(store, OWNER, lambda _: None)


def put_image(store: FileStore, incarnation: int) -> Image:
    key = image_key(incarnation, 2, bytes(8))
    made = store.put_in_parts(key)
    for part in (b"first part, ", b"and the last"):
        made.put(part)
    made.finish()
    return Image(key, 24, crc32c(b"first part, and the last"), 2, 1)


def test_no_loss_of_power_takes_an_accepted_entry_or_leaves_half_of_one(folder: Path) -> None:
    disk = Disk(folder / "disk")
    with disk.recording():
        store, log = open_log(disk.root)
        store.check()
        for incarnation in (1, 2):
            assert log.take(take_over=True).incarnation == incarnation - 1
            for number in (1, 2, 3):
                mark = Mark(commit_number=10 * incarnation + number)
                named = put_image(store, incarnation) if number == 3 else None
                entry = log.entry(incarnation, number, "entry", mark, names=named)
                assert log.put(entry)
                disk.note(entry)
            assert named is not None
            assert log.forget_before(named) == ((1, 0) if incarnation == 1 else (2, 1))
        store.close()
    for number, image in enumerate(disk.images(seed=1)):
        root = folder / str(number)
        root.mkdir()
        image.build(root)
        store, log = open_log(root)
        with closing(store):
            accepted: list[Entry] = list(image.facts)
            found = log.last()  # reads what is there: half an entry would raise EntryError
            if accepted:
                assert found is not None
                assert (found.incarnation, found.number) >= (
                    accepted[-1].incarnation,
                    accepted[-1].number,
                )
            keys = log.keys()
            assert all(log.read(*key) for key in keys)
            if accepted:
                named = log.image()
                if named is not None:
                    log.get_image(named)  # is whole, or would raise EntryError
                behind = [each for each in log.chain(named) if each.kind != "seal"]
                assert behind[-1].mark.commit_number >= accepted[-1].mark.commit_number
