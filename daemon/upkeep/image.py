"""The supervisor's image thread: from time to time the whole ledger goes to the store.

Lifecycle of an image: due (``uploader/ownership/image.py`` decides) -> *copy*, a file next to the
ledger as of one moment -> *parts*, put one by one -> *named* by the next entry of the owner's log
-> what it makes unnecessary is removed, and so is the copy. Whatever fails or stops before it is
named leaves nothing that counts: it is begun anew later, after longer and longer pauses, with an
alarm.

The owner's thread goes on meanwhile with entries, which are what the ownership ages by: nothing
here is waited for by it, by a commit or by a stop. A copy's name says which image it is of, so
that the next start finds what a killed one left, here and in the store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
from pathlib import Path

from daemon.upkeep.owner import OwnerThread
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import PREFIX, EntryError, Image, image_key
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import monotonic_ns
from shards.segment import Segment
from uploader.ownership.image import ImageTooLarge, is_due, put_image
from uploader.ownership.ownerlog import OwnerLog
from uploader.stores.base import PartedStore, StoreError
from uploader.stores.retry import BULK, IMAGE, ceiling_s
from uploader.stores.retrying import Retry, RetryingParts

log = logging.getLogger("headgate.image")

LOOK_S = 1.0
# A standby looks for the next entry, by its number, at most 5 s after its last look (LOOK_GAP_NS),
# and that takes at most as long. An entry that went before it looked it would wait for in vain.
STANDBY_LOOKS_S = 15.0
COPY_SUFFIX = ".copy-"  # then the image's key, with dots for slashes
# Left free in addition to a copy: what is written meanwhile, which matters more than an image.
FREE_BYTES_MIN = 256 << 20


class _Stopped(Exception):
    """The daemon stops, or the prefix is another's: the image is given up."""


class NoRoom(RuntimeError):
    """There is no space for a copy of the ledger."""


