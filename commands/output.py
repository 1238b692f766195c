"""How values are printed: tables for people, JSON for programs.

Nothing here reads a clock or talks to a daemon. Numbers are right-aligned, a missing value is
``-``, and a table has no frame, so that it can be cut with ordinary tools.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

Cell = str | int | float | None


def as_json(value: Any) -> str:
    """Indented JSON, one value and nothing else."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(value: Any) -> None:
    """To stdout, as the only thing there."""
    click.echo(as_json(value))


def bytes_text(count: float | None) -> str:
    """``1.5 MiB``: three digits at most, binary units."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1023.95:
            return f"{count:.1f} {unit}" if count < 99.95 else f"{count:.0f} {unit}"
    return f"{count / 1024:.1f} TiB"


def duration_text(milliseconds: float | None) -> str:
    """``0.5 ms``, ``250 ms``, ``12.5 s``, ``3 min 20 s``, ``4 h 5 min``, ``2 d 3 h``."""
    if milliseconds is None:
        return "-"
    if milliseconds < 10:
        return f"{round(milliseconds, 1):g} ms"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def count_text(count: float | None) -> str:
    """``1,234,567``."""
    return "-" if count is None else f"{count:,.0f}"


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns two blanks apart; a column whose cells all begin with a digit is right-aligned."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    lines = []
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [
        bool(cells) and all(row[index][:1].isdigit() or row[index] == "-" for row in cells)
        for index in range(len(head))
    ]
    for row in [list(head), *cells]:
        line = "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append(line.rstrip())
    return "\n".join(lines)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """What advances a bar on stderr; nothing is shown without a terminal or a known length."""
    if length <= 0 or not sys.stderr.isatty():
        yield lambda step: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


def say(text: str) -> None:
    """One line beside the output."""
    click.echo(f"headgate: {text}", err=True)


def print_lines(lines: list[bytes]) -> None:
    """Lines of output, flushed."""
    sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
    sys.stdout.buffer.flush()
