"""How values are printed: tables for people, JSON for programs.

On a terminal, rich fits tables to its width and draws progress bars. In a pipe, a table is plain
text that can be processed with ordinary tools: no color, no frame, no cell cut short. Numbers are
right-aligned, and a missing value is ``-``.

Names, keys, reasons and records are what strangers have chosen. Whatever is printed goes through
``echo``, ``echo_json`` or ``print_lines``, which let nothing through that a terminal obeys, such as
escape sequences, or that changes the order in which it is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import click
import msgspec

Cell = str | int | float | None
T = TypeVar("T")
JSON_ERRORS = "headgate.json_errors"  # in click's meta: whether stdout still needs a JSON value
NAMED_MAX = 20  # lines of a kind that a report prints for people; JSON has them all
RICH_ROWS_MAX = 1_000  # rich takes 0.6 ms for a row
# Characters that JSON need not escape: DEL, C1, the ends of lines and the controls of direction.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")
_OBEYED_BYTES = re.compile(rb"[\x7f\xc2\xd8\xe2]")  # each of them in UTF-8 begins with one of these
_BOLD = re.compile("(\x1b\\[[01]m)")  # what rich writes around the head of a table


def print_json(value: Any) -> None:
    """Indented JSON, as the only thing on stdout."""
    echo_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show(value: T, as_json: bool, text: Callable[[T], str]) -> None:
    """Prints a value as JSON for programs, or else as text for people."""
    if as_json:
        print_json(value)
    else:
        echo(text(value))


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


def counted_text(count: int, noun: str, plural: str = "") -> str:
    """``1 record``, ``1,234 records``."""
    return f"{count_text(count)} {noun if count == 1 else plural or noun + 's'}"


def usd_text(dollars: float) -> str:
    """``$1,234``, ``$12.34``, ``$0.000015``: cents, or two digits of what is less."""
    if dollars >= 1_000:
        return f"${dollars:,.0f}"
    if dollars >= 0.1 or not dollars:
        return f"${dollars:.2f}"
    return f"${Decimal(f'{dollars:.1e}'):f}".rstrip("0")


def time_text(epoch_ms: int, timespec: str = "seconds") -> str:
    """``2026-01-31 12:00:00+00:00``."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)
    return moment.isoformat(sep=" ", timespec=timespec)


def printable(line: str) -> str:
    """A line that does nothing to a terminal, whatever a stranger has put into it."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() or each == "\t" else "\ufffd" for each in line)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Lines for people."""
    click.echo("\n".join(map(_shown, text.split("\n"))), err=err, nl=nl)


def _shown(line: str) -> str:
    if "\x1b" not in line or not sys.stdout.isatty():
        return printable(line)
    parts = _BOLD.split(line)
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))


def echo_json(json: str, *, nl: bool = True) -> None:
    """The same JSON, with escapes."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[JSON_ERRORS] = False
    click.echo(_escaped(json), nl=nl)


def _escaped(json: str) -> str:
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns two blanks apart; a column whose cells all begin with a digit is right-aligned.

    On a terminal the head is bold, and a cell that does not fit is wrapped. Control characters in
    cells are replaced.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    right = [
        bool(cells) and all(row[index][:1].isdigit() or row[index] == "-" for row in cells)
        for index in range(len(head))
    ]
    if sys.stdout.isatty() and len(rows) <= RICH_ROWS_MAX:
        return _rich_table(head, cells, right)
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(head), *cells]
    )


def _rich_table(head: Sequence[str], rows: list[list[str]], right: list[bool]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, to_right in zip(head, right, strict=True):
        drawn.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*map(Text, row))
    console = Console()
    with console.capture() as capture:
        console.print(drawn)
    return capture.get().rstrip("\n")


def limited(lines: Sequence[str]) -> list[str]:
    """At most NAMED_MAX of the lines, then how many are left out."""
    left = len(lines) - NAMED_MAX
    return [*lines[:NAMED_MAX], f"and {count_text(left)} more"] if left > 0 else list(lines)


@contextmanager
def progress(length: int, label: str, *, of_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """What advances a bar on stderr; without a terminal or a known length nothing is drawn.

    ``of_bytes``: the steps are bytes, and the bar says how many a second."""
    if length <= 0 or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    speed = (TransferSpeedColumn(),) if of_bytes else ()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *speed,
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task(label, total=length)
        yield lambda step: bar.advance(task, step)


def say(text: str) -> None:
    """One line on stderr."""
    echo(f"headgate: {text}", err=True)


def draw_line(text: str) -> None:
    """Draws a line on the terminal of stderr over the one before."""
    click.echo(f"\r{printable(text)}\x1b[K", err=True, nl=False)


def print_lines(lines: list[bytes]) -> None:
    """Lines of JSON, flushed; on a terminal with escapes for what it would obey."""
    text = b"".join(line + b"\n" for line in lines)
    if sys.stdout.isatty() and _OBEYED_BYTES.search(text):
        text = _escaped(text.decode()).encode()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
