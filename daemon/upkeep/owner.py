"""The supervisor's owner thread: keeps the prefix ours by entries in the owner's log.

Lifecycle: ``own`` (seal the former log, compare histories, first entry of the new incarnation)
-> ``start`` -> an entry per period while there is news or an upload asks -> ``release`` (the last
entry of a clean stop). When another daemon has taken our number, ``superseded`` is set for good:
the shared word stops all commits, and the supervisor ends the process.

It writes the owner's words of the segment and nothing else of it. It blocks on the store, which
the supervisor's tick never does. Decisions are ``uploader/ownership/ownership.py``'s.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from pathlib import Path
from typing import Literal

from ledger import commits
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.log.entry import Entry, EntryError, Image, Owner
from ledger.tx import Transactions
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import boot_id, boottime_ns, monotonic_ns, wall_ns
from shards.doorbell import Doorbells
from shards.segment import Segment
from uploader.ownership.ownerlog import OwnerLog, Question, SealedLog, question_of
from uploader.ownership.ownership import (
    HANDOVER_LISTEN_NS,
    KNOWN_STANDBY_NS,
    LISTEN_NS,
    STANDBY_LISTEN_NS,
    Moment,
    OwnerAction,
    Ownership,
    may_commit,
    tell_sent,
)
from uploader.pipeline.outage import Outage
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.owner")

LOCK_NAME = "lock"  # in the data directory; held for as long as a daemon lives
LOOK_S = 1.0  # how late news of topics, floors and commands is seen; commits ring nobody here
HANDOVER_NS = 40 * 10**9  # for a standby to say that it is ready


class OtherHistory(RuntimeError):
    """The ledger here and the log in the store do not tell the same story."""


def this_owner(data_dir: str) -> Owner:
    """Who we are, as entries tell it; the directory's lock is held."""
    there = os.stat(Path(data_dir) / LOCK_NAME)
    path = str(Path(data_dir).resolve())
    return Owner(socket.gethostname(), os.getpid(), boot_id(), there.st_dev, there.st_ino, path)


def check_history(ledger: Transactions, last: Entry | None, store_url: str) -> None:
    """Raises OtherHistory unless the ledger holds all that ``last`` covers."""
    here = ledger.read(backup.mark)
    if last is None:
        if here.commit_number:
            raise OtherHistory(
                f"the ledger has {here.commit_number} commits, but {store_url} has never been"
                " owned: the ledger is another store's; give its own --store, or another --data"
                " directory"
            )
        return
    there = last.mark
    holds_all = (
        here.commit_number >= there.commit_number
        and here.catalog_version >= there.catalog_version
        and here.change_number >= there.change_number
        and here.epoch_floor >= there.epoch_floor
        and here.history == there.history
    )
    number = there.commit_number
    if not holds_all or (number and ledger.read(commits.lease_of, number) != there.lease):
        raise OtherHistory(
            f"the ledger has {here.commit_number} commits and does not hold all up to commit"
            f" {number} of {store_url} (topics {here.catalog_version} of {there.catalog_version}):"
            " it is an old copy, another store's, or from before a recovery; `headgate recover`"
            " with the same --data and --store rebuilds it from the store and keeps this one aside"
        )


