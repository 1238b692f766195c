"""Units, tables and progress bars."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from commands.shell.output import bytes_text, count_text, duration_text, progress, table, usd_text

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"),
        (100 << 10, "100 KiB"), (1024 * 1024 - 1, "1.0 MiB"), (64 << 20, "64.0 MiB"),
        (5 << 40, "5.0 TiB"),
    ],
)  # fmt: skip
def test_bytes_in_binary_units(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"), (0, "0 ms"), (0.5, "0.5 ms"), (9.999, "10 ms"), (999, "999 ms"),
        (1_000, "1.0 s"), (59_900, "59.9 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h 0 min"),
        (90_000_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_in_two_units_at_most(milliseconds: float | None, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_counts_in_groups_of_three() -> None:
    assert (count_text(1234567), count_text(0), count_text(None)) == ("1,234,567", "0", "-")


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(1234.5, "$1,234"), (12.344, "$12.34"), (0.1, "$0.10"), (0.000015, "$0.000015"),
     (4e-7, "$0.0000004"), (0.01, "$0.01"), (0, "$0.00")],
)  # fmt: skip
def test_dollars_in_cents_or_two_digits_of_what_is_less(dollars: float, text: str) -> None:
    """A GET costs $0.0000004."""
    assert usd_text(dollars) == text


def test_a_table_aligns_numbers_to_the_right_and_texts_to_the_left() -> None:
    rows = [("orders", 12, None), ("a", 1234, "x")]
    assert table(("topic", "records", "note"), rows) == (
        "topic   records  note\n"  #
        "orders       12  -\n"
        "a          1234  x"
    )


def test_a_table_without_rows_is_its_head() -> None:
    assert table(("a", "b"), []) == "a  b"


def test_what_is_in_a_table_does_nothing_to_a_terminal() -> None:
    assert table(("key",), [("a\x1b[2J\nb",)]).splitlines() == ["key", "a\ufffd[2J\ufffdb"]


def test_a_table_in_a_pipe_is_plain_and_no_cell_is_cut() -> None:
    cell = "[bold]" + "x" * 500
    assert table(("name",), [(cell,), ("w",)]).splitlines() == ["name", cell, "w"]


def on_a_terminal(code: str, columns: int) -> str:
    """What a process writes to a terminal of this width, both stdout and stderr."""
    main, end = pty.openpty()
    termios.tcsetwinsize(end, (24, columns))
    environ = {
        name: text for name, text in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")
    }
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=end, stdout=end, stderr=end, cwd=CHECKOUT,
        env=environ | {"TERM": "xterm-256color"},
    ) as process:  # fmt: skip
        os.close(end)
        written = b""
        while True:
            try:
                chunk = os.read(main, 65_536)
            except OSError:  # how Linux tells that the other end is closed
                break
            if not chunk:
                break
            written += chunk
        assert process.wait() == 0, written
    os.close(main)
    return written.decode()


def test_a_table_on_a_terminal_has_a_bold_head_and_wraps_what_does_not_fit() -> None:
    shown = on_a_terminal(
        "import click; from commands.shell.output import table;"
        "click.echo(table(('topic', 'n'), [('o' * 60, 7)]))",
        columns=40,
    )
    head, *lines = shown.splitlines()
    assert head.startswith("\x1b[1m") and "topic" in head
    assert sum(line.count("o") for line in lines) == 60 and len(lines) == 2
    assert all(len(line) <= 40 for line in lines)


def test_a_bar_is_drawn_on_a_terminal_and_lines_are_written_above_it() -> None:
    shown = on_a_terminal(
        "from commands.shell.output import progress, say\n"
        "with progress(4, 'objects') as advance:\n"
        "    advance(2)\n"
        "    say('waiting for a daemon')\n"
        "    advance(2)\n",
        columns=80,
    )
    assert "headgate: waiting for a daemon\r\n" in shown
    assert "objects" in shown and "100%" in shown


def test_without_a_terminal_no_bar_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(4, "objects") as advance:
        advance(4)
    assert capsys.readouterr().err == ""
