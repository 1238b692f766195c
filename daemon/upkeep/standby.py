"""A standby's ledger and thread: follow an owner's log, and take the prefix over when it is silent.

The *warm ledger* is a file next to the ledger: the last image and every entry since, applied as
they appear. A take-over makes it the ledger (``recover.rebuild``) instead of reading the whole log.
It is built anew with each start of a standby, and when entries are missing that an image has
replaced.

The thread blocks on the store. What it knows is a ``StandbyView``, replaced as a whole, for all
readers. Decisions are ``uploader/ownership/standby.py``'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate

from ledger.dedupe import DedupeLimits
from ledger.errors import LedgerError, LedgerMissing
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import Entry, LogIncomplete
from ledger.private_files import opener
from ledger.tx import P, ReadTx, T
from shards.clock import boottime_ns
from uploader.ownership.ownerlog import OwnerLog, Question, SealedLog
from uploader.ownership.standby import LOOK_GAP_NS, LogEnd, Standby, StandbyAction, StandbyView
from uploader.stores.base import ObjectMissing, StoreError

log = logging.getLogger("headgate.standby")

_SUFFIXES = ("", "-wal", "-shm")
_ENDS = {"seal": LogEnd.SEALED, "release": LogEnd.RELEASED}
STOP_S = 10.0  # a service manager kills after 25 (TimeoutStopSec)
TROUBLE_TOLD_NS = 30 * 10**9  # the store has to fail for so long, until the log says so


class StandbyStopped(Exception):
    """A signal has ended the standby."""


class WarmLedger:
    """A ledger that holds what a log tells, up to the entry at ``place``.

    ``last`` is the last entry that is not a seal. ``gave_up``: this directory's last run has ended
    for a standby, which takes what it released. One thread, but ``read`` may be called by others.
    """

    def __init__(
        self, ledger_path: Path, lock: contextlib.AbstractContextManager[object],
        owner_log: OwnerLog, limits: DedupeLimits | None = None, *, gave_up: bool = False,
    ) -> None:  # fmt: skip
        self._gave_up = gave_up
        self.path = ledger_path.with_name(ledger_path.name + ".standby")
        self._lock = lock
        self._log = owner_log
        self._limits = limits
        self._ledger: Ledger | None = None
        self._use = threading.Lock()  # of the ledger's connection
        self._is_whole = False  # it has been at the end of the log since it was begun
        self.place: tuple[int, int] | None = None
        self.last: Entry | None = None
        self.end = LogEnd.EMPTY
        self.entries = 0

    def catch_up(self) -> bool:
        """Follows the log to its end; whether there was anything new. Raises StoreError,
        EntryError, LedgerError."""
        before = self.place
        if before is not None:
            heads = self._log.keys()
            after = [key for key in heads if key > before]
            if before not in heads or (after and not _follows(before, after[0])):
                before = None  # an image has replaced what is missing
        if before is None:
            self._begin()
        else:
            for entry in self._log.chain(after=before):
                self.apply(entry)
        self._is_whole = True
        return self.place != before

    def next(self) -> Entry | None:
        """The entry after the last one, if there is one: one GET, or two after a seal. One
        attempt. Raises StoreError, EntryError."""
        incarnation, number = self.place or (0, 0)
        places = [(incarnation, number + 1)]
        if self.end is not LogEnd.OWNED:
            places.insert(0, (incarnation + 1, 1))
        for place in places:
            with contextlib.suppress(ObjectMissing):
                return self._log.read(*place)
        return None

    def apply(self, entry: Entry) -> None:
        """Takes the next entry in. Twice is harmless. Raises LedgerError."""
        assert self._ledger is not None
        if entry.image is not None:
            self._replace(entry.image)
        elif entry.changes is not None:
            with self._use:
                self._ledger.write(backup.apply, entry.changes)
        self.place = entry.incarnation, entry.number
        self.end = _ENDS.get(entry.kind, LogEnd.OWNED)
        if entry.owner.same_directory(self._log.owner):
            if self._gave_up:
                self.end = LogEnd.SEALED
            elif self.end is LogEnd.SEALED:
                self.end = LogEnd.SEALED_HERE
        if entry.kind != "seal":
            self.last = entry
        self.entries += 1

    def read(
        self, question: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As Ledger.read; waits while an entry is applied. Raises LedgerMissing until the end of
        the log was reached, also if it is built anew."""
        with self._use:
            if self._ledger is None or not self._is_whole:
                raise LedgerMissing(self.path)
            return self._ledger.read(question, *args, **kwargs)

    def close(self) -> None:
        """Closes the file, which stays."""
        with self._use:
            ledger, self._ledger = self._ledger, None
            if ledger is not None:
                ledger.close()

    def remove(self) -> None:
        """Closes and removes it."""
        self.close()
        for suffix in _SUFFIXES:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _begin(self) -> None:
        self._is_whole = False
        self.remove()
        self.place = self.last = None
        self.end = LogEnd.EMPTY
        image = self._log.image()
        if image is not None:
            with open(self.path, "xb", opener=opener) as file:
                self._log.get_image(image, file)
        self._ledger = Ledger(self.path, self._lock, dedupe_limits=self._limits)
        for entry in self._log.chain(image):
            self.apply(entry)

    def _replace(self, image: bytes) -> None:
        self.remove()
        with open(self.path, "xb", opener=opener) as file:
            file.write(image)
        self._ledger = Ledger(self.path, self._lock, dedupe_limits=self._limits)


def _follows(place: tuple[int, int], after: tuple[int, int]) -> bool:
    return after in ((place[0], place[1] + 1), (place[0] + 1, 1))


