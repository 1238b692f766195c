"""Images of the ledger: whatever happens to one, entries go on, and a recovery is complete."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from daemon.upkeep import image as image_module
from daemon.upkeep.image import ImageThread
from daemon.upkeep.owner import OwnerThread
from daemon.upkeep.recover import rebuild
from ledger import epochs, topics
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import Owner, image_key
from ledger.tx import ReadTx
from ledger.types import TopicConfig
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind, raised
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.segment import Segment
from tests.e2e.daemon import wait_until
from tests.ledger.test_backup import assert_same
from uploader.ownership.ownerlog import Former, OwnerLog, SealedLog
from uploader.ownership.ownership import PERIOD_NS, RETRY_NS
from uploader.ownership.standby import LOOK_GAP_NS
from uploader.stores.base import PartedPut, StoreError, StoreRefused
from uploader.stores.file import FileStore
from uploader.stores.retry import Budget

OWNER = Owner("host", 1, "boot", 1, 1, "/data")


class HeldParts:
    """A real PartedPut whose parts wait for a gate, or fail."""

    def __init__(self, store: HeldStore, inner: PartedPut) -> None:
        self._store = store
        self._inner = inner

    def put(self, part: bytes) -> None:
        self._store.waiting.set()
        self._store.gate.wait()
        if self._store.error is not None:
            raise self._store.error
        self._inner.put(part)

    def finish(self) -> None:
        self._inner.finish()

    def abandon(self) -> None:
        self._inner.abandon()


class HeldStore(FileStore):
    """The real store, but images are held up."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.error: StoreError | None = None
        self.discarded: list[str] = []

    def put_in_parts(self, key: str) -> PartedPut:
        return HeldParts(self, super().put_in_parts(key))

    def discard_unfinished(self, prefix: str) -> int:
        self.discarded.append(prefix)
        if self.error is not None:
            raise self.error
        return 1


