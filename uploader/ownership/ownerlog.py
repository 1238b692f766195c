"""The owner's log in the store: reading it, adding to it, and taking it over.

Every start takes the same steps (protocol 5): find the last entry of the last incarnation, seal
its log by writing the next number, and wait if the former owner may still own the prefix. A start
that is refused says which owner is in the way.

Blocking. Called by threads of the supervisor and by commands, never by an event loop.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import groupby
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct

from ledger.log import entry as entries
from ledger.log.backup import Changes, Mark
from ledger.log.entry import (
    Entry,
    Image,
    LogIncomplete,
    Owner,
    entry_key,
    parse_entry_key,
    parse_image_key,
)
from shards.clock import wall_ms
from uploader.ownership.image import get_image
from uploader.ownership.ownership import ANSWER_NS, TAKE_OVER_NS
from uploader.stores.base import ObjectHead, ObjectMissing, ObjectStore
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore

log = logging.getLogger("headgate.owner")

SEALS_MAX = 100  # a former owner that lives adds one entry per 5 s; more are from another start
LOOKS = 3  # for an answer while a start waits
COMMIT_NUMBER_MAX = (1 << 63) - 1  # of SQLite; a word of the segment holds it
QUESTION_BYTES_MAX = 16 << 10  # of what stands there no more is read, whoever has put it


def question_key(incarnation: int) -> str:
    """Where a start or a standby asks for an incarnation's owner; not in the log, which has only
    entries."""
    return f"probe-owner-{incarnation:012d}"


class Question(Struct, frozen=True):
    """What a standby asks: whether the owner lives. ``asker`` is the standby, ``commit_number`` up
    to where its ledger is, and ``is_ready``: it has seen that the owner hands over."""

    nonce: str
    asker: Owner
    commit_number: int
    is_ready: bool = False


def question_of(body: bytes) -> Question | None:
    """A standby's question; None: a start after a boot asks, or the body is anything else."""
    try:
        question = msgspec.json.decode(body, type=Question)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return question if 0 <= question.commit_number <= COMMIT_NUMBER_MAX else None


class OwnedByAnother(RuntimeError):
    """The prefix belongs to another data directory whose daemon did not stop cleanly."""

    def __init__(self, last: Entry, now_ms: int, *, goes_on: bool = False) -> None:
        owner = last.owner
        age_s = max(0, now_ms - last.created_ms) // 1000
        what = (
            "; its log grows, so that daemon runs, and this machine or directory is a copy of"
            " its own: stop one of the two. To stop that one, start this one with --take-over"
            if goes_on
            else "; if that daemon is gone for good, start with --take-over"
        )
        super().__init__(
            f"the store belongs to the data directory {owner.data_dir} of host {owner.host}"
            f" (pid {owner.pid}, its last entry {age_s} s ago){what}"
        )
        self.last = last


class Former(Enum):
    """Who the former owner is, which decides how long to wait and which ledger to trust."""

    NONE = "none"  # a new prefix
    RELEASED = "released"  # stopped cleanly
    OURS = "ours"  # our directory, whose lock we hold: its process is dead
    REBOOTED = "rebooted"  # our directory before a boot, or a copy of the machine
    ANOTHER = "another"  # may live


class SealedLog(Struct, frozen=True):
    """A log that was sealed for a new start. ``last`` is its last entry before the seal, None for
    a new prefix; ``incarnation`` is the greatest known."""

    incarnation: int
    last: Entry | None
    former: Former = Former.NONE

    @property
    def told(self) -> Mark:
        """What the log has of the ledger."""
        return Mark() if self.last is None else self.last.mark


