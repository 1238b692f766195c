"""``headgate consume``: prints the messages of a subscription, or runs a command for each.

A message is acknowledged after it was printed, or when its command has ended with 0. On Ctrl-C and
on SIGTERM the consumer leaves: others get what it had, and no failure is counted. What is being
worked on may end first; a second Ctrl-C does not wait for it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec
from msgspec import UNSET

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable
from commands.client.reader import data_line
from commands.consuming.batches import ConsumerSpec, ConsumerStream, Outcomes, polled
from commands.shell.exits import failure
from commands.shell.options import (
    client_option,
    reader_wait_option,
    records_option,
    topic_argument,
)
from commands.shell.output import print_lines, say
from delivery.subscriptions.schemas import ConsumedMessage

REASON_CHARACTERS_MAX = 200


@click.command()
@topic_argument
@click.argument("subscription")
@click.option(
    "--name", metavar="NAME", help="The consumer's name; by default of the machine and process."
)
@click.option(
    "--filter", "filters", metavar="PATTERN", multiple=True,
    help="Only keys that match this pattern; repeatable.",
)  # fmt: skip
@click.option(
    "--exec", "command", metavar="COMMAND",
    help="Run a command of the shell for each message, with the message as its input; exit code 0"
    " acknowledges.",
)  # fmt: skip
@click.option(
    "--ack", type=click.Choice(["auto", "none"]), default="auto", show_default=True,
    help="Acknowledge what was printed, or nothing: then it is sent again later.",
)  # fmt: skip
@records_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["data", "json"]),
    default="data",
    show_default=True,
    help="The data of messages, or whole messages: what is printed, or what the command reads.",
)
@reader_wait_option
@client_option
def consume(
    topic: str,
    subscription: str,
    name: str | None,
    filters: tuple[str, ...],
    command: str | None,
    ack: str,
    records: int | None,
    output: str,
    wait_s: float | None,
    client: Client,
) -> None:
    """Print or work on the messages of a subscription, and acknowledge them.

    With --exec one message is worked on at a time; run it several times for more. The command gets
    HEADGATE_TOPIC, HEADGATE_PARTITION, HEADGATE_SEQ, HEADGATE_KEY and HEADGATE_ATTEMPT in its
    environment. Unless it ends with 0, the message is sent again later.

    \b
    Examples:
      headgate consume orders billing
      headgate consume orders billing --exec './charge --fast' --name worker-1
      headgate consume orders billing --ack none -n 10 -o json
    """
    if command is not None and ack == "none":
        raise click.UsageError("--exec acknowledges by the exit code: leave --ack none out")
    client.say = say
    consumer = ConsumerSpec(
        topic, subscription, name or f"{socket.gethostname()}-{os.getpid()}", filters,
        patience_ms=(60 if wait_s is None else wait_s) * 1000, reach_ms=(wait_s or 0) * 1000,
    )  # fmt: skip
    outcomes = Outcomes(client, consumer, say)
    work = _Work(consumer, outcomes, command, ack == "auto", output == "json", records)
    try:
        with _stopped_by_signals(work):
            try:
                work.run(client)
            finally:
                outcomes.leave()
    except KeyboardInterrupt:
        pass  # how a person, or whoever runs it, ends it: not a failure
    except (Refused, Unreachable, UnknownAnswer) as error:
        raise failure(error) or error from error


class _Work:
    """What is done with messages. ``is_busy``: messages are worked on, which ends before a stop."""

    def __init__(
        self, consumer: ConsumerSpec, outcomes: Outcomes, command: str | None, acks: bool,
        as_json: bool, records: int | None,
    ) -> None:  # fmt: skip
        self._consumer = consumer
        self._outcomes = outcomes
        self._command = command
        self._acks = acks
        self._as_json = as_json
        self._left = records
        self.is_busy = False
        self.must_stop = False

    def run(self, client: Client) -> None:
        """Works until as many were worked on as asked for, or an exception."""
        for messages in self._batches(client):
            self.is_busy = True
            if self._command is None:
                self._print(messages)
            else:
                self._execute(self._command, messages[0])
            self.is_busy = False
            if self.must_stop:
                raise KeyboardInterrupt
            if self._left is not None and self._left <= 0:
                return

    def _batches(self, client: Client) -> Iterator[list[ConsumedMessage]]:
        # A stream has a thousand messages on their way, which others could work on.
        if self._command is not None:
            return polled(client, self._consumer, lambda: 1, say)
        if self._left is not None:
            return polled(client, self._consumer, lambda: self._left or 0, say)
        return ConsumerStream(client, self._consumer, say).batches()

    def _print(self, messages: list[ConsumedMessage]) -> None:
        print_lines([self._line(each) for each in messages])
        if self._acks:
            self._outcomes.ack(messages)
        self._done(len(messages))

    def _line(self, message: ConsumedMessage) -> bytes:
        return msgspec.json.encode(message) if self._as_json else data_line(message)

    def _input(self, message: ConsumedMessage) -> bytes:
        if message.data_b64 is not UNSET and not self._as_json:
            return b64decode(message.data_b64)
        return self._line(message) + b"\n"

    def _execute(self, command: str, message: ConsumedMessage) -> None:
        told = {
            "TOPIC": self._consumer.topic, "PARTITION": message.partition, "SEQ": message.seq,
            "KEY": "" if message.key is UNSET else message.key, "ATTEMPT": message.attempt,
        }  # fmt: skip
        environ = os.environ | {f"HEADGATE_{name}": str(value) for name, value in told.items()}
        code = subprocess.run(
            command, shell=True, input=self._input(message), env=environ, check=False
        ).returncode
        if code == 0:
            self._outcomes.ack([message])
        elif not self.must_stop:  # otherwise Ctrl-C, which goes to the command too, has ended it
            why = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            say(f"message {message.seq} of partition {message.partition}: {why}")
            self._outcomes.nack(message, f"{command[:REASON_CHARACTERS_MAX]}: {why}")
        self._done(1)

    def _done(self, count: int) -> None:
        if self._left is not None:
            self._left -= count


@contextmanager
def _stopped_by_signals(work: _Work) -> Iterator[None]:
    """SIGINT and SIGTERM end the work between messages; a second SIGINT ends it anywhere."""

    def stop(number: int, _: object) -> None:
        if not work.is_busy or (work.must_stop and number == signal.SIGINT):
            raise KeyboardInterrupt
        work.must_stop = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
