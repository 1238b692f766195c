"""Following files that grow and rotate: which files there are now, and which of them are read.

The arguments are looked at again and again, so files that appear later are imported too. A file is
known by its device and inode:

- Rename and create: the renamed file is read on until it has not grown for ROTATED_QUIET_S, the new
  one from its start; if the renamed file matches an argument too, it is simply followed.
- Copy and truncate: a file that became shorter, or begins otherwise, begins again. What was written
  between the last look at it and the truncation is only in the copy.
- Deleted: what is written to it before it is closed is read, as after a rename.
- What does not grow is read once. It is looked at again if its inode has changed since it was
  opened: a new file may have got the inode of a deleted one.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from msgspec import Struct

from commands.importing.importer import Importer
from commands.importing.reading.finding import FoundSource, matching
from commands.importing.reading.problems import SourceProblem
from commands.importing.reading.raw import LocalFile, shown
from commands.importing.source import SourceImport

LOOK_S = 0.5
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