class ImageThread:
    """One incarnation's images. ``ledger`` is this thread's own, closed when the thread ends."""

    def __init__(
        self, segment: Segment, owner: OwnerThread, owner_log: OwnerLog, store: PartedStore,
        ledger: Ledger, alarms: AlarmBoard,
    ) -> None:  # fmt: skip
        self._words = segment.words
        self._owner = owner
        self._log = owner_log
        self._store = store
        self._ledger = ledger
        self._alarms = alarms
        rng = random.Random(f"image {owner_log.owner.pid} {owner_log.owner.boot_id}")
        self._retry = Retry(BULK, rng, self._wait)
        self._failures = 0
        self._not_before_ns = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="image", daemon=True)

    def start(self) -> None:
        """Begins the thread."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Ends it. A part that is on its way is not waited for longer than ``wait_s``."""
        self._stopped.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        with contextlib.closing(self._ledger):
            self._take_turns()

    def _take_turns(self) -> None:
        tidy = False
        while not self._is_over():
            try:
                if not tidy:
                    self.tidy()
                    tidy = True
                due = self.is_due()
                if due and monotonic_ns() >= self._not_before_ns:
                    self.make()
                    due = False
                if not due:  # nor may it be for a day; what failed was to tidy up
                    self._failures = 0
                    self._alarms.clear(AlarmKind.IMAGE_FAILING)
            except _Stopped:
                break
            except (StoreError, LedgerError, EntryError, OSError, ImageTooLarge, NoRoom) as error:
                if self._is_over():
                    break
                self._failures += 1
                pause_s = ceiling_s(self._failures, IMAGE)
                self._not_before_ns = monotonic_ns() + int(pause_s * 1e9)
                log.warning("no image of the ledger, tried again in %d s: %s", pause_s, error)
                self._alarms.raise_(AlarmKind.IMAGE_FAILING, str(error), monotonic_ns())
            self._stopped.wait(LOOK_S)

    def _is_over(self) -> bool:
        return self._stopped.is_set() or bool(self._words[at.G_SUPERSEDED])

    def _going_on(self) -> None:
        if self._is_over():
            raise _Stopped

    def is_due(self) -> bool:
        """Whether entries since the last image are many."""
        size_bytes = self._ledger.path.stat().st_size
        return is_due(self._log.entries_behind, self._log.bytes_behind, size_bytes)

    def make(self) -> Image:
        """Takes an image now. Raises StoreError, LedgerError, OSError, ImageTooLarge, NoRoom."""
        began_ns = monotonic_ns()
        # Before the copy: what this entry and those before it told is in it.
        after = int(self._words[at.G_ENTRY_NUMBER])
        key = image_key(int(self._words[at.G_INCARNATION]), after, os.urandom(8))
        copy = self._copy_path(key)
        try:
            self._check_room(self._ledger.path.stat().st_size)
            commit_number = self._copy(copy)
            made = RetryingParts(self._store.put_in_parts(key), self._retry)
            try:
                size_bytes, crc32c = put_image(made, copy, self._going_on)
            except BaseException:
                with contextlib.suppress(StoreError):  # the next start finds it
                    made.abandon()
                raise
        finally:
            copy.unlink(missing_ok=True)
        image = Image(key, size_bytes, crc32c, after, commit_number)
        self._owner.name(image)
        while self._owner.named != image:
            self._going_on()
            self._stopped.wait(LOOK_S)
        log.info("image of the ledger: %d bytes in %.1f s, up to commit %d",
                 size_bytes, (monotonic_ns() - began_ns) / 1e9, commit_number)  # fmt: skip
        if self._words[at.G_STANDBYS]:
            self._stopped.wait(STANDBY_LOOKS_S)
            self._going_on()
        self._forget_before(image)
        return image

    def _forget_before(self, image: Image) -> None:
        try:
            entries, images = self._log.forget_before(image)
        except StoreError as error:
            log.warning("what the image makes needless stays until the next one: %s", error)
        else:
            log.info("%d entries and %d images removed", entries, images)

    def tidy(self) -> None:
        """Removes what a killed run left: copies here, and parts in the store.

        A store that finds parts by their whole key only finds those of the copies. Raises
        StoreError when that may help another time.
        """
        path = self._ledger.path
        copies = list(path.parent.glob(f"{path.name}{COPY_SUFFIX}*"))
        try:
            for prefix in (PREFIX, *(_key_of(copy) for copy in copies)):
                if discarded := self._store.discard_unfinished(prefix):
                    log.info("%d images that a killed daemon had begun are discarded", discarded)
        except StoreError as error:
            if error.retryable:
                raise
            log.warning("parts of images that a killed daemon had begun may be left: %s", error)
        for copy in copies:
            copy.unlink(missing_ok=True)

    def _copy_path(self, key: str) -> Path:
        path = self._ledger.path
        return path.with_name(
            f"{path.name}{COPY_SUFFIX}{key.removeprefix(PREFIX).replace('/', '.')}"
        )

    def _copy(self, copy: Path) -> int:
        """Copies the ledger; what is written is made durable piece by piece, so that no commit's
        sync finds gigabytes of it to write first."""

        def between() -> None:
            self._going_on()
            self._check_room(0)
            with copy.open("rb") as file:
                os.fdatasync(file.fileno())

        return self._ledger.read(backup.copy_to, copy, between)

    def _check_room(self, size_bytes: int) -> None:
        there = os.statvfs(self._ledger.path.parent)
        free_bytes = there.f_bavail * there.f_frsize
        if free_bytes < size_bytes + FREE_BYTES_MIN:
            raise NoRoom(
                f"a copy of the ledger needs {size_bytes + FREE_BYTES_MIN >> 20} MiB free in"
                f" {self._ledger.path.parent}, there are {free_bytes >> 20}; free some space"
            )

    def _wait(self, seconds: float) -> None:
        """Between two attempts at a part; a stop ends them."""
        self._stopped.wait(seconds)
        self._going_on()


def _key_of(copy: Path) -> str:
    """The key of the image that a copy was made for."""
    return PREFIX + copy.name.partition(COPY_SUFFIX)[2].replace(".", "/")
