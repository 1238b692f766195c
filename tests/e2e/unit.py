"""A unit's process without a running systemd: its command, its environment, its system calls.

``confined`` runs a command under the filter that systemd would load for the unit. As a program
(``python -m tests.e2e.unit UNIT COMMAND...``) this module loads the filter and becomes the command.
``systemd-analyze`` says what SystemCallFilter, RestrictAddressFamilies and MemoryDenyWriteExecute
mean; libseccomp, which systemd itself uses, loads it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "systemd" / "headgate.service"

ALLOW = 0x7FFF0000
EPERM = 0x00050001
EQUAL, MASKED_EQUAL = 4, 7
PROT_WRITE, PROT_EXEC = 2, 4


def settings(unit: Path, name: str) -> list[str]:
    """All values of a setting, in order."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def command(unit: Path) -> list[str]:
    """ExecStart as the manager runs it."""
    (line,) = settings(unit, "ExecStart")
    return [word.replace("$$", "$") for word in shlex.split(line)]


def confined(unit: Path, arguments: Iterable[str]) -> list[str]:
    """The command line that runs ``arguments`` under the unit's filter."""
    return [sys.executable, "-m", "tests.e2e.unit", str(unit), *arguments]


def systemd_analyze() -> str:
    """The tool; a test that needs it fails without it."""
    found = shutil.which("systemd-analyze")
    assert found, "systemd-analyze is not installed (on Debian: apt install systemd)"
    return found


@cache
def _groups() -> dict[str, list[str]]:
    said = subprocess.run(
        [systemd_analyze(), "syscall-filter", "--no-pager"],
        check=True, capture_output=True, text=True, env={**os.environ, "SYSTEMD_COLORS": "0"},
    ).stdout  # fmt: skip
    groups: dict[str, list[str]] = {}
    name = ""
    for line in said.splitlines():
        if line.startswith("#"):
            break  # what the kernel has and no group names
        if line.startswith("@"):
            name = line.strip()
            groups[name] = []
        elif line.strip() and not line.strip().startswith("#"):
            groups[name].append(line.strip())
    return groups


def _calls(word: str) -> Iterator[str]:
    if not word.startswith("@"):
        yield word
        return
    for inner in _groups()[word]:
        yield from _calls(inner)


def system_calls(unit: Path) -> set[str]:
    """The names of the system calls that a unit may make."""
    allowed: set[str] = set()
    for value in settings(unit, "SystemCallFilter"):
        named = {call for word in value.lstrip("~").split() for call in _calls(word)}
        allowed = allowed - named if value.startswith("~") else allowed | named
    return allowed


class _Compare(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def confine(unit: Path) -> None:
    """Puts this process under the unit's filter, permanently."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(EPERM))
    only: dict[str, list[_Compare]] = {}
    if settings(unit, "MemoryDenyWriteExecute") == ["yes"]:
        both = PROT_WRITE | PROT_EXEC
        only["mmap"] = [_Compare(2, MASKED_EQUAL, both, one) for one in (0, PROT_WRITE, PROT_EXEC)]
        only["mprotect"] = only["pkey_mprotect"] = [_Compare(2, MASKED_EQUAL, PROT_EXEC, 0)]
    families = [word for line in settings(unit, "RestrictAddressFamilies") for word in line.split()]
    if families:
        only["socket"] = [_Compare(0, EQUAL, int(getattr(socket, f)), 0) for f in families]
    for name in sorted(system_calls(unit)):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            continue  # no call of this architecture
        # Each rule allows; without a comparison it allows whatever the arguments are.
        for compares in [[compare] for compare in only.get(name, ())] or [list[_Compare]()]:
            rule = (_Compare * len(compares))(*compares)
            failed = library.seccomp_rule_add_array(context, ALLOW, number, len(rule), rule)
            assert not failed, f"{name}: libseccomp says {failed}"
    failed = library.seccomp_load(context)
    assert not failed, f"the filter is not loaded: libseccomp says {failed}"


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