class OwnerThread:
    """One incarnation's entries."""

    def __init__(
        self, segment: Segment, bells: Doorbells, owner_log: OwnerLog, ledger: Ledger
    ) -> None:
        self._words = segment.words
        layout = segment.layout
        shards = [layout.shard(shard) for shard in range(layout.shards)]
        self._wanted_at = [shard + at.S_ENTRY_WANTED_NS for shard in shards]
        self._backup_wanted_at = [shard + at.S_BACKUP_WANTED_NS for shard in shards]
        self._handover_wanted_at = [shard + at.S_HANDOVER_WANTED_NS for shard in shards]
        self._bells = bells
        self._bell = bells.owner
        self._log = owner_log
        self._ledger = ledger
        self._ownership = Ownership()
        self._alarms = AlarmBoard(segment, layout.shards)
        self._outage = Outage(self._alarms)
        self._incarnation = 0
        self.told = Mark()  # up to where accepted entries have the ledger
        self._unsure: Entry | None = None  # sent, and its fate is not known
        self._read_ns = 0  # before the ledger was read for that entry
        self._asked = False  # by a start that wants to know whether we live
        self._listened: Moment | None = None
        self._is_deaf = False  # the last attempt to look failed
        self._doubts = False  # whether the prefix is still ours: an entry tells
        self._standbys: dict[Owner, tuple[int, Question]] = {}  # when it asked last, and what
        self._handover_ns = 0  # since when one is wanted; 0: none is
        self._handover_told = False  # by an accepted entry
        self._to_name: Image | None = None
        self.named: Image | None = None  # the last image that an accepted entry named
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="owner", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs; it ends by itself only when superseded, or by a bug."""
        return self._thread.is_alive()

    @property
    def superseded(self) -> bool:
        """Another daemon owns the prefix."""
        return self._ownership.superseded

    def own(self, incarnation: int, taken: SealedLog) -> None:
        """Writes the first entry of a new incarnation, before any shard runs.

        Raises StoreError, and OtherHistory when another start was faster.
        """
        self._incarnation = incarnation
        self.told = taken.told
        self._put("entry")
        if self.superseded:
            raise OtherHistory(
                f"another daemon started on {self._log.store_url} at the same moment;"
                " this one gives way"
            )

    def name(self, image: Image) -> None:
        """Names an image of this incarnation in the next entry; ``named`` tells when that is
        accepted. From another thread."""
        self._to_name = image
        self._bells.ring(self._bell)

    def start(self) -> None:
        """Begins the thread."""
        self._thread.start()

    def release(self) -> None:
        """Ends the thread and, if we still own the prefix, says so in a last entry."""
        self._stopping = True
        self._bells.ring(self._bell)
        self._thread.join()
        if self.superseded:
            return
        try:
            self._put("release")
        except (StoreError, LedgerError, EntryError) as error:
            log.warning("the prefix is not released, the next start may have to wait: %s", error)

    def _run(self) -> None:
        while not self._stopping and not self.superseded:
            now_ns = boottime_ns()
            self._follow_handover(now_ns)
            step = self._ownership.decide(now_ns, self._has_news())
            if step.do is OwnerAction.LISTEN:
                self._listen()
                continue
            if step.do is OwnerAction.PUT:
                try:
                    self._put("entry")
                except (StoreError, LedgerError, EntryError) as error:
                    self._ownership.failed(boottime_ns())
                    # The supervisor tells of the alarm, once for all that fails.
                    log.debug("an entry of the owner's log failed: %s", error)
                continue
            wait_s = min(LOOK_S, max(0.0, (step.at_ns - now_ns) / 1e9))
            select.select([self._bells.fds[self._bell]], [], [], wait_s)
            self._bells.clear(self._bell)

    def _listen(self) -> None:
        began_ns = monotonic_ns()
        try:
            body = self._log.question(self._incarnation)
            question = None if body is None else question_of(body)
            if question is not None:
                self._log.forget_question(self._incarnation)
        except StoreError as error:
            log.debug("it is not known whether anybody asks for this owner: %s", error)
            self._ownership.not_listened(boottime_ns())
            if self._standbys:  # which may see the store, and take over
                self._is_deaf = True
                self._outage.failed(error, began_ns, monotonic_ns())
            return
        if self._is_deaf:
            self._is_deaf = False
            self._outage.kept(monotonic_ns())
        now = Moment(boottime_ns(), wall_ns())
        known = (self._listened or now, self._ownership.sent)
        if not any(may_commit(now, each) for each in known):
            self._doubts = True  # a standby may have taken over, and an idle owner writes nothing
        self._listened = now
        now_ns = now.boot_ns
        self._asked = body is not None and question is None
        if question is not None:
            self._note(question, now_ns)
        for standby, (asked_ns, _) in list(self._standbys.items()):
            if now_ns - asked_ns > KNOWN_STANDBY_NS:
                log.warning("the standby %s (%s) is gone", standby.host, standby.data_dir)
                del self._standbys[standby]
        words = self._words
        words[at.G_STANDBYS] = len(self._standbys)
        words[at.G_STANDBY_COMMITS] = max(
            (asked.commit_number for _, asked in self._standbys.values()), default=0
        )
        is_told = self._handover_told and now_ns - self._handover_ns <= HANDOVER_NS
        if is_told and question is not None and question.is_ready:
            self._hand_over(question.asker, now_ns)
        self._ownership.listened(
            now_ns,
            HANDOVER_LISTEN_NS if self._handover_told
            else STANDBY_LISTEN_NS if self._standbys
            else LISTEN_NS,
        )  # fmt: skip

    def _note(self, question: Question, now_ns: int) -> None:
        asker = question.asker
        if asker not in self._standbys:
            log.info("a standby follows: %s (pid %d, %s)", asker.host, asker.pid, asker.data_dir)
            for standby in list(self._standbys):
                if (standby.host, standby.data_dir) == (asker.host, asker.data_dir):
                    del self._standbys[standby]  # its former process
        self._standbys[asker] = now_ns, question
        self._words[at.G_STANDBY_SEEN_NS] = now_ns

    def _follow_handover(self, now_ns: int) -> None:
        """Begins a handover that a shard wants, and gives up one that no standby takes."""
        wanted_ns = max(self._words[index] for index in self._handover_wanted_at)
        if wanted_ns > self._handover_ns:
            self._handover_ns, self._handover_told = wanted_ns, False
        elif self._handover_told and now_ns - self._handover_ns > HANDOVER_NS:
            log.warning("no standby is ready, so nothing is handed over")
            self._handover_told = False
            self._ownership.listened(now_ns, STANDBY_LISTEN_NS)

    @property
    def _handover_begins(self) -> bool:
        """Whether the next entry must tell that we hand over."""
        wanted_ns = self._handover_ns
        if not wanted_ns or self._handover_told:
            return False
        return boottime_ns() - wanted_ns < HANDOVER_NS

    def _hand_over(self, standby: Owner, now_ns: int) -> None:
        """A standby waits for our last entry: the supervisor ends, and writes it."""
        if not self._words[at.G_HANDED_OVER_NS]:
            log.info("handing over to %s (pid %d, %s)", standby.host, standby.pid,
                     standby.data_dir)  # fmt: skip
            self._words[at.G_HANDED_OVER_NS] = now_ns
            self._bells.ring_all(range(self._bells.owner))

    def _answered(self) -> None:
        """An entry stands in the log since a start asked."""
        self._asked = False
        try:
            self._log.forget_question(self._incarnation)
        except StoreError as error:
            log.debug("a question that was answered is not removed yet: %s", error)

    def _has_news(self) -> bool:
        if self._to_name is not None:
            return True
        sent_ns = self._ownership.sent.boot_ns
        if self._asked or self._doubts or self._handover_begins:
            return True
        if any(self._words[index] > sent_ns for index in self._wanted_at):
            return True
        if self._is_awaited():
            return True
        if self._words[at.G_COMMITS] > self.told.commit_number:
            return True
        try:
            return self._ledger.read(backup.mark) != self.told
        except LedgerError as error:
            log.debug("the ledger cannot be looked at: %s", error)
            return True  # the entry that is due then raises the alarm

    def _is_awaited(self) -> bool:
        """Whether a request waits for an entry that covers what it wrote."""
        backed_up_ns = self._words[at.G_BACKED_UP_NS]
        return any(self._words[index] > backed_up_ns for index in self._backup_wanted_at)

    def _put(self, kind: Literal["entry", "release"]) -> None:
        """Sends what is new; first what was sent before and may have been kept.

        Raises StoreError, LedgerError, EntryError.
        """
        if self._unsure is not None:
            self._send(self._unsure)
            if kind == "entry" or self.superseded:
                return
        number = self._ownership.number
        names = self._to_name
        read_ns = boottime_ns()
        try:
            mark, changes = self._ledger.read(backup.changes_since, self.told)
        except LedgerError as error:
            self._alarms.raise_(AlarmKind.LEDGER_FAILING, str(error), monotonic_ns())
            raise
        self._alarms.clear(AlarmKind.LEDGER_FAILING)
        self._read_ns = read_ns
        hands_over = kind == "entry" and self._handover_begins
        self._send(
            self._log.entry(
                self._incarnation, number, kind, mark, changes, names, hands_over=hands_over
            )
        )

    def _send(self, entry: Entry) -> None:
        """Puts an entry and learns its fate. Raises StoreError, EntryError."""
        self._unsure = entry
        self._ownership.putting(Moment(boottime_ns(), wall_ns()))
        began_ns = monotonic_ns()
        try:
            if self._log.put(entry):
                self._ownership.accepted()
                if self._asked:
                    self._answered()
            else:
                there = self._log.read(entry.incarnation, entry.number)
                self._ownership.taken(there.nonce == entry.nonce)
        except (StoreError, EntryError) as error:
            self._ownership.failed(boottime_ns())
            self._outage.failed(error, began_ns, monotonic_ns())
            raise
        self._outage.kept(monotonic_ns())
        self._unsure = None
        if self.superseded:
            self._words[at.G_SUPERSEDED] = 1
            self._bells.ring_all(range(self._bells.owner))
            log.critical(
                "%s (pid %d, %s) has taken the prefix over: nothing is committed any more",
                there.owner.host, there.owner.pid, there.owner.data_dir,
            )  # fmt: skip
            return
        self._doubts = False
        self.told = entry.mark
        tell_sent(self._words, self._ownership.sent)
        self._words[at.G_ENTRY_NUMBER] = entry.number
        if entry.hands_over:
            self._handover_told = True
            self._ownership.listened(boottime_ns(), HANDOVER_LISTEN_NS)
        awaited = self._is_awaited()
        self._words[at.G_BACKED_UP_NS] = self._read_ns
        if awaited:
            self._bells.ring_all(range(self._bells.owner))
        if entry.names is not None:
            self._to_name, self.named = None, entry.names
