"""Sources that stay: files that grow and rotate, and prefixes in S3 where objects appear.

The arguments are looked at again and again, so what appears later is imported too. A file is known
by its device and inode:

- Rename and create: the renamed file is read on until it has not grown for ROTATED_QUIET_S, the new
  one from its start; if the renamed file matches an argument too, it is simply followed.
- Copy and truncate: a file that became shorter, or begins otherwise, begins again. What was written
  between the last look at it and the truncation is only in the copy.
- Deleted: what is written to it before it is closed is read, as after a rename.
- What does not grow is read once. It is looked at again if its inode has changed since it was
  opened: a new file may have got the inode of a deleted one.

An object is known by its URL and ETag. Each look lists all of a prefix and takes what it has not
seen before. So none is missed, whatever their keys and times and the order in which they appear.
One that was replaced or deleted since it was listed is passed over. A listing takes a request for
each 1,000 objects. Looks are LIST_S apart, or one second for each request of a listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec import Struct

from commands.client.http import Unreachable
from commands.importing.importer import Importer
from commands.importing.names import CursorNames, source_told
from commands.importing.reading.buckets import Buckets, S3Object
from commands.importing.reading.finding import (
    SOURCES_MAX,
    FoundSource,
    NotFound,
    found_object,
    matching,
    too_many,
)
from commands.importing.reading.problems import SourceProblem
from commands.importing.reading.raw import LocalFile, shown
from commands.importing.source import SourceImport

LOOK_S = 0.5
# $0.43 a month for a prefix of up to 1,000 objects; $13 for larger ones.
LIST_S = 30.0
LISTED_TOGETHER = 1_000
# Each is looked at four times a second, which takes about 50 us.
FOLLOWED_MAX = 256
Inode = tuple[int, int]


class TooManyFiles(Exception):
    """More files than can be followed."""

    def __init__(self, count: int) -> None:
        super().__init__(f"there are {count:,} files, and at most {FOLLOWED_MAX} can be followed")


class _Followed(Struct, eq=False):
    changed_ns: int
    task: asyncio.Task[SourceImport | None]
    source: SourceImport | None = None


class _Here(NamedTuple):
    path: str
    changed_ns: int


class Following:
    """Imports what ``arguments`` name, until the importer is stopped."""

    def __init__(self, importer: Importer, arguments: Sequence[str], parallel: int) -> None:
        self._importer = importer
        self._arguments = arguments
        self._parallel = parallel
        self._restarts = importer.plan.restarts
        self._followed: dict[Inode, _Followed] = {}
        self._ended: dict[Inode, int] = {}  # and are still there, as they were when opened

    async def run(self) -> None:
        """Follows. Raises TooManyFiles."""
        with self._importer.threads(self._parallel) as threads:
            try:
                loop = asyncio.get_running_loop()
                while not self._importer.stops:
                    here = await loop.run_in_executor(threads, self._here)
                    self._look(here, threads)
                    await asyncio.sleep(LOOK_S)
            finally:
                self._importer.stop()
                await asyncio.gather(*(each.task for each in self._followed.values()))

    def _look(self, here: dict[Inode, _Here], threads: ThreadPoolExecutor) -> None:
        if len(here) > FOLLOWED_MAX:
            raise TooManyFiles(len(here))
        self._ended = {inode: at for inode, at in self._ended.items() if inode in here}
        for inode, followed in list(self._followed.items()):
            source = followed.source
            if source is not None:
                source.is_rotated = inode not in here
            if followed.task.done():
                del self._followed[inode]
                begins_anew = source is not None and source.begins_anew
                if begins_anew and inode in here:
                    self._begin(inode, here[inode].path, threads, restarts=True)
                elif inode in here:
                    self._ended[inode] = followed.changed_ns
        for inode, (path, changed_ns) in here.items():
            if inode not in self._followed and self._ended.get(inode) != changed_ns:
                self._begin(inode, path, threads, restarts=self._restarts)
        self._restarts = False  # of what was there at first

    def _begin(self, inode: Inode, path: str, threads: ThreadPoolExecutor, restarts: bool) -> None:
        try:
            raw = LocalFile(path)
        except SourceProblem as error:
            self._importer.refuse(shown(path), error)
            return
        if raw.inode != inode:
            raw.close()  # rotated since the look: the next one finds what is there now
            return
        plan = self._importer.plan._replace(restarts=restarts)
        found = FoundSource(raw.name, raw.size(), inode, lambda: raw)

        def begun(source: SourceImport) -> None:
            followed.source = source

        run = self._importer.one(found, threads, plan, begun)
        task = asyncio.get_running_loop().create_task(run)
        followed = _Followed(raw.changed_ns, task)
        self._followed[inode] = followed

    def _here(self) -> dict[Inode, _Here]:
        found = {}
        for argument in self._arguments:
            for path in matching(argument):
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # not there now; an unreadable one is refused when it is opened
                if stat.S_ISREG(status.st_mode):
                    found[status.st_dev, status.st_ino] = _Here(path, status.st_ctime_ns)
        return found


class FollowingObjects:
    """Imports the objects that ``urls`` name, until the importer is stopped. ``wait_s``: how long
    the store may be away, once it was there."""

    def __init__(
        self,
        importer: Importer,
        buckets: Buckets,
        urls: Sequence[str],
        parallel: int,
        wait_s: float,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._importer = importer
        self._buckets = buckets
        self._urls = urls
        self._parallel = parallel
        self._wait_s = wait_s
        self._now = now
        self._say = say
        self._seen: dict[str, CursorNames] = {}  # by identity

    async def run(self) -> None:
        """Follows. Raises NotFound if the first look is refused."""
        importer = self._importer
        listed_at: float | None = None
        with importer.threads(1) as threads:
            loop = asyncio.get_running_loop()
            while not importer.stops:
                wait_s = LIST_S
                try:
                    here = await loop.run_in_executor(threads, self._here)
                except NotFound as error:
                    if listed_at is None:
                        raise
                    self._say(str(error))
                    if self._now() - listed_at > self._wait_s:
                        importer.refuse(*error.problems[0])
                else:
                    listed_at = self._now()
                    wait_s = max(LIST_S, len(here) / LISTED_TOGETHER)
                    try:
                        new = await loop.run_in_executor(threads, self._new, here)
                    except Unreachable:
                        if importer.stopped.is_set():
                            return
                        raise
                    await importer.run(new)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(importer.stopped.wait(), wait_s)

    def _here(self) -> dict[str, S3Object]:
        """All objects, by identity. Raises NotFound."""
        found: dict[str, S3Object] = {}
        for url in self._urls:
            try:
                for each in self._buckets.sources(url):
                    found[str(each.identity)] = each
                    if len(found) > SOURCES_MAX:
                        raise too_many()
            except SourceProblem as error:
                raise NotFound([(url, error)]) from error
        return found

    def _new(self, here: dict[str, S3Object]) -> list[FoundSource]:
        """Objects that were not seen before. The cursors of those that are gone go too: otherwise
        a prefix that stays would fill the daemon with them."""
        cursors, topic_id = self._importer.cursors, self._importer.plan.target.topic_id
        for identity in self._seen.keys() - here.keys():
            for cursor in self._seen.pop(identity):
                cursors.forget(cursor)
        restarts = self._importer.plan.restarts
        new: list[FoundSource] = []
        for identity, each in here.items():
            if identity in self._seen:
                continue
            names = self._seen[identity] = CursorNames.of_object(topic_id, identity, each.name)
            source = source_told(each.name, topic_id, each.size())
            if not restarts and cursors.ended_at(names, source) is not None:
                continue  # by an earlier run
            if len(new) >= self._parallel:
                cursors.tell(names, source)  # what has to wait counts in the lag already
            new.append(found_object(each))
        return new
