"""The commands that the pages show, and what must be said of each.

A block of commands is ``sh``, or ``console`` if it shows output too: there ``$ `` is before each
command. A command may go on after a backslash at the end of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.docs.reader import Reader

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "clients/**/*.md")
    for path in ROOT.glob(pattern)
)
_BLOCK = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
# What begins a line of a shell. A block of another kind that begins so is a mistake.
PROGRAM = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?"
    r"(?:headgate|curl|make|kcat|docker|sudo|pipx?|echo|printf|python3?|openssl|export|eval|sh) "
)


class Command(NamedTuple):
    """A command as the page has it, and the output that the page shows for it."""

    text: str
    shown: str = ""


@dataclass(frozen=True)
class Runs:
    """It is run. ``prints`` is a pattern of what it prints; its named groups are variables of the
    commands after it. ``swap`` puts what the test has in the place of what a reader has. ``first``
    does what the page takes for granted. ``until`` says whether the command has done what cannot be
    seen in what it prints."""

    prints: str
    swap: Mapping[str, str] = field(default_factory=dict)
    first: Callable[[Reader], Any] | None = None
    until: Callable[[Reader], Any] | None = None
    stdin: str = ""
    ends: bool = True  # else it is stopped once it has printed that
    stays: bool = False  # else when the page ends


@dataclass(frozen=True)
class Elsewhere:
    """Another test runs it."""

    test: str  # FILE::NAME


@dataclass(frozen=True)
class NotRun:
    """No test runs it."""

    reason: str


Step = Runs | Elsewhere | NotRun


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of each block."""
    return _BLOCK.findall((ROOT / page).read_text())


def commands(page: str) -> list[Command]:
    """The commands of a page, in its order."""
    found: list[Command] = []
    for kind, text in blocks(page):
        if kind not in ("sh", "console"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            if kind == "console" and not line.startswith("$ "):
                found[-1] = found[-1]._replace(shown=f"{found[-1].shown}{line}\n")
            elif line.strip() and not line.startswith("#"):
                found.append(Command(" ".join(line.removeprefix("$ ").split())))
    return found


def steps(page: str, told: Mapping[str, Step]) -> list[tuple[Command, Step]]:
    """Each command with what is said of it: ``told`` has the beginnings of commands. Raises
    LookupError if one has nothing, or if something is said of none."""
    found: list[tuple[Command, Step]] = []
    left = list(told)
    for command in commands(page):
        begins = [each for each in left if command.text.startswith(each)]
        if not begins:
            raise LookupError(
                f"{page}: {command.text}\nis neither run nor listed: say in tests/docs what of it"
            )
        begin = max(begins, key=len)
        left.remove(begin)
        found.append((command, told[begin]))
    if left:
        raise LookupError(f"{page} has no command that begins so any more: {left}")
    return found
