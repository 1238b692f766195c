"""The sources that the arguments of an import name: files, patterns, stdin, prefixes in S3.

Every argument is looked at before anything is imported. If one names nothing, a directory or a file
that cannot be read, it is refused by name, and nothing is imported. A file that is named twice, by
whatever paths, is one source.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from commands.importing.reading.buckets import SCHEME, Buckets, S3Object
from commands.importing.reading.problems import SourceMissing, SourceProblem
from commands.importing.reading.raw import LocalFile, RawSource, open_local, shown

# Each needs a cursor, of which a daemon has 100,000, and about 300 bytes here.
SOURCES_MAX = 100_000


class FoundSource(NamedTuple):
    """A source that can be opened. ``inode``: device and inode of a file."""

    name: str
    size: int | None
    inode: tuple[int, int] | None
    open: Callable[[], RawSource]


class NotFound(Exception):
    """Arguments that name nothing that can be imported."""

    def __init__(self, problems: Sequence[tuple[str, SourceProblem]]) -> None:
        self.problems = problems
        super().__init__("\n  ".join(f"{name}: {problem}" for name, problem in problems))
        self.hint = next((problem.hint for _, problem in problems if problem.hint), "")


def find(arguments: Sequence[str], buckets: Buckets, *, by_path: bool) -> list[FoundSource]:
    """All sources. Raises NotFound."""
    found: list[FoundSource] = []
    seen: set[tuple[int, int] | str] = set()
    problems: list[tuple[str, SourceProblem]] = []
    for argument in arguments:
        try:
            for each in _of(argument, buckets, by_path):
                key = each.inode or each.name
                if key in seen:
                    continue
                seen.add(key)
                found.append(each)
                if len(found) > SOURCES_MAX:
                    raise too_many()
        except SourceProblem as error:
            problems.append((shown(argument), error))
    if problems:
        raise NotFound(problems)
    return found


def too_many() -> SourceProblem:
    """More sources than an import can have."""
    return SourceProblem(
        f"with it there are more than {SOURCES_MAX:,} sources; import them in parts"
    )


def matching(argument: str) -> list[str]:
    """The paths that an argument names now: itself, if there is such a file, or what matches it."""
    if argument == "-" or os.path.lexists(argument) or not glob.has_magic(argument):
        return [argument]
    return sorted(glob.glob(argument, recursive=True))


def found_file(path: str, by_path: bool) -> FoundSource:
    """A local source. Raises SourceProblem if it cannot be read."""
    if path == "-":
        if sys.stdin is None:  # descriptor 0 is something else by now
            raise SourceMissing("is closed")
        return FoundSource("stdin", None, None, lambda: open_local("-"))
    raw = open_local(path, by_path=by_path)
    if not isinstance(raw, LocalFile):
        return FoundSource(raw.name, None, None, lambda: raw)  # a pipe is opened once
    size = raw.size()
    raw.close()
    return FoundSource(raw.name, size, raw.inode, lambda: open_local(path, by_path=by_path))


def found_object(found: S3Object) -> FoundSource:
    """An object of a listing."""
    return FoundSource(found.name, found.size(), None, lambda: found)


def _of(argument: str, buckets: Buckets, by_path: bool) -> Iterator[FoundSource]:
    if argument.startswith(SCHEME):
        count = 0
        for each in buckets.sources(argument):
            count += 1
            yield found_object(each)
        if not count:
            raise SourceMissing("names no object")
        return
    is_pattern = argument != "-" and not os.path.lexists(argument) and glob.has_magic(argument)
    paths = matching(argument)
    if is_pattern:  # folders that match are not meant
        paths = [path for path in paths if not _is_directory(path)]
        if not paths:
            raise SourceMissing("matches no file")
    for path in paths:
        yield found_file(path, by_path)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False
