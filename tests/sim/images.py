"""Images of ledgers in the simulation of owners: what a daemon commits, copies, tells and recovers.

A ledger here is the list of commits, in order. The image thread, the owner's log and the files of
copies are the shipped ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from ledger.log import backup
from ledger.log.backup import Changes, Mark
from tests.sim.schedule import MS, Schedule, log_uniform, require
from uploader.ownership.ownerlog import OwnerLog

if TYPE_CHECKING:
    from tests.sim.owners import Bucket

ENTRIES_MIN = 3  # an image is due after this many


class ListLedger:
    """The part of a ledger that the threads use: its number, what is new, and a copy."""

    def __init__(self, schedule: Schedule, path: Path, commits: list[str]) -> None:
        self._schedule = schedule
        self.path = path
        self.commits = commits
        path.touch()

    def read(self, function: Callable[..., Any], *args: Any) -> Any:
        """Answers what ``function`` would read."""
        answers: dict[object, Callable[..., Any]] = {
            backup.mark: self._mark,
            backup.changes_since: self._changes_since,
            backup.copy_to: self._copy_to,
        }
        return answers[function](*args)

    def _mark(self) -> Mark:
        """The number of commits."""
        return Mark(commit_number=len(self.commits))

    def _changes_since(self, mark: Mark) -> tuple[Mark, Changes]:
        """Commits after a mark, with their numbers."""
        rows = [[at + 1, key] for at, key in enumerate(self.commits) if at >= mark.commit_number]
        return self._mark(), Changes({}, {"objects": rows})

    def _copy_to(self, path: Path, between: Callable[[], None]) -> int:
        """Makes a copy as of now, which takes a while."""
        there = list(self.commits)
        path.write_bytes(msgspec.msgpack.encode(there))
        self._schedule.sleep(int(log_uniform(self._schedule.rng, 1, 20_000)) * MS)
        between()
        return len(there)

    def close(self) -> None:
        """There is nothing to close."""


class BucketParts:
    """A PartedPut whose calls are as slow, and fail as often, as any."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._parts: list[bytes] = []

    def put(self, part: bytes) -> None:
        """Adds a part."""
        self._bucket.attempt()
        self._parts.append(part)

    def finish(self) -> None:
        """The object is there; the answer may be lost."""
        self._bucket.attempt()
        self._bucket.kept[self._key] = b"".join(self._parts)
        self._bucket.attempt()

    def abandon(self) -> None:
        """Gives the object up; it was never visible."""


def recovered(owner_log: OwnerLog, number: int) -> list[str]:
    """The commits that a new owner finds told, of which there are at least ``number``.

    Raises StoreError, EntryError, Violation.
    """
    commits: dict[int, str] = {}
    image = owner_log.image()
    if image is not None:
        file = BytesIO()
        owner_log.get_image(image, file)
        commits = dict(enumerate(msgspec.msgpack.decode(file.getvalue(), type=list[str]), 1))
    for entry in owner_log.chain(image):
        if entry.changes is not None:
            commits.update({row[0]: row[1] for row in entry.changes.rows["objects"]})
    require(
        sorted(commits) == list(range(1, len(commits) + 1)) and len(commits) >= number,
        "image and entries hold all that was told", number, sorted(commits),
    )  # fmt: skip
    return [commits[at] for at in sorted(commits)]


def of_the_machine(schedule: Schedule) -> SimpleNamespace:
    """``os`` for the image thread: keys by the seed, no waits for a disk."""
    return SimpleNamespace(
        urandom=lambda count: schedule.rng.getrandbits(8 * count).to_bytes(count, "big"),
        statvfs=os.statvfs,
        fdatasync=lambda fd: None,
    )


def is_due(entries: int, _bytes: int, _size: int) -> bool:
    """Often."""
    return entries >= ENTRIES_MIN


class ToldLedger:
    """A standby's ledger: the commits that image and entries tell."""

    def __init__(self, path: Path, _lock: object, **_: object) -> None:
        body = path.read_bytes() if path.exists() else b""
        there = msgspec.msgpack.decode(body, type=list[str]) if body else []
        self._commits = dict(enumerate(there, 1))
        path.touch()

    def write(self, function: object, changes: Changes) -> None:
        """Applies an entry."""
        assert function is backup.apply
        self._commits.update({row[0]: row[1] for row in changes.rows["objects"]})

    @property
    def commits(self) -> list[str]:
        """In order, without a hole."""
        found = sorted(self._commits)
        require(found == list(range(1, len(found) + 1)), "a standby's ledger is whole", found)
        return [self._commits[number] for number in found]

    def close(self) -> None:
        """There is nothing to close."""