class Rig:
    """An owner's thread and an image thread, without a daemon around them."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ledger.db"
        self.segment = Segment.create(Layout(shards=1, ring_bytes=4096))
        self.words = self.segment.words
        self.bells = Doorbells.create(1)
        self.store = HeldStore(str(directory / "store"))
        self.log = OwnerLog(self.store, OWNER, lambda _: None)
        self.ledgers = [Ledger(self.path, nullcontext()) for _ in range(3)]
        self.ledger, told, copied = self.ledgers
        self.owner = OwnerThread(self.segment, self.bells, self.log, told)
        board = AlarmBoard(self.segment, self.segment.layout.shards)
        self.images = ImageThread(self.segment, self.owner, self.log, self.store, copied, board)
        incarnation, _ = self.ledger.write(epochs.begin_incarnation, 1, 0)
        self.words[at.G_INCARNATION] = incarnation
        self.owner.own(incarnation, SealedLog(0, None))
        self.owner.start()

    @property
    def entries(self) -> int:
        """The last accepted one."""
        return self.words[at.G_ENTRY_NUMBER]

    def news(self, name: str) -> None:
        """A topic, and an entry that tells it."""
        before = self.entries
        self.ledger.write(topics.create, name, TopicConfig(), 1)
        self.bells.ring(self.bells.owner)
        wait_until(lambda: self.entries > before, f"an entry that tells {name}")

    def alarms(self) -> list[str]:
        return [a.text for a in raised(self.segment) if a.kind is AlarmKind.IMAGE_FAILING]

    def copies(self) -> list[str]:
        return [path.name for path in self.path.parent.glob("*.copy-*")]

    def check_recovery(self) -> None:
        """What a recovery makes of the store is the ledger."""
        there = self.path.parent / "recovered" / "ledger.db"
        there.parent.mkdir()
        last = self.log.last()
        rebuild(there, nullcontext(), self.store, SealedLog(1, last, Former.OURS), self.log)
        assert_same(self.path, there)

    def close(self) -> None:
        self.store.gate.set()
        if self.images._thread.is_alive():
            self.images.stop(60)
        if self.owner.alive:
            self.owner.release()
        for ledger in self.ledgers:
            ledger.close()
        self.store.close()
        self.bells.close()
        self.segment.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Periods are short here: what is tested is the order."""
    monkeypatch.setattr("uploader.ownership.ownership.PERIOD_NS", PERIOD_NS // 1000)
    monkeypatch.setattr("uploader.ownership.ownership.RETRY_NS", RETRY_NS // 1000)
    monkeypatch.setattr(image_module, "LOOK_S", 0.01)
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def due(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    monkeypatch.setattr(image_module, "is_due", lambda told, _b, _l: told >= entries)


def test_an_image_that_takes_for_ever_to_upload_delays_no_entry(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.news("before")
    rig.store.gate.clear()
    due(monkeypatch, 2)
    rig.images.start()
    assert rig.store.waiting.wait(60)
    after = rig.entries
    for name in "abcdef":
        rig.news(name)
        assert rig.words[at.G_OWNED_SENT_NS] > 0 and rig.owner.named is None
    due(monkeypatch, 10**9)
    rig.store.gate.set()
    image = wait_until(lambda: rig.owner.named, "the image to be named")
    assert image is not None and image.after == after < rig.entries - 5
    wait_until(lambda: rig.log.keys()[1] == (1, after + 1), "what it covers to go")
    rig.news("behind")
    rig.owner.release()
    assert rig.log.image() == image and rig.copies() == []
    assert rig.log.entries_behind == rig.entries - after
    rig.check_recovery()


def test_what_a_standby_may_not_have_found_yet_stays_for_its_next_looks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.news("before")
    rig.words[at.G_STANDBYS] = 1
    waits: list[tuple[float, list[tuple[int, int]]]] = []
    wait = rig.images._stopped.wait

    def waited(seconds: float) -> bool:
        waits.append((seconds, rig.log.keys()))
        return wait(0.01)

    monkeypatch.setattr(rig.images._stopped, "wait", waited)
    image = rig.images.make()
    seconds, before = waits[-1]
    after = rig.log.keys()
    assert rig.owner.named == image and seconds * 1e9 > 2 * LOOK_GAP_NS
    assert (1, image.after) in before and (1, image.after) not in after


def test_a_release_may_name_an_image(rig: Rig) -> None:
    rig.news("a")
    rig.store.gate.clear()
    maker = threading.Thread(target=rig.images.make)
    maker.start()
    assert rig.store.waiting.wait(60)
    rig.owner._stopping = True  # no entry comes any more but the release
    rig.bells.ring(rig.bells.owner)
    wait_until(lambda: not rig.owner.alive, "the owner's thread to end")
    rig.store.gate.set()
    wait_until(lambda: rig.owner._to_name, "the image to be there")
    rig.owner.release()
    maker.join()
    last = rig.log.last()
    assert last is not None and last.kind == "release" and last.names == rig.owner.named
    rig.check_recovery()


def test_an_image_that_fails_is_tried_again_later_with_an_alarm(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_module, "IMAGE", Budget("image", None, 0.01, 0.01))
    due(monkeypatch, 0)
    rig.store.error = StoreRefused("no rights for parts")
    rig.images.start()
    wait_until(lambda: rig.alarms() == ["no rights for parts"], "the alarm")
    wait_until(lambda: rig.copies() == [], "no try to be under way")
    assert list(rig.store.list("ledger/"))[-1].key.endswith("000001")
    rig.news("meanwhile")
    rig.store.error = None
    wait_until(lambda: not rig.alarms(), "the alarm to end")
    assert rig.owner.named is not None
    rig.images.stop(60)
    rig.owner.release()
    rig.check_recovery()


def test_a_stop_gives_an_image_up_and_leaves_nothing_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    due(monkeypatch, 0)
    rig.store.gate.clear()
    rig.images.start()
    assert rig.store.waiting.wait(60)
    rig.images.stop(0)
    rig.store.gate.set()
    rig.images.stop(60)
    rig.owner.release()
    assert rig.copies() == [] and rig.log.image() is None
    assert [path.name[:3] for path in (rig.path.parent / "store" / "entries").iterdir()] == [
        "led", "led"
    ]  # fmt: skip
    assert not rig.alarms()
    rig.check_recovery()


def test_a_start_removes_what_a_killed_daemon_had_begun(rig: Rig) -> None:
    key = image_key(1, 7, b"nonce678")
    rig.images._copy_path(key).write_bytes(b"half a copy")
    assert len(rig.copies()) == 1
    rig.store.error = StoreError("busy", retryable=True)
    with pytest.raises(StoreError):
        rig.images.tidy()
    assert len(rig.copies()) == 1  # by its name the parts are found
    rig.store.error = None
    rig.store.discarded.clear()
    rig.images.tidy()
    assert rig.store.discarded == ["ledger/", key] and rig.copies() == []
    # A store that forbids the search is not a reason to keep the copy.
    rig.images._copy_path(key).write_bytes(b"half a copy")
    rig.store.error = StoreRefused("no rights")
    rig.images.tidy()
    assert rig.copies() == []


def test_a_copy_leaves_room_for_what_is_written_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_module, "FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(image_module.NoRoom, match=r"needs \d+ MiB free in .*free some space"):
        rig.images.make()
    assert rig.copies() == []


def test_what_an_image_says_that_it_covers_was_told_before_it_was_copied(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits between the copy and the entry that names it are in the entries behind."""
    rig.news("a")
    real = backup.copy_to

    def copied_late(tx: ReadTx, path: Path, between: Callable[[], None]) -> int:
        rig.news("b")  # accepted after the number that the image names
        number = real(tx, path, between)
        rig.news("c")
        return number

    monkeypatch.setattr(backup, "copy_to", copied_late)  # the moment between two calls
    image = rig.images.make()
    assert image.after == 2 and rig.entries == 5
    rig.owner.release()
    assert [e.number for e in rig.log.chain(image)] == [3, 4, 5, 6]
    rig.check_recovery()


def test_an_alarm_of_tidying_up_ends_when_it_succeeds_though_no_image_is_due(rig: Rig) -> None:
    rig.store.error = StoreError("the store is away", retryable=True)
    rig.images.start()
    wait_until(lambda: rig.alarms() == ["the store is away"], "the alarm")
    rig.store.error = None
    wait_until(lambda: not rig.alarms(), "the alarm to end")
    assert not rig.images.is_due()
