"""The embedded store on a disk that loses power, after each call that it makes to the system."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from crc32c import crc32c

from tests.powerloss import Disk, Image
from uploader.stores.base import ObjectMissing, StoreError
from uploader.stores.file import FileStore
from uploader.stores.segment import frame_end

STORE = Path("srv/headgate/store")
SEGMENT_BYTES = 4096
PROBE = b"probe"  # of a start that was cut off


class Tried(NamedTuple):
    """A put that began: if the object is visible, it has these bytes."""

    key: str
    body: bytes


class Kept(NamedTuple):
    """A put that was answered."""

    locator: str
    body: bytes


class Deleting(NamedTuple):
    locator: str


class Deleted(NamedTuple):
    locator: str


class Recorded:
    """A store whose calls are facts of a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.store = FileStore(disk.root / STORE, segment_bytes=SEGMENT_BYTES)

    def put(self, key: str, size: int) -> str:
        body = key.encode() * (size // len(key) + 1)
        self.disk.note(Tried(key, body))
        locator = self.store.put(key, body, crc32c(body))
        self.disk.note(Kept(locator, body))
        return locator

    def put_if_absent(self, key: str, size: int) -> None:
        body = key.encode() * (size // len(key) + 1)
        self.disk.note(Tried(key, body))
        self.store.put_if_absent(key, body)  # that it was there is an answer to rely on, too
        self.disk.note(Kept(key, body))

    def put_in_parts(self, key: str, *sizes: int) -> None:
        parts = [key.encode() * (size // len(key) + 1) for size in sizes]
        self.disk.note(Tried(key, b"".join(parts)))
        parted = self.store.put_in_parts(key)
        for part in parts:
            parted.put(part)
        parted.finish()
        self.disk.note(Kept(key, b"".join(parts)))

    def delete(self, *locators: str) -> None:
        for locator in locators:
            self.disk.note(Deleting(locator))
        self.store.delete(locators)
        for locator in locators:
            self.disk.note(Deleted(locator))


def judge(image: Image, store: FileStore) -> None:
    """What was answered is there, whole; what was not is there whole, or not at all."""
    tried = {(fact.key, fact.body) for fact in image.facts if isinstance(fact, Tried)}
    deleting = {fact.locator for fact in image.facts if isinstance(fact, Deleting)}
    listed = {head.locator: head.key for head in store.list("")}
    for fact in image.facts:
        if isinstance(fact, Kept) and fact.locator not in deleting:
            assert fact.locator in listed, f"after {image.after}: an answered object is gone"
            assert store.get(fact.locator) == fact.body, f"after {image.after}"
        elif isinstance(fact, Deleted):
            assert fact.locator not in listed, f"after {image.after}: a deleted object is back"
            with pytest.raises(ObjectMissing):
                store.get(fact.locator)
    for locator, key in listed.items():
        body = store.get(locator)
        assert (key, body) in tried or body == PROBE, f"after {image.after}: torn bytes are served"
    assert store.damage() == (), f"after {image.after}"


def judge_a_start(image: Image, folder: Path) -> None:
    """Opens the real store on an image, as a start of the daemon does, and continues."""
    image.build(folder)
    store = FileStore(folder / STORE, segment_bytes=SEGMENT_BYTES)
    judge(image, store)
    store.check()
    judge(image, store)
    locator = store.put("l0/next", b"next", crc32c(b"next"))
    assert store.get(locator) == b"next"
    store.close()


@pytest.fixture
def folders() -> Iterator[Iterator[Path]]:
    """Empty folders, where an fsync takes no time."""
    with TemporaryDirectory(prefix="headgate-power-", dir="/dev/shm") as parent:
        yield (_made(Path(parent) / str(number)) for number in range(100_000))


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def a_life(store: Recorded) -> None:
    """Both kinds of put, segments that end, deletes, an end and another start."""
    store.store.check()
    first = store.put("l0/a", 10)
    second = store.put("l0/b", 1500)
    store.put_if_absent("ledger/1", 700)
    store.put_if_absent("ledger/1", 700)
    third = store.put("l0/c", 3000)
    store.put_in_parts("ledger/image", 700, 700, 50)
    in_another_thread(lambda: store.put("l0/d", 900))
    store.delete(first, "ledger/1")
    store.delete(second, third)
    a_put_that_fails(store, store.put("l0/e", 1200))
    store.put("l0/g", 300)
    store.store.close()


def a_put_that_fails(store: Recorded, before: str) -> None:
    """The system accepts a part of the frame after that of ``before``, and refuses the rest."""
    segment, position, size = before.split(":")
    end = frame_end(int(position), len("l0/e"), int(size))
    body = b"refused" * 200
    store.disk.note(Tried("l0/refused", body))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (end + 700, limits[1]))
    try:
        with pytest.raises(StoreError):
            store.store.put("l0/refused", body, crc32c(body))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (store.disk.root / STORE / "segments" / segment).stat().st_size == end, "cut off"
    assert any(moment.call.startswith("pwritev") for moment in store.disk.moments[-2:])


def in_another_thread(call: object) -> None:
    thread = threading.Thread(target=call)  # type: ignore[arg-type]  # takes nothing
    thread.start()
    thread.join()


def test_no_loss_of_power_loses_or_tears_a_confirmed_object(folders: Iterator[Path]) -> None:
    disk = Disk(next(folders))
    with disk.recording():
        a_life(Recorded(disk))
        again = Recorded(disk)
        again.store.check()
        again.put("l0/f", 100)
    images = 0
    for image in disk.images(seed=1):
        judge_a_start(image, next(folders))
        images += 1
    assert images > 100


def test_a_kill_and_then_a_loss_of_power_lose_nothing_that_the_next_start_confirmed(
    folders: Iterator[Path],
) -> None:
    disk = Disk(next(folders))
    with disk.recording():
        store = Recorded(disk)
        store.store.check()
        store.put("l0/a", 600)
        store.put_if_absent("ledger/1", 600)
    for moment in disk.moments:
        killed = disk.after_kill(moment, next(folders))
        with killed.recording():
            again = Recorded(killed)
            again.store.check()
            for head in again.store.list("l0/"):  # what a recovery reads next
                killed.note(Kept(head.locator, again.store.get(head.locator)))
            again.put("l0/b", 600)
            again.put_if_absent("ledger/1", 600)
        for image in killed.images(seed=1, last=True):
            judge_a_start(image, next(folders))


def test_a_taken_name_stays_once_a_rival_was_refused(
    folders: Iterator[Path],
) -> None:
    disk = Disk(next(folders))
    with disk.recording():
        store = Recorded(disk)
        store.store.check()
        checked = len(disk.moments)
        store.put_if_absent("ledger/1", 600)
    for moment in disk.moments[checked:]:
        rival = disk.after_kill(moment, next(folders))
        with rival.recording():
            Recorded(rival).put_if_absent("ledger/1", 600)
        for image in rival.images(seed=1, last=True):
            judge_a_start(image, next(folders))