class StandbyThread:
    """Follows until it has taken the prefix, is stopped, or cannot go on.

    ``ended`` is called, by the thread, at its end. Then ``taken`` is the sealed log, or ``error``
    why it cannot go on, or both are None after ``stop``.
    """

    def __init__(self, owner_log: OwnerLog, warm: WarmLedger, ended: Callable[[], object]) -> None:
        self._log = owner_log
        self._warm = warm
        self._ended = ended
        self._standby = Standby()
        self._question: bytes | None = None  # that stands, ours or another's
        self._stop = threading.Event()
        self._failing_ns = 0
        self._followed = 0  # entries of which the standby was told
        self._caught_up_ns = 0
        self._cannot_write = ""
        self.view = StandbyView()
        self.taken: SealedLog | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="standby", daemon=True)

    def start(self) -> None:
        """Begins the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the call of the store that is under way, or leaves it to that call
        after STOP_S: a store that cannot be reached must not hold up a stop."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            with contextlib.closing(self._warm):
                self.follow()
        except Exception as error:  # noqa: BLE001 - told by whoever waits for us
            self.error = error
        finally:
            self._ended()

    def follow(self) -> None:
        """Does what the standby decides, until it has taken the prefix or is stopped."""
        while not self._stop.is_set() and self.taken is None:
            step = self._standby.decide(boottime_ns())
            if step.do is StandbyAction.WAIT:
                self._stop.wait(max(0, step.at_ns - boottime_ns()) / 1e9)
                continue
            try:
                self._do(step.do)
            except (StoreError, LedgerError, LogIncomplete, OSError) as error:
                self._failed(error)
            else:
                self._told()

    def _do(self, action: StandbyAction) -> None:
        standby, warm = self._standby, self._warm
        match action:
            case StandbyAction.SURVEY:
                began_ns = boottime_ns()
                warm.catch_up()
                # Also what a survey found before it failed.
                is_new, self._followed = warm.entries != self._followed, warm.entries
                self._caught_up_ns = began_ns
                if is_new:
                    self._question = None
                standby.surveyed(warm.end, boottime_ns(), is_new=is_new)
            case StandbyAction.LOOK:
                began_ns = boottime_ns()
                entry = warm.next()
                if entry is None:
                    standby.empty(began_ns, boottime_ns())
                    self._caught_up_ns = began_ns
                    return
                found_ns = boottime_ns()
                warm.apply(entry)
                self._followed = warm.entries
                self._follow_owner(entry)
                standby.found(
                    warm.end, found_ns, is_first=entry.number == 1, hands_over=entry.hands_over
                )
            case StandbyAction.ASK:
                self._ask()
            case StandbyAction.READ_QUESTION:
                assert warm.place is not None
                assert self._question is not None
                if self._log.question(warm.place[0]) == self._question:
                    standby.stands()
                else:
                    self._question = None
                    standby.answered(boottime_ns())
            case StandbyAction.TAKE:
                self._take()

    def _follow_owner(self, entry: Entry) -> None:
        if entry.number == 1:
            owner = entry.owner
            log.info("following %s (pid %d, %s)", owner.host, owner.pid, owner.data_dir)
            self._question = None
        if entry.hands_over:
            log.info("%s hands over", entry.owner.host)

    def _ask(self) -> None:
        """Puts our question, or finds another's: whether that stands tells as much."""
        warm = self._warm
        assert warm.place is not None
        nonce = os.urandom(8).hex()
        is_ready = self._standby.is_eager(boottime_ns())
        question = Question(nonce, self._log.owner, self._commits(), is_ready)
        try:
            is_ours = self._log.ask(warm.place[0], question)
        except StoreError as error:
            self._cannot_write = f"it cannot write to the store: {error}"
            raise
        self._cannot_write = ""
        self._question = self._log.question(warm.place[0])
        if self._question is None:  # another's, which was just answered
            self._standby.answered(boottime_ns())
        else:
            self._standby.asked(boottime_ns(), is_ours=is_ours)

    def _take(self) -> None:
        warm = self._warm
        if warm.end is LogEnd.OWNED:
            assert warm.last is not None
            owner = warm.last.owner
            log.warning(
                "%s (pid %d, %s) has shown no sign of life for %.1f s: taking over",
                owner.host, owner.pid, owner.data_dir, self._standby.silent_ns / 1e9,
            )  # fmt: skip
        self.taken = self._log.take_after(warm.place, warm.last)
        if self.taken is None:
            log.info("the owner's log goes on, or another standby was faster: waiting again")
            self._standby.not_taken(boottime_ns())

    def _commits(self) -> int:
        last = self._warm.last
        return 0 if last is None else last.mark.commit_number

    def _failed(self, error: Exception) -> None:
        now_ns = boottime_ns()
        self._standby.failed(now_ns)
        if not self._failing_ns:
            self._failing_ns = now_ns
        elif self._failing_ns > 0 and now_ns - self._failing_ns > TROUBLE_TOLD_NS:
            log.warning("the standby cannot follow: %s", error)
            self._failing_ns = -1
        self._show(self._cannot_write or str(error))

    def _told(self) -> None:
        """A step has succeeded."""
        self._failing_ns = 0
        trouble, blind_ns = self._cannot_write, self._standby.blind_ns
        if blind_ns and not trouble:
            trouble = (
                f"{blind_ns / 1e9:.1f} s passed between two looks at the store, and silence counts"
                f" over {LOOK_GAP_NS / 1e9:.0f} s at most: with a store as slow as this there is no"
                " take-over"
            )
        self._show(trouble)

    def _show(self, trouble: str) -> None:
        last, standby = self._warm.last, self._standby
        self.view = StandbyView(
            None if last is None else last.owner, self._commits(), self._warm.entries,
            self._caught_up_ns, standby.silent_ns, standby.answered_ns, trouble,
        )  # fmt: skip
