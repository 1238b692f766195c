"""``headgate top`` against answers in the shape of the HTTP API, in a pipe and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.live.documents import RECORDED
from tests.e2e.daemon import HANG_S, wait_until
from tests.scripted import Answer, Script, Scripted, refusal, run, says, scripted

CHECKOUT = Path(__file__).resolve().parents[3]


def in_turn(*answers: Answer) -> Script:
    """Each answer once, the last one again and again."""
    left = list(answers)
    return lambda call: left.pop(0) if len(left) > 1 else left[0]


def test_in_a_pipe_each_refresh_is_plain_text_with_every_shard_and_nothing_cut() -> None:
    with says(Answer(200, RECORDED | {"store": {"url": "s3://" + "x" * 300}})) as server:
        result = run(server, "top", "-n", "2", "--interval", "0.1")
    first, second = result.stdout.split("\n\nheadgate ")
    assert result.exit_code == 0 and result.stderr == ""
    assert "x" * 300 in first and "since the start" in first and "rates over" in second
    assert "\x1b" not in result.stdout and "q quit" not in result.stdout
    assert len(server.calls) == 2


def test_json_is_a_line_for_each_refresh_with_rates_and_the_whole_status() -> None:
    with says(Answer(200, RECORDED | {"a_field_of_the_future": 1})) as server:
        result = run(server, "top", "-n", "2", "--interval", "0.1", "-o", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["problem"] for line in lines] == [None, None]
    assert lines[0]["status"] == RECORDED | {"a_field_of_the_future": 1}
    assert [line["rates"]["since_start"] for line in lines] == [True, False]


def test_a_daemon_that_restarts_is_named_and_followed() -> None:
    again = RECORDED | {"incarnation": 4, "uptime_s": 1, "totals": {"requests_acked": 5}}
    script = in_turn(Answer(200, RECORDED), Answer(0), Answer(0), Answer(200, again))
    with scripted(script) as server:
        result = run(server, "top", "-n", "3", "--interval", "0.1")
    refreshes = result.stdout.split("\n\nheadgate ")
    assert result.exit_code == 0
    assert "no answer for" in refreshes[1] and "requests/s" in refreshes[1]
    assert " NO ANSWER " in refreshes[1] and " ready " in refreshes[2]
    assert "the daemon restarted (incarnation 4)" in refreshes[2] and "5 requests/s" in refreshes[2]


def test_it_ends_in_3_if_the_last_refresh_had_no_answer() -> None:
    with scripted(in_turn(Answer(200, RECORDED), Answer(0))) as server:
        result = run(server, "top", "-n", "2", "--interval", "0.1")
        as_json = run(server, "top", "-n", "2", "--interval", "0.1")
    assert result.exit_code == 3 and "no answer for" in result.stdout
    assert as_json.exit_code == 3 and as_json.stdout == "" and "hint" in as_json.stderr


def test_a_refusal_later_is_shown_like_a_missing_answer() -> None:
    script = in_turn(Answer(200, RECORDED), refusal(503, "unavailable", "it stops"))
    with scripted(script) as server:
        result = run(server, "top", "-n", "2", "--interval", "0.1", "-o", "json")
    last = json.loads(result.stdout.splitlines()[1])
    assert (last["problem"], last["status"], result.exit_code) == ("it stops", None, 3)


@pytest.mark.parametrize(
    ("change", "says_so"),
    [
        ({"ready": False}, "the daemon is not ready"),
        ({"alarms": [{"message": "store failing for 42 s"}]}, "store failing for 42 s"),
        ({"shards": [{"shard": 0, "pid": None}]}, "shard 0 has no process"),
    ],
)
def test_it_ends_in_4_if_the_daemon_is_degraded(change: dict[str, object], says_so: str) -> None:
    with says(Answer(200, RECORDED | change)) as server:
        result = run(server, "top", "-n", "1")
    assert result.exit_code == 4 and says_so in result.stdout


def test_something_else_that_listens_there_is_an_error() -> None:
    with says(Answer(200, b"<html>")) as server:
        result = run(server, "top", "-n", "1")
    assert result.exit_code == 1 and "is --url the address" in result.stderr


@pytest.mark.parametrize("wrong", [("-n", "0"), ("--interval", "0"), ("--interval", "x")])
def test_numbers_out_of_range_are_refused(wrong: tuple[str, str]) -> None:
    with says(Answer(200, RECORDED)) as server:
        result = run(server, "top", *wrong)
    assert result.exit_code == 2 and wrong[0] in result.stderr and not server.calls


class OnTerminal:
    """The command on a terminal of 80x24. ``text`` is what it has written."""

    def __init__(self, server: Scripted, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.before = termios.tcgetattr(slave)
        environ = os.environ | {"TERM": "xterm", "PYTHONPATH": str(CHECKOUT)}
        environ = {k: v for k, v in environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, str(CHECKOUT / "cli.py"), "top", "--url", server.url, *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True,
        )  # fmt: skip
        self.slave = slave
        os.set_blocking(self.master, False)
        self.text = ""

    def shows(self, what: str) -> Callable[[], bool]:
        def look() -> bool:
            with contextlib.suppress(BlockingIOError):
                self.text += os.read(self.master, 1 << 16).decode(errors="replace")
            return what in self.text

        return look

    def press(self, key: str) -> None:
        self.text = ""
        os.write(self.master, key.encode())


@contextlib.contextmanager
def on_terminal(server: Scripted, *arguments: str) -> Iterator[OnTerminal]:
    terminal = OnTerminal(server, *arguments)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.slave)
        os.close(terminal.master)


def test_on_a_terminal_space_pauses_and_q_quits_and_the_terminal_is_as_before() -> None:
    with (
        says(Answer(200, RECORDED)) as server,
        on_terminal(server, "--interval", "0.1") as terminal,
    ):
        wait_until(terminal.shows("space pause"), "the first screen")
        assert "\x1b[?1049h" in terminal.text and "$43.22/month" in terminal.text
        terminal.press(" ")
        wait_until(terminal.shows("PAUSED"), "the pause")
        asked = len(server.calls)
        terminal.press("x")
        terminal.press(" ")
        wait_until(terminal.shows("space pause"), "a refresh after the pause")
        assert len(server.calls) > asked
        terminal.press("q")
        wait_until(terminal.shows("\x1b[?1049l"), "the old screen")
        assert terminal.process.wait(HANG_S) == 0
        assert termios.tcgetattr(terminal.slave) == terminal.before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_the_terminal_is_as_before(number: int, code: int) -> None:
    with says(Answer(200, RECORDED)) as server, on_terminal(server) as terminal:
        wait_until(terminal.shows("space pause"), "the first screen")
        terminal.process.send_signal(number)
        wait_until(terminal.shows("\x1b[?1049l"), "the old screen")
        assert terminal.process.wait(HANG_S) == code
        assert termios.tcgetattr(terminal.slave) == terminal.before
