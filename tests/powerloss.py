"""A disk that knows what was made durable, and what may be left of it after a loss of power.

``kill -9`` keeps the page cache, so it cannot show that an fsync is missing. A ``Disk`` records the
file-system calls that real code makes on real files below its root (the calls are made as usual).
After each call it knows what a loss of power at that moment may leave. A test builds each of these
*images* as a folder and opens the real code on it.

A disk promises this, and no more:

- The bytes of a file are durable after fsync or fdatasync of that file has returned. Of later
  bytes, each sector (512 bytes) may be there or not, and the file may have the old or the new size.
- A name is there, or gone, after fsync of its directory. Of later calls, each may have happened or
  not; each link, rename and unlink happens as a whole.

Bytes and names that other code (SQLite) writes meanwhile are looked up after each recorded call.
They are not durable until a recorded fsync, unless they were there from the beginning.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

SECTOR_BYTES = 512
TORN_VARIANTS = 6
NAME_VARIANTS = 6


class Content(NamedTuple):
    """A file's bytes; zeros at the end are only counted."""

    data: bytes
    size: int


EMPTY = Content(b"", 0)


class File(NamedTuple):
    """What is durable of a file, and what was written."""

    durable: Content
    written: Content


class Change(NamedTuple):
    """One call on the names of a directory: each name with the node it has then, None for gone."""

    names: tuple[tuple[str, int | None], ...]


class Folder(NamedTuple):
    """The durable names of a directory, and the changes since."""

    durable: dict[str, int]
    changes: tuple[Change, ...]

    @property
    def names(self) -> dict[str, int]:
        return _applied(self.durable, self.changes)


class Moment(NamedTuple):
    """The state after a call: nodes by number, and how many facts were noted before."""

    call: str
    nodes: dict[int, File | Folder]
    facts: int


class Image(NamedTuple):
    """One thing that a power loss may leave: paths with their content, None for a folder."""

    after: str
    paths: dict[str, Content | None]
    facts: tuple[Any, ...]

    def build(self, folder: Path) -> None:
        for path, content in self.paths.items():
            place = folder / path
            if content is None:
                place.mkdir(exist_ok=True)
                continue
            with place.open("wb") as file:
                file.write(content.data)
                file.truncate(content.size)


ROOT = 0


