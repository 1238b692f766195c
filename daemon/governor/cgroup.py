"""The memory limit that the kernel enforces on this process: control groups, version 1 and 2.

A process is in one group, and each ancestor of it may have a limit too. The kernel kills when any
of them is reached. So each *limited group* on the way up has a share of its own, and the largest
counts.

What counts as used is ``usage - inactive_file - segment``: the page cache that was not touched
lately is given back before anything is killed (an embedded store fills it with objects), and the
shared segment is there from the start, on both sides of the fraction. The limit is
``min(max x 0.85, high)``, less the segment: the kernel needs some of the rest, and above ``high``
it stalls the process.

What stays in use although nothing waits to be stored is the daemon's own, like the segment
(``grant``): a gate that waits for it to shrink would be closed for good. It is on both sides of
the fraction until the group uses less again.

It reads files below ``root`` and changes nothing. A process may be moved, and limits may change:
all is looked up again every second.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

MAX_SHARE = 0.85
LOOK_AGAIN_NS = 1_000_000_000
# Version 1 says "no limit" by the largest multiple of a page that fits 63 bits.
UNLIMITED_BYTES = 1 << 60


class _Names(Struct, frozen=True):
    """How a version names its files, and the lines of ``memory.stat``."""

    usage: str
    maximum: str
    high: str | None
    inactive_file: str
    shmem: str


_V1 = _Names(
    "memory.usage_in_bytes", "memory.limit_in_bytes", None, "total_inactive_file", "total_shmem"
)
_V2 = _Names("memory.current", "memory.max", "memory.high", "inactive_file", "shmem")


class LimitedGroup(Struct, frozen=True):
    """A control group with a limit on memory."""

    path: Path
    names: _Names
    limit_bytes: int

    def used_bytes(self, segment_bytes: int) -> int:
        """What is used and cannot be given back, without the segment."""
        usage = int((self.path / self.names.usage).read_text())
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        shared = min(segment_bytes, int(stat.get(self.names.shmem, 0)))
        return max(0, usage - int(stat[self.names.inactive_file]) - shared)


class CgroupMemory:
    """The groups of this process that have a limit. ``root`` is ``/``, or the root of a test."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._groups: list[LimitedGroup] = []
        self._looked_ns: int | None = None
        self._granted: dict[Path, int] = {}
        self.left_bytes: int | None = None  # below the closest limit, when ``share`` last read it

    def groups(self, now_ns: int) -> list[LimitedGroup]:
        """The limited groups, the process's own first. Raises OSError."""
        if self._looked_ns is None or now_ns - self._looked_ns >= LOOK_AGAIN_NS:
            self._groups = limited_groups(self._root)
            self._looked_ns = now_ns
        return self._groups

    def share(self, segment_bytes: int, now_ns: int) -> float | None:
        """How much of the closest limit is used; None if there is no limit. Raises OSError,
        ValueError, KeyError: what was found cannot be read any more."""
        shares, left = [], []
        for group in self.groups(now_ns):
            used = group.used_bytes(segment_bytes)
            left.append(max(0, group.limit_bytes - segment_bytes - used))
            granted = self._granted[group.path] = min(self._granted.get(group.path, 0), used)
            shares.append((used - granted) / max(1, group.limit_bytes - segment_bytes - granted))
        self.left_bytes = min(left, default=None)
        return max(shares, default=None)

    def grant(self, segment_bytes: int, now_ns: int) -> int:
        """What is used now counts as the daemon's own, in each group that is below its limit.
        Returns how many bytes more than before. Raises OSError, ValueError, KeyError."""
        more = 0
        for group in self.groups(now_ns):
            used, granted = group.used_bytes(segment_bytes), self._granted.get(group.path, 0)
            if granted < used < group.limit_bytes - segment_bytes:
                self._granted[group.path] = used
                more = max(more, used - granted)
        return more


def limited_groups(root: Path = Path("/")) -> list[LimitedGroup]:
    """The groups of this process that limit its memory. Raises OSError if /proc cannot be read."""
    places: dict[str, str] = {}  # by controller; "" is version 2
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path_of_group = line.split(":", 2)
        places.update(dict.fromkeys(controllers.split(","), path_of_group))
    version_1 = "memory" in places
    place = places.get("memory" if version_1 else "")
    mount = _mount(root, version_1=version_1)
    if place is None or mount is None:
        return []
    names = _V1 if version_1 else _V2
    mount_root, mount_point = mount
    # In a container the mount may begin at the process's own group, or the process be outside it.
    relative = place.removeprefix(mount_root.rstrip("/")).strip("/")
    top = root / mount_point.strip("/")
    own = top if ".." in relative.split("/") else top / relative
    found = []
    for path in (own, *own.parents):
        limit_bytes = _limit_bytes(path, names)
        if limit_bytes is not None:
            found.append(LimitedGroup(path, names, limit_bytes))
        if path == top:
            break
    return found


def _mount(root: Path, *, version_1: bool) -> tuple[str, str] | None:
    """Where the tree of groups that limits memory begins, and where it is mounted."""
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        fields = left.split(" ")
        if kind == ("cgroup" if version_1 else "cgroup2") and (
            not version_1 or "memory" in options.split(",")
        ):
            return fields[3], fields[4]
    return None


def _limit_bytes(path: Path, names: _Names) -> int | None:
    """The limit of one group; None if it has none, as the root of version 2."""
    maximum = _bytes_in(path / names.maximum)
    high = None if names.high is None else _bytes_in(path / names.high)
    limits = [] if maximum is None else [int(maximum * MAX_SHARE)]
    limits += [] if high is None else [high]
    return min(limits, default=None)


def _bytes_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    return None if text == "max" or int(text) >= UNLIMITED_BYTES else int(text)