class OwnerLog:
    """The log under one prefix.

    ``put``, ``read``, ``question``, ``ask`` and ``forget_question`` make one attempt: the threads
    of owners and standbys decide themselves when to try again (``ownership.py``, ``standby.py``).
    All other calls are repeated, since a start or a command waits for them.
    """

    def __init__(
        self, store: ObjectStore, owner: Owner, sleep_s: Callable[[float], object]
    ) -> None:
        rng = random.Random(f"{owner.pid} {owner.boot_id}")
        self._once = store
        self._store = RetryingStore(store, COMMAND, rng, sleep_s)
        self.store_url = store.url
        self.owner = owner
        self._sleep_s = sleep_s
        # Entries after the last image, and their bytes: those that our start found (except first
        # entries and seals, which stay), and those that were added since.
        self.entries_behind = self.bytes_behind = 0

    def entry(
        self,
        incarnation: int,
        number: int,
        kind: Literal["entry", "seal", "release"],
        mark: Mark,
        changes: Changes | None = None,
        names: Image | None = None,
        *,
        hands_over: bool = False,
    ) -> Entry:
        """A new entry of ours, with its own nonce."""
        nonce = os.urandom(16)
        return Entry(
            entries.VERSION, nonce, incarnation, number, kind, self.owner, wall_ms(), mark,
            changes, names=names, hands_over=hands_over,
        )  # fmt: skip

    def put(self, entry: Entry) -> bool:
        """Adds an entry; False if its number is taken. One attempt. Raises StoreError."""
        key = entry_key(entry.incarnation, entry.number)
        data = entries.encode(entry)
        made = self._once.put_if_absent(key, data)
        if made and entry.names is not None:
            self.entries_behind, self.bytes_behind = entry.number - entry.names.after, 0
        elif made:
            self.entries_behind += 1
            self.bytes_behind += len(data)
        return made

    def read(self, incarnation: int, number: int) -> Entry:
        """The entry with a number. One attempt. Raises StoreError, EntryError."""
        key = entry_key(incarnation, number)
        return entries.decode(self._once.get(key), key)

    def keys(self) -> list[tuple[int, int]]:
        """All (incarnation, number) in the log, in ascending order."""
        return [parse_entry_key(head.key) for head in self._heads()]

    def _heads(self) -> list[ObjectHead]:
        """All entries in order. Raises EntryError for an object that does not belong here."""
        heads = [h for h in self._store.list(entries.PREFIX) if parse_image_key(h.key) is None]
        return sorted(heads, key=lambda head: parse_entry_key(head.key))

    def image(self) -> Image | None:
        """The newest image that an entry names; images that were never named do not count."""
        listed = list(self._store.list(entries.PREFIX))
        found = {head.key: place for head in listed if (place := parse_image_key(head.key))}
        for key, (incarnation, after) in sorted(found.items(), key=lambda item: item[::-1])[::-1]:
            log_of = f"{entries.PREFIX}{incarnation:012d}/"
            for head in sorted(listed, key=lambda head: head.key):
                if not head.key.startswith(log_of) or head.key in found:
                    continue
                if parse_entry_key(head.key)[1] > after:
                    names = self._entry(head).names
                    if names is not None and names.key == key:
                        return names
        return None

    def get_image(self, image: Image, file: BinaryIO | None = None) -> None:
        """Reads an image, into ``file`` if there is one. Raises StoreError, EntryError."""
        get_image(self._store, image, file)

    def _entry(self, head: ObjectHead) -> Entry:
        return entries.decode(self._store.get(head.locator), head.key)

    def chain(self, image: Image | None = None, after: tuple[int, int] = (0, 0)) -> Iterator[Entry]:
        """The entries to apply, in order, one at a time in memory: all, or those after an image or
        ``after`` a place (incarnation, number).

        A snapshot replaces all entries before it; seals carry nothing. If an entry is missing, the
        entries after it are left out up to the next snapshot; without a later snapshot, raises
        EntryError at the end.
        """
        place = after if image is None else parse_image_key(image.key)
        assert place is not None
        heads = [head for head in self._heads() if parse_entry_key(head.key) > place]
        incarnation, number = place
        missing = lost = ""
        for head in heads:
            expected = ((incarnation, number + 1), (incarnation + 1, 1))
            found = parse_entry_key(head.key)
            entry = self._entry(head)
            if entry.kind == "snapshot":
                missing = ""
            elif found not in expected and not missing:
                missing = f"{entry_key(*expected[0])} or {entry_key(*expected[1])}"
            if entry.names is not None and image is None:
                lost = f", nor is the image {entry.names.key} that {head.key} names"
            incarnation, number = found
            if not missing:
                yield entry
        if missing:
            raise LogIncomplete(
                f"the owner's log in {self.store_url} is incomplete: {missing} is missing, and"
                f" there is no image of the ledger after it{lost}; restore what is missing, or move"
                " the folder ledger/ aside to recover from the objects alone, without settings and"
                " deletions of topics"
            )

    def last(self) -> Entry | None:
        """The last entry that is not a seal; None for a new prefix."""
        for head in reversed(self._heads()):
            entry = self._entry(head)
            if entry.kind != "seal":
                return entry
        return None

    def former(self, last: Entry | None) -> Former:
        """Who wrote the last entry. The caller holds the lock of its directory."""
        if last is None:
            return Former.NONE
        if last.kind == "release":
            return Former.RELEASED
        if last.owner.same_directory(self.owner):
            return Former.OURS
        return Former.REBOOTED if last.owner.before_a_boot(self.owner) else Former.ANOTHER

    def take(self, *, take_over: bool) -> SealedLog:
        """Seals the log for a new start, and waits as long as the former owner may own it.

        The daemon that then writes the first number of the next incarnation owns the prefix. If two
        starts have sealed this log, only one can. Raises OwnedByAnother without ``take_over``,
        StoreError, EntryError.
        """
        for _ in range(SEALS_MAX):
            heads = self._heads()
            if not heads:
                return SealedLog(0, None)
            incarnation, number = self._counted(heads)
            newest = self._entry(heads[-1])
            last = newest if newest.kind != "seal" else self.last()
            former = self.former(last)
            if former is Former.ANOTHER and not take_over and last is not None:
                raise OwnedByAnother(last, wall_ms())
            if former is Former.REBOOTED and not take_over:
                self.await_silence()
            mark = Mark() if last is None else last.mark
            if self._seal(self.entry(incarnation, number + 1, "seal", mark)):
                if former in (Former.ANOTHER, Former.REBOOTED):
                    self._sleep_s(TAKE_OVER_NS / 1e9)
                return SealedLog(incarnation, last, former)
        raise OwnedByAnother(newest, wall_ms())

    def take_after(self, end: tuple[int, int] | None, last: Entry | None) -> SealedLog | None:
        """Seals the log for a standby that has waited, if it ends at ``end``, its last entry but
        for seals being ``last``; None if it goes on. Raises StoreError, EntryError."""
        heads = self._heads()
        if (self._counted(heads) if heads else None) != end:
            return None
        if end is None or last is None:
            return SealedLog(0, None) if end is None else None
        incarnation, number = end
        if not self._seal(self.entry(incarnation, number + 1, "seal", last.mark)):
            return None
        released = last.kind == "release"
        return SealedLog(incarnation, last, Former.RELEASED if released else Former.ANOTHER)

    def _seal(self, seal: Entry) -> bool:
        """Ends the log with a seal; False if it goes on.

        The number may have been used and freed by an image, while this process was stopped: then
        the log goes on after it, and its end is never freed.
        """
        key = entry_key(seal.incarnation, seal.number)
        data = entries.encode(seal)
        if not self._store.put_if_absent(key, data):
            try:  # it may be ours, whose answer was lost
                if entries.decode(self._store.get(key), key).nonce != seal.nonce:
                    return False
            except ObjectMissing:  # freed by an image since
                return False
        self.entries_behind += 1
        self.bytes_behind += len(data)
        return self.keys()[-1] == (seal.incarnation, seal.number)

    def _counted(self, heads: list[ObjectHead]) -> tuple[int, int]:
        """The place of the last entry; counts what no image covers."""
        keys = [parse_entry_key(head.key) for head in heads]
        self.entries_behind = max(0, len(keys) - 2 * len({key[0] for key in keys}))
        self.bytes_behind = sum(head.size_bytes for head in heads)
        return keys[-1]

    def await_silence(self) -> None:
        """Asks whether the log's owner lives, and returns if no answer comes in time.

        The answer is an entry. After a reboot nobody answers; if this machine is a copy of one
        that runs, that one does. Raises OwnedByAnother for an answer, StoreError, EntryError.
        """
        newest = self.keys()[-1]
        question = question_key(newest[0])
        log.info(
            "the machine was rebooted: waiting %d s, in case a copy of it runs",
            ANSWER_NS // 10**9,
        )
        # A standby's question would be answered without an entry. It learns no more than that this
        # one is gone, and asks again.
        while not self._store.put_if_absent(question, b"does the owner of this log live?"):
            self.forget_question(newest[0])
        for _ in range(LOOKS):
            self._sleep_s(ANSWER_NS / LOOKS / 1e9)
            if self.keys()[-1] != newest:
                self.forget_question(newest[0])
                last = self.last()
                assert last is not None
                raise OwnedByAnother(last, wall_ms(), goes_on=True)
        self.forget_question(newest[0])

    def question(self, incarnation: int) -> bytes | None:
        """What is asked of the owner of this incarnation, if anything: one GET. One attempt.
        Raises StoreError."""
        try:
            return self._once.get(question_key(incarnation), 0, QUESTION_BYTES_MAX)
        except ObjectMissing:
            return None

    def ask(self, incarnation: int, question: Question) -> bool:
        """Puts a standby's question; False if another stands there. One attempt. Raises
        StoreError."""
        return self._once.put_if_absent(question_key(incarnation), msgspec.json.encode(question))

    def forget_question(self, incarnation: int) -> None:
        """Removes the question: it was answered, or the wait is over. Raises StoreError."""
        self._once.delete([question_key(incarnation)])

    def forget_before(self, image: Image) -> tuple[int, int]:
        """Removes what a named image replaces; returns how many entries and images.

        The seals of former incarnations stay forever: each takes the number that a former owner
        would write next, however long it was stopped. So does every first entry: it takes the
        number that a start would write first, however long it was stopped after its seal. Objects
        newer than the image stay, so an owner that was stopped before this call removes nothing
        that a later owner has put.
        """
        bound = parse_image_key(image.key)
        assert bound is not None
        listed = list(self._store.list(entries.PREFIX))
        places = {head.key: parse_image_key(head.key) for head in listed}
        images = [
            head.locator
            for head in listed
            if (place := places[head.key]) and place <= bound and head.key != image.key
        ]
        heads = [h for h in listed if places[h.key] is None and parse_entry_key(h.key) <= bound]
        heads.sort(key=lambda head: parse_entry_key(head.key))
        gone: list[str] = []
        for incarnation, group in groupby(heads, key=lambda h: parse_entry_key(h.key)[0]):
            former = [head for head in group if parse_entry_key(head.key)[1] != 1]
            if incarnation != bound[0]:
                if len(former) == 1:
                    continue  # its seal, which an earlier image left
                while former and self._entry(former[-1]).kind == "seal":
                    former.pop()
            gone += [head.locator for head in former]
        self._store.delete([*gone, *images])
        return len(gone), len(images)