class Disk:
    """Records what happens below ``root``, which exists; what is there by then is durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.facts: list[Any] = []
        self.moments: list[Moment] = []
        self._lock = threading.RLock()
        self._nodes: dict[int, File | Folder] = {}
        self._numbers: dict[int, int] = {}  # of inodes
        self._next = ROOT
        self._look()
        self._nodes = {number: _synced(node) for number, node in self._nodes.items()}
        self._note("the beginning")

    def after_kill(self, moment: Moment, root: Path) -> Disk:
        """The disk when all processes were killed at ``moment``, at another root: files are as
        they were written, and what was not durable still is not."""
        paths: dict[str, Content | None] = {}
        numbers: dict[str, int] = {"": ROOT}
        names = {
            number: node.names for number, node in moment.nodes.items() if isinstance(node, Folder)
        }
        _lay_out(moment.nodes, names, _kept, ROOT, "", paths, numbers)
        Image(moment.call, paths, ()).build(root)
        disk = Disk(root)
        disk.facts = self.facts[: moment.facts]
        disk._nodes = dict(moment.nodes)
        disk._numbers = {(root / path).stat().st_ino: n for path, n in numbers.items()}
        disk._next = self._next
        disk.moments = [moment]
        return disk

    def note(self, fact: Any) -> None:
        """Adds a fact that holds from now on: what was acknowledged, or is about to be tried."""
        with self._lock:
            self.facts.append(fact)

    @contextmanager
    def recording(self) -> Iterator[None]:
        originals = {name: getattr(os, name) for name in _CALLS}
        real = os.open
        for name, original in originals.items():
            setattr(os, name, self._recorded(name, original))
        os.open = self._recorded_open(real)
        try:
            yield
        finally:
            os.open = real
            for name, original in originals.items():
                setattr(os, name, original)

    def images(self, seed: int, *, last: bool = False) -> Iterator[Image]:
        """What a power loss after each call, or the ``last`` one, may leave; no image twice for
        the same facts."""
        rng = random.Random(seed)
        seen: set[tuple[frozenset[tuple[str, Content | None]], int]] = set()
        following = [*(moment.facts for moment in self.moments[1:]), len(self.facts)]
        crashes = list(zip(self.moments, following, strict=True))
        for moment, facts_later in crashes[-1:] if last else crashes:
            for facts in range(moment.facts, facts_later + 1):
                for paths in _variants(moment.nodes, rng):
                    key = (frozenset(paths.items()), facts)
                    if key not in seen:
                        seen.add(key)
                        yield Image(moment.call, paths, tuple(self.facts[:facts]))

    def _recorded(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                inode = os.fstat(args[0]).st_ino if isinstance(args[0], int) else -1
                result = original(*args, **kwargs)
                self._look()
                if isinstance(args[0], int):
                    self._look_at_unlinked(args[0])
                if inode in self._numbers and name in _SYNCS:
                    number = self._numbers[inode]
                    self._nodes[number] = _synced(self._nodes[number])
                self._note(f"{name}({', '.join(map(str, args))[:200]})")
                return result

        return call

    def _recorded_open(self, original: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if not flags & os.O_CREAT:
                return original(path, flags, *args, **kwargs)
            with self._lock:
                fd = original(path, flags, *args, **kwargs)
                self._look()
                self._note(f"open({path}, O_CREAT)")
                return fd

        return call

    def _note(self, call: str) -> None:
        last = self.moments[-1] if self.moments else None
        if last is None or last.nodes != self._nodes:
            self.moments.append(Moment(call, dict(self._nodes), len(self.facts)))

    def _look(self) -> None:
        """Records what has changed below the root, by one call or by other code."""
        self._look_at_folder(self.root)

    def _look_at_unlinked(self, fd: int) -> None:
        """A file without a name may get it back: when the unlink is lost, its bytes count."""
        status = os.fstat(fd)
        number = self._numbers.get(status.st_ino)
        if status.st_nlink == 0 and number is not None:
            node = self._nodes[number]
            if isinstance(node, File):
                self._nodes[number] = File(node.durable, _content(fd))

    def _look_at_folder(self, path: Path) -> int:
        number = self._number(path.stat().st_ino, Folder({}, ()))
        with os.scandir(path) as entries:
            found = {entry.name: entry for entry in entries}
        node = self._nodes[number]
        assert isinstance(node, Folder)
        before = node.names
        names: dict[str, int] = {}
        for name, entry in found.items():
            if entry.is_dir(follow_symlinks=False):
                names[name] = self._look_at_folder(path / name)
                continue
            inode = entry.inode()
            known = self._numbers.get(inode)
            if known is not None and before.get(name) != known and known not in before.values():
                del self._numbers[inode]  # of a file that is gone, given again
            names[name] = self._number(inode, File(EMPTY, EMPTY))
            file = self._nodes[names[name]]
            assert isinstance(file, File)
            fd = os.open(path / name, os.O_RDONLY)
            content = _content(fd)
            os.close(fd)
            if content != file.written:
                self._nodes[names[name]] = File(file.durable, content)
        changed = [(name, names.get(name)) for name in {*before, *names}
                   if before.get(name) != names.get(name)]  # fmt: skip
        if changed:
            change = Change(tuple(changed))
            self._nodes[number] = Folder(node.durable, (*node.changes, change))
        return number

    def _number(self, inode: int, new: File | Folder) -> int:
        if inode not in self._numbers:
            self._numbers[inode] = self._next
            self._nodes[self._next] = new
            self._next += 1
        return self._numbers[inode]


_SYNCS = ("fsync", "fdatasync")
_CALLS = (
    *_SYNCS, "write", "pwrite", "writev", "pwritev", "truncate", "ftruncate", "posix_fallocate",
    "link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir",
)  # fmt: skip


def _synced(node: File | Folder) -> File | Folder:
    if isinstance(node, Folder):
        return Folder(node.names, ())
    return File(node.written, node.written)


def _content(fd: int) -> Content:
    size = os.fstat(fd).st_size
    end = 0
    with suppress(OSError):  # ENXIO: only a hole follows, as after preallocated space
        while True:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    return Content(os.pread(fd, end, 0).rstrip(b"\0"), size)


def _applied(names: dict[str, int], changes: tuple[Change, ...]) -> dict[str, int]:
    result = dict(names)
    for change in changes:
        for name, number in change.names:
            if number is None:
                result.pop(name, None)
            else:
                result[name] = number
    return result


def _variants(
    nodes: dict[int, File | Folder], rng: random.Random
) -> Iterator[dict[str, Content | None]]:
    """The folder's content in each variant that is tested."""
    for names in _name_variants(nodes, rng):
        for choose in (_lost, _kept, _sized, *[_torn(rng) for _ in range(TORN_VARIANTS)]):
            paths: dict[str, Content | None] = {}
            _lay_out(nodes, names, choose, ROOT, "", paths)
            yield paths


def _name_variants(
    nodes: dict[int, File | Folder], rng: random.Random
) -> Iterator[dict[int, dict[str, int]]]:
    folders = {number: node for number, node in nodes.items() if isinstance(node, Folder)}
    yield {number: node.durable for number, node in folders.items()}
    if any(node.changes for node in folders.values()):
        yield {number: node.names for number, node in folders.items()}
        for _ in range(NAME_VARIANTS):
            yield {
                number: _applied(
                    node.durable, tuple(each for each in node.changes if rng.random() < 0.5)
                )
                for number, node in folders.items()
            }


Choose = Callable[[File], Content]


def _lay_out(
    nodes: dict[int, File | Folder], names: dict[int, dict[str, int]], choose: Choose,
    number: int, path: str, paths: dict[str, Content | None],
    numbers: dict[str, int] | None = None,
) -> None:  # fmt: skip
    for name, below in sorted(names[number].items()):
        node = nodes[below]
        if numbers is not None:
            numbers[path + name] = below
        if isinstance(node, Folder):
            paths[path + name] = None
            _lay_out(nodes, names, choose, below, f"{path}{name}/", paths, numbers)
        else:
            paths[path + name] = choose(node)


def _lost(file: File) -> Content:
    return file.durable


def _kept(file: File) -> Content:
    return file.written


def _sized(file: File) -> Content:
    size = file.written.size
    return Content(file.durable.data[:size].rstrip(b"\0"), size)


def _torn(rng: random.Random) -> Choose:
    """Each sector that was written since the last sync is there or not."""

    def choose(file: File) -> Content:
        if file.durable == file.written:
            return file.durable
        size = rng.choice((file.durable.size, file.written.size))
        old, new = file.durable.data, file.written.data
        length = max(len(old), len(new))
        old, new = old.ljust(length, b"\0"), new.ljust(length, b"\0")
        sectors = []
        for start in range(0, length, SECTOR_BYTES):
            cut_off = start >= file.written.size  # the size says so, no sector is overwritten
            source = old if cut_off or rng.random() < 0.5 else new
            sectors.append(source[start : start + SECTOR_BYTES])
        return Content(b"".join(sectors)[:size].rstrip(b"\0"), size)

    return choose
