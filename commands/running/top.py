"""``headgate top``: the state of a running daemon, live."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable, decoded
from commands.live.degraded import troubles
from commands.live.keys import wait_for_key
from commands.live.screen import Size, View, plain, screen
from commands.output import duration_text, echo, print_lines
from commands.quantities import Duration
from commands.shell.exits import DEGRADED, OK, UNREACHABLE
from commands.shell.options import client_option, output_option
from daemon.schemas.overview import Rates, StatusSample, between, completed, restarted
from daemon.schemas.status import Status
from shards.clock import monotonic_ns

ANSWER_TIMEOUT_S = 5.0  # a daemon that takes longer is shown as one that does not answer
RESTART_SHOWN_S = 30.0


class TopLine(msgspec.Struct, frozen=True):
    """A refresh, for programs. Without an answer both are null, and ``problem`` says why."""

    problem: str | None
    rates: Rates | None
    status: msgspec.Raw | None


class Watched:
    """Asks for the status again and again; knows what must be said about the answers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._newest: StatusSample | None = None
        self._rates: Rates | None = None
        self._restarted_at: float | None = None
        self._answered_at = 0.0
        self.body = b""
        self.problem = ""

    def ask(self) -> None:
        """Takes the next answer. The first one must come: raises Unreachable, Refused,
        UnknownAnswer."""
        try:
            self.body = self._client.call("GET", "/v0/status", timeout_s=ANSWER_TIMEOUT_S)
            document = decoded(self._client, self.body, dict[str, Any])
            status = decoded(self._client, completed(document), Status)
        except Unreachable as error:
            self._failed(error, error.reason)
        except (Refused, UnknownAnswer) as error:
            self._failed(error, str(error))
        else:
            sample = StatusSample(monotonic_ns() / 1e9, status)
            if self._newest is not None and restarted(self._newest.status, status):
                self._restarted_at = sample.at
            self._rates = between(self._newest, sample)
            self._newest = sample
            self._answered_at = sample.at
            self.problem = ""

    def _failed(self, error: Exception, reason: str) -> None:
        if self._newest is None:
            raise error
        self.problem = reason

    def view(self, keys: str = "") -> View:
        """What to show now."""
        assert self._newest is not None and self._rates is not None, "nothing was answered yet"
        now, status = monotonic_ns() / 1e9, self._newest.status
        notes = troubles(status)
        if self._restarted_at is not None and now - self._restarted_at < RESTART_SHOWN_S:
            ago = duration_text((now - self._restarted_at) * 1e3)
            notes.insert(
                0, f"the daemon restarted (incarnation {status.incarnation}), seen {ago} ago"
            )
        if self.problem:
            silent = duration_text((now - self._answered_at) * 1e3)
            notes.insert(0, f"no answer for {silent}: {self.problem}")
        return View(status, self._rates, notes, keys, answers=not self.problem)

    def line(self) -> TopLine:
        """What programs get."""
        if self.problem:
            return TopLine(self.problem, None, None)
        return TopLine(None, self._rates, msgspec.Raw(self.body))

    @property
    def exit_code(self) -> int:
        """The exit code of a run that ends now."""
        if self.problem:
            return UNREACHABLE
        assert self._newest is not None
        return DEGRADED if troubles(self._newest.status) else OK


@click.command()
@click.option(
    "-n", "--refreshes", type=click.IntRange(1), metavar="N", help="Stop after N refreshes."
)
@click.option(
    "--interval",
    "interval_s",
    type=Duration(0.1, 3_600),
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Time between refreshes.",
)
@client_option
@output_option
@click.pass_context
def top(
    context: click.Context, refreshes: int | None, interval_s: float, client: Client, as_json: bool
) -> None:
    """Show the state of the daemon, live.

    Groups, pressure, PUTs and their cost, latency and the busiest shards, on one screen of 80x24 or
    more. q quits, space pauses. Without a terminal, each refresh is text; -o json prints a line for
    each. After -n refreshes the exit code is 3 if the daemon did not answer the last one, and 4 if
    it is degraded.

    \b
    Examples:
      headgate top
      headgate top --interval 5 --url http://10.0.0.5:7440
      headgate top -n 1
    """
    watched = Watched(client)
    watched.ask()
    try:
        if as_json or not _is_screen():
            _print(watched, refreshes, interval_s, as_json)
        elif _draw(watched, refreshes, interval_s):
            return
    except KeyboardInterrupt:
        return  # how a person ends it: not a failure
    context.exit(watched.exit_code)


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _print(watched: Watched, refreshes: int | None, interval_s: float, as_json: bool) -> None:
    shown = 0
    while True:
        if as_json:
            print_lines([msgspec.json.encode(watched.line())])
        else:
            text = plain(screen(watched.view(), Size(None, None)))
            echo(f"\n{text}" if shown else text)
        sys.stdout.flush()
        shown += 1
        if shown == refreshes:
            return
        wait_for_key(None, interval_s)
        watched.ask()


def _draw(watched: Watched, refreshes: int | None, interval_s: float) -> bool:
    """Whether q ended it, and not the number of refreshes."""
    from commands.live.terminal import LiveTerminal

    shown = 0
    running = f"q quit  space pause  every {duration_text(interval_s * 1e3)}"
    paused = "PAUSED  q quit  space go on"
    with LiveTerminal() as terminal:

        def draw(keys: str) -> None:
            terminal.draw(screen(watched.view(keys), terminal.size))

        while True:
            draw(running)
            shown += 1
            if shown == refreshes:
                return False
            if _quits(terminal.key, interval_s, lambda: draw(paused)):
                return True
            watched.ask()


def _quits(
    key: Callable[[float], str | None], interval_s: float, paused: Callable[[], None]
) -> bool:
    """Waits for the next refresh; a pause is as long as it takes."""
    end_ns = monotonic_ns() + int(interval_s * 1e9)
    while (left_ns := end_ns - monotonic_ns()) > 0:
        pressed = key(left_ns / 1e9)
        if pressed in ("q", "Q"):
            return True
        if pressed != " ":
            continue
        paused()
        while (pressed := key(3600.0)) != " ":
            if pressed in ("q", "Q"):
                return True
        return False
    return False
