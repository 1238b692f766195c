"""The owner's log in the store: reading it, adding to it, and taking it over.

Every start is this one path (PROTOCOL 5): find the last incarnation's last entry, seal its log
by writing the next number, wait if the former owner may still hold it, go on. Who was refused,
and why, is said by name.

Blocking; called by the supervisor's owner thread and by commands, never by a loop.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from msgspec import Struct

from ledger import entry as entries
from ledger.backup import Changes, Mark
from ledger.entry import Entry, Owner, entry_key, parse_entry_key
from shards.clock import wall_ms
from uploader.ownership import TAKE_OVER_NS
from uploader.retry import RetryLimits, retry_delay_s
from uploader.stores.base import ObjectMissing, ObjectStore, StoreError

SEALS_MAX = 100  # a former owner that lives adds one entry per 5 s; more is somebody else's start
READ_LIMITS = RetryLimits(base_s=0.05, cap_s=1.0, attempts_max=6)


class OwnedByAnother(RuntimeError):
    """The prefix belongs to another data directory, whose daemon did not stop cleanly."""

    def __init__(self, last: Entry, now_ms: int) -> None:
        owner = last.owner
        age_s = max(0, now_ms - last.created_ms) // 1000
        super().__init__(
            f"the store belongs to the data directory {owner.data_dir} of host {owner.host}"
            f" (pid {owner.pid}, its last entry {age_s} s ago); if that daemon is gone for good,"
            f" start with --take-over"
        )
        self.last = last


class Taken(Struct, frozen=True):
    """A log that was sealed for a new start: ``last`` is its last entry before the seal, None for
    a new prefix; ``incarnation`` the greatest that is known."""

    incarnation: int
    last: Entry | None


class OwnerLog:
    """The log under one prefix."""

    def __init__(
        self, store: ObjectStore, owner: Owner, sleep_s: Callable[[float], object]
    ) -> None:
        self._store = store
        self.store_url = store.url
        self.owner = owner
        self._sleep_s = sleep_s
        self._rng = random.Random(f"{owner.pid} {owner.boot_id}")

    def entry(
        self,
        incarnation: int,
        number: int,
        kind: Literal["entry", "snapshot", "seal", "release"],
        mark: Mark,
        changes: Changes | None = None,
        image: bytes | None = None,
    ) -> Entry:
        """A new entry of ours, with a nonce of its own."""
        nonce = os.urandom(16)
        return Entry(
            entries.VERSION, nonce, incarnation, number, kind, self.owner, wall_ms(), mark,
            changes, image,
        )  # fmt: skip

    def put(self, entry: Entry) -> bool:
        """Adds an entry; False when its number is taken. One attempt; raises StoreError."""
        key = entry_key(entry.incarnation, entry.number)
        return self._store.put_if_absent(key, entries.encode(entry))

    def read(self, incarnation: int, number: int) -> Entry:
        """The entry of a number. Raises StoreError, EntryError."""
        key = entry_key(incarnation, number)
        for head in self._store.list(key):
            return entries.decode(self._store.get(head.locator), head.key)
        raise ObjectMissing(f"there is no entry {key}")

    def keys(self) -> list[tuple[int, int]]:
        """All (incarnation, number) in the log, ascending."""
        return sorted(parse_entry_key(head.key) for head in self._store.list(entries.PREFIX))

    def chain(self) -> Iterator[Entry]:
        """The entries to apply in order, from the last snapshot on; seals carry nothing."""
        heads = sorted(self._store.list(entries.PREFIX), key=lambda head: head.key)
        found: list[Entry] = []
        for head in reversed(heads):
            data = self._repeat(partial(self._store.get, head.locator))
            entry = entries.decode(data, head.key)
            found.append(entry)
            if entry.kind == "snapshot":
                break
        return reversed(found)

    def _repeat(self, call: Callable[[], bytes]) -> bytes:
        attempt = 0
        while True:
            attempt += 1
            try:
                return call()
            except StoreError as error:
                pause_s = retry_delay_s(error, attempt, self._rng, READ_LIMITS)
                if pause_s is None:
                    raise
                self._sleep_s(pause_s)

    def last(self) -> Entry | None:
        """The last entry of the last incarnation that is no seal; None for a new prefix."""
        for incarnation, number in reversed(self.keys()):
            entry = self.read(incarnation, number)
            if entry.kind != "seal":
                return entry
        return None

    def take(self, *, take_over: bool) -> Taken:
        """Seals the log for a new start of ours and waits as long as it must.

        Raises OwnedByAnother without ``take_over``, StoreError, EntryError.
        """
        for _ in range(SEALS_MAX):
            keys = self.keys()
            if not keys:
                return Taken(0, None)
            incarnation, number = keys[-1]
            newest = self.read(incarnation, number)
            last = newest if newest.kind != "seal" else self.last()
            ours = last is None or last.kind == "release" or last.owner.same_directory(self.owner)
            if not ours and not take_over and last is not None:
                raise OwnedByAnother(last, wall_ms())
            mark = Mark() if last is None else last.mark
            if self.put(self.entry(incarnation, number + 1, "seal", mark)):
                if not ours:
                    self._sleep_s(TAKE_OVER_NS / 1e9)
                return Taken(incarnation, last)
        raise OwnedByAnother(newest, wall_ms())

    def forget_before(self, snapshot: Entry) -> int:
        """Removes entries that a snapshot makes needless; returns how many."""
        bound = (snapshot.incarnation, snapshot.number)
        heads = [h for h in self._store.list(entries.PREFIX) if parse_entry_key(h.key) < bound]
        self._store.delete([head.locator for head in heads])
        return len(heads)
