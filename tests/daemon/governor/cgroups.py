"""A machine's control groups, made of ordinary files."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
UNLIMITED_V1 = 9_223_372_036_854_771_712


class FakeMachine:
    """``/proc/self`` and ``/sys/fs/cgroup`` of a process, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)

    def process(self, cgroup: str, *mounts: str) -> None:
        """What /proc says: the groups, and the mounts without their first fields."""
        (self.root / "proc/self/cgroup").write_text(cgroup)
        lines = [f"{30 + number} 23 0:{number} {mount}\n" for number, mount in enumerate(mounts)]
        (self.root / "proc/self/mountinfo").write_text("".join(lines))

    def v1(self, place: str, mount_root: str = "/") -> None:
        self.process(
            f"8:pids:/\n4:cpu,memory:{place}\n0::/\n",
            f"{mount_root} /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids",
            f"{mount_root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory",
            "/ /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw",
        )

    def v2(self, place: str, mount_root: str = "/") -> None:
        self.process(
            f"0::{place}\n",
            f"{mount_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
        )

    def group_v1(
        self, path: str, *, limit_mib: float | None, used_mib: float,
        inactive_mib: float = 0, shmem_mib: float = 0,
    ) -> None:  # fmt: skip
        self._files(
            f"sys/fs/cgroup/memory{path}",
            {
                "memory.usage_in_bytes": _bytes(used_mib),
                "memory.limit_in_bytes": _bytes(limit_mib) or UNLIMITED_V1,
                "memory.stat": (
                    f"cache 5\ninactive_file 7\ntotal_inactive_file {_bytes(inactive_mib)}\n"
                    f"shmem 3\ntotal_shmem {_bytes(shmem_mib)}"
                ),
            },
        )

    def group_v2(
        self, path: str, *, used_mib: float, max_mib: float | None = None,
        high_mib: float | None = None, inactive_mib: float = 0, shmem_mib: float = 0,
    ) -> None:  # fmt: skip
        self._files(
            f"sys/fs/cgroup{path}",
            {
                "memory.current": _bytes(used_mib),
                "memory.max": _bytes(max_mib) or "max",
                "memory.high": _bytes(high_mib) or "max",
                "memory.stat": (
                    f"anon 5\nshmem {_bytes(shmem_mib)}\ninactive_file {_bytes(inactive_mib)}"
                ),
            },
        )

    def _files(self, folder: str, files: dict[str, object]) -> None:
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (path / name).write_text(f"{content}\n")


def _bytes(mib: float | None) -> int:
    return 0 if mib is None else int(mib * MIB)
