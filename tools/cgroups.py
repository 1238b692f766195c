"""A cgroup with a memory limit, of version 1 or 2, for tests and benchmarks.

``memory_group`` makes one beneath the caller's own group, or beneath the root of the hierarchy. It
needs a writable memory controller: root on most machines. ``MemoryGroup.command`` is a command that
joins the group and then becomes the given one, so that its children are in the group too. A group
that goes over its limit is killed by the kernel (exit code 137); ``kills`` counts that.

The kernel charges a group for the page cache of the files that it reads and writes, which it can
drop: ``total_bytes`` is therefore at the limit on any busy daemon. What counts is ``kept_bytes``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from shards.clock import monotonic_ns

SAMPLE_S = 0.05
REMOVED_WITHIN_S = 10.0
_JOIN = 'echo $$ > "$0" && exec "$@"'


class CgroupError(Exception):
    """No group can be made here; the message says what is needed."""


class MemoryUse(NamedTuple):
    """What a group is charged for. Of files that were read twice, the page cache is active; shared
    memory (the rings) is in ``shmem_bytes``."""

    total_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    shmem_bytes: int

    @property
    def kept_bytes(self) -> int:
        """What the kernel cannot drop."""
        return self.total_bytes - self.inactive_file_bytes - self.active_file_bytes


class _Files(NamedTuple):
    """The names of one version's files. Of ``limits``, the first is the memory's; the others are
    set too if they exist: without them, what is over the limit goes to swap space."""

    limits: tuple[tuple[str, str], ...]
    usage: str
    peak: str
    kills: str
    prefix: str  # of the fields of memory.stat that include groups below


_V1 = _Files(
    (("memory.limit_in_bytes", ""), ("memory.memsw.limit_in_bytes", "")),
    "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "total_",
)  # fmt: skip
_V2 = _Files(
    (("memory.max", ""), ("memory.swap.max", "0")),
    "memory.current", "memory.peak", "memory.events", "",
)  # fmt: skip


class MemoryGroup:
    """A group that exists until ``remove``."""

    def __init__(self, folder: Path, files: _Files, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._files = files
        for index, (name, value) in enumerate(files.limits):
            if index == 0 or (folder / name).exists():
                (folder / name).write_text(value or str(limit_bytes))

    def command(self, command: Sequence[str]) -> list[str]:
        """A command that runs ``command`` in the group."""
        return ["sh", "-c", _JOIN, str(self.folder / "cgroup.procs"), *command]

    def use(self) -> MemoryUse:
        """What it is charged for now."""
        found = _fields((self.folder / "memory.stat").read_text())
        prefix = self._files.prefix
        return MemoryUse(
            int((self.folder / self._files.usage).read_text()),
            found[f"{prefix}inactive_file"],
            found[f"{prefix}active_file"],
            found[f"{prefix}shmem"],
        )

    @property
    def peak_bytes(self) -> int:
        """The most that it was charged for, page cache included."""
        return int((self.folder / self._files.peak).read_text())

    @property
    def kills(self) -> int:
        """How many processes the kernel killed because the group was over its limit."""
        return _fields((self.folder / self._files.kills).read_text())["oom_kill"]

    def remove(self) -> None:
        """Removes the group; its processes have ended. Raises CgroupError if they have not."""
        deadline_ns = monotonic_ns() + int(REMOVED_WITHIN_S * 1e9)
        pause = threading.Event()  # only its timeouts are used
        while True:
            try:
                self.folder.rmdir()
            except OSError as error:  # a process that has ended is in its group a moment longer
                if monotonic_ns() > deadline_ns:
                    raise CgroupError(f"{self.folder} is not empty: {error}") from error
                pause.wait(SAMPLE_S)
            else:
                return


class MemoryWatch:
    """Samples a group in a thread, as a context manager: the high-water marks of its parts."""

    def __init__(self, group: MemoryGroup) -> None:
        self._group = group
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory watch")
        self.kept_peak_bytes = 0
        self.shmem_peak_bytes = 0

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        use = self._group.use()
        self.kept_peak_bytes = max(self.kept_peak_bytes, use.kept_bytes)
        self.shmem_peak_bytes = max(self.shmem_peak_bytes, use.shmem_bytes)


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """An empty group with a limit; removed at the end. Raises CgroupError if none can be made."""
    group = _make(f"headgate-{os.getpid()}-{monotonic_ns()}", limit_bytes)
    try:
        yield group
    finally:
        group.remove()


def _make(name: str, limit_bytes: int) -> MemoryGroup:
    problems = []
    for parent, files in _parents():
        folder = parent / name
        try:
            folder.mkdir()
        except OSError as error:
            problems.append(f"{folder}: {error.strerror}")
            continue
        try:
            return MemoryGroup(folder, files, limit_bytes)
        except OSError as error:
            folder.rmdir()
            problems.append(f"{error.filename}: {error.strerror}")
    raise CgroupError(
        "a cgroup with a memory limit cannot be made; run this as root on a machine whose cgroups"
        f" have the memory controller. Tried: {'; '.join(problems) or 'no such mount'}"
    )


def _parents() -> Iterator[tuple[Path, _Files]]:
    """Where a group may be made: beneath our own, else beneath the root of the hierarchy."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            yield Path(mount) / own.get("memory", ""), _V1
            yield Path(mount), _V1
        elif kind == "cgroup2":
            yield Path(mount) / own.get("", ""), _V2
            yield Path(mount), _V2


def _fields(text: str) -> dict[str, int]:
    """The lines ``name value`` of a file."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.split("\n")
                                                   if line)}  # fmt: skip
