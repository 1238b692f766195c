"""Units, tables and progress bars."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commands.output import (
    bytes_text,
    count_text,
    duration_text,
    echo,
    print_json,
    print_lines,
    progress,
    table,
    usd_text,
)
from commands.shell.exits import CommandFailed

CHECKOUT = Path(__file__).resolve().parents[2]


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


OBEYED = [chr(n) for n in (*range(32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029)]
OBEYED += [chr(n) for n in (*range(0x202A, 0x202F), *range(0x2066, 0x2070))]
HOSTILE = st.text(st.sampled_from(OBEYED) | st.characters(codec="utf-8"), max_size=20)


def obeys(text: str) -> list[str]:
    """What of a text a terminal would not just show."""
    left = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\t", "")
    return [each for line in left.split("\n") for each in line.rstrip("\r") if each in OBEYED]


@given(HOSTILE)
@example("".join(OBEYED))
def test_what_is_printed_has_nothing_in_it_that_a_terminal_obeys(text: str) -> None:
    for name in ("stdout", "stderr"):
        with redirected(name) as written:
            echo(text, err=name == "stderr")
        assert obeys(written()) == []
    with redirected("stdout") as written:
        print_json([text])
    assert obeys(written()) == [] and json.loads(written()) == [text]
    with redirected("stderr") as written:
        CommandFailed(text, hint=text).show()
    assert obeys(written()) == []


@contextmanager
def redirected(name: str) -> Iterator[Callable[[], str]]:
    """What is written to stdout or stderr by then."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="utf-8", newline="", write_through=True)
    redirect = redirect_stdout if name == "stdout" else redirect_stderr

    def written() -> str:
        file.flush()
        return raw.getvalue().decode()

    with redirect(file):
        yield written


@given(st.lists(HOSTILE))
@example(OBEYED)
def test_records_on_a_terminal_are_the_same_json_without_what_it_obeys(texts: list[str]) -> None:
    lines = [msgspec.json.encode(text) for text in texts]
    main, end = pty.openpty()
    attributes = termios.tcgetattr(end)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(end, termios.TCSANOW, attributes)
    with open(end, "w", encoding="utf-8") as terminal, redirect_stdout(terminal):
        for line in lines:
            print_lines([line])
            shown = os.read(main, 65_536)
            assert obeys(shown.decode()) == [] and json.loads(shown) == msgspec.json.decode(line)
    os.close(main)
    with redirected("stdout") as written:
        print_lines(lines)
    assert written().encode() == b"".join(line + b"\n" for line in lines)  # in a pipe: as it is


def test_one_place_prints() -> None:
    """Everything else goes through it, and is clean."""
    place = CHECKOUT / "commands" / "output.py"
    prints = re.compile(r"click\.s?echo\(|\bprint\(|\bstd(out|err)\.(buffer|write)")
    others = [path for path in (CHECKOUT / "commands").rglob("*.py") if path != place]
    assert [path for path in others if prints.search(path.read_text())] == []
    assert prints.search(place.read_text())


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
        "from commands.output import echo, table;echo(table(('topic', 'n'), [('o' * 60, 7)]))",
        columns=40,
    )
    head, *lines = shown.splitlines()
    assert head.startswith("\x1b[1m") and "topic" in head
    assert sum(line.count("o") for line in lines) == 60 and len(lines) == 2
    assert all(len(line) <= 40 for line in lines)


def test_a_bar_is_drawn_on_a_terminal_and_lines_are_written_above_it() -> None:
    shown = on_a_terminal(
        "from commands.output import progress, say\n"
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
