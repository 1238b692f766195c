"""``headgate consume``: prints the messages of a subscription, or runs a command for each.

A message is acknowledged after it was printed, or when its command has ended with 0. On Ctrl-C and
on SIGTERM the consumer leaves: others get what it had, and no failure is counted. What is being
worked on may end first; a second Ctrl-C kills it.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import click
from msgspec import Struct

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable, decoded
from commands.consuming.batches import ConsumerSpec, ConsumerStream, Outcomes, polled
from commands.consuming.executing import PARALLEL_MAX, MessageCommands, message_line
from commands.output import counted_text, print_lines, say
from commands.shell.exits import CommandFailed, failure
from commands.shell.options import (
    client_option,
    reader_wait_option,
    records_option,
    topic_argument,
)
from ledger.delivery.subscription_rules import KeyFallback, Mode, SubscriptionRules


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
    "--parallel", type=click.IntRange(1, PARALLEL_MAX), default=1, show_default=True, metavar="N",
    help="How many commands run at a time; each key in order.",
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
    parallel: int,
    ack: str,
    records: int | None,
    output: str,
    wait_s: float | None,
    client: Client,
) -> None:
    """Print or work on the messages of a subscription, and acknowledge them.

    With --exec, --parallel says how many messages are worked on at a time. The command gets
    HEADGATE_TOPIC, HEADGATE_PARTITION, HEADGATE_SEQ, HEADGATE_KEY and HEADGATE_ATTEMPT in its
    environment. Unless it ends with 0, the message is sent again later.

    \b
    Examples:
      headgate consume orders billing
      headgate consume orders billing --exec './charge --fast' --parallel 8
      headgate consume orders billing --ack none -n 10 -o json
    """
    if command is not None and ack == "none":
        raise click.UsageError("--exec acknowledges by the exit code: leave --ack none out")
    if command is None and parallel > 1:
        raise click.UsageError("--parallel is how many commands run: it needs --exec")
    client.say = say
    consumer = ConsumerSpec(
        topic, subscription, name or f"{socket.gethostname()}-{os.getpid()}", filters,
        patience_ms=(60 if wait_s is None else wait_s) * 1000, reach_ms=(wait_s or 0) * 1000,
    )  # fmt: skip
    outcomes = Outcomes(client, consumer, say)
    as_json = output == "json"
    try:
        takes_nodes = parallel > 1 and _takes_nodes(client, consumer)
        with _Signals() as signals:
            try:
                if command is None:
                    shown = outcomes if ack == "auto" else None
                    _print(client, consumer, shown, signals, records, as_json=as_json)
                else:
                    with client.another() as teller:  # `client` waits for messages meanwhile
                        teller.say = say
                        commands = MessageCommands(
                            command, topic, Outcomes(teller, consumer, say), say,
                            parallel=parallel, as_json=as_json, takes_nodes=takes_nodes,
                        )  # fmt: skip
                        _execute(client, consumer, commands, signals, records)
            finally:
                outcomes.leave()
    except KeyboardInterrupt:
        pass  # how a person, or whoever runs it, ends it: not a failure
    except (Refused, Unreachable, UnknownAnswer) as error:
        raise failure(error) or error from error


class _Config(Struct):
    mode: Mode
    key_fallback: KeyFallback = "none"


class _Shown(Struct):
    config: _Config


def _takes_nodes(client: Client, consumer: ConsumerSpec) -> bool:
    """Whether the node of a message without a key counts as its key. Raises CommandFailed if
    messages must be worked on one after the other."""
    waits_ms = consumer.waits_ms(client)
    body = client.call("GET", consumer.path(), patience_ms=waits_ms)
    config = decoded(client, body, _Shown).config
    rules = SubscriptionRules(mode=config.mode, key_fallback=config.key_fallback)
    if rules.mode_facts.order == "partition":
        raise CommandFailed(
            f"subscription {consumer.subscription} is {rules.mode}: one message is worked on after"
            " the other",
            hint="leave --parallel out, or set the mode key_shared, which keeps each key in order",
        )
    return rules.takes_nodes


def _print(
    client: Client, consumer: ConsumerSpec, outcomes: Outcomes | None, signals: _Signals,
    left: int | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Prints messages until ``left`` were printed, and tells ``outcomes`` of them."""
    if left is None:
        batches = ConsumerStream(client, consumer, say).batches()
    else:  # a stream has a thousand messages on their way, which others could work on
        batches = polled(client, consumer, lambda: left or 0, say)
    for messages in batches:
        with signals.busy():
            print_lines([message_line(each, as_json=as_json) for each in messages])
            if outcomes is not None:
                outcomes.ack(messages)
        if left is not None:
            left -= len(messages)


def _execute(
    client: Client,
    consumer: ConsumerSpec,
    commands: MessageCommands,
    signals: _Signals,
    left: int | None,
) -> None:
    """Starts commands until ``left`` messages were taken, and waits for them."""

    def wanted() -> int:
        return commands.room(left)

    try:
        for messages in polled(client, consumer, wanted, say):
            with signals.busy():
                taken = sum(map(commands.start, messages))
            if left is not None:
                left -= taken
        commands.finish()
    finally:
        signals.is_busy = True  # only a second Ctrl-C ends what follows
        try:
            running = commands.stop()
            if running:
                say(
                    f"waits for {counted_text(running, 'command')}; a second Ctrl-C kills what runs"
                )
            commands.wait()
        except KeyboardInterrupt:
            commands.kill()
            commands.wait()
        commands.close()


class _Signals:
    """SIGINT and SIGTERM end the work: while ``is_busy`` only a second SIGINT does."""

    def __init__(self) -> None:
        self.is_busy = False
        self._must_stop = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, _: object) -> None:
        is_second = self._must_stop and number == signal.SIGINT
        self._must_stop = True
        if is_second or not self.is_busy:
            raise KeyboardInterrupt

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Ends before a stop."""
        self.is_busy = True
        yield
        self.is_busy = False
        if self._must_stop:
            raise KeyboardInterrupt
