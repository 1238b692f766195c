"""``headgate push``: what is pushed, and tests of receivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from commands.client.http import Client, decoded
from commands.client.subscriptions import all_subscriptions, subscription_path
from commands.output import show
from commands.pushing.texts import attempts_text, exchange_text, list_text, resumed_text
from commands.shell.exits import FAILED
from commands.shell.options import client_option, output_option, topic_argument
from daemon.schemas.push import PushResumed
from delivery.push.attempts import ATTEMPTS_MAX
from delivery.subscriptions.schemas import PushAttempts, PushExchange

TEST_TIMEOUT_S = 60.0  # the daemon waits for 5 s for its turn, and for 30 s for the receiver


@click.group()
def push() -> None:
    """List push subscriptions, test their receivers, and let them go on.

    \b
    Examples:
      headgate push ls
      headgate push test orders hook
      headgate push attempts orders hook
      headgate push resume orders hook
    """


@push.command("ls")
@click.argument("topic", required=False)
@client_option
@output_option
def push_ls(topic: str | None, client: Client, as_json: bool) -> None:
    """List the push subscriptions of a topic, or all: where to, how fast, how well.

    \b
    Examples:
      headgate push ls
      headgate push ls orders -o json
    """
    found = [each for each in all_subscriptions(client, topic) if each.config.push is not None]
    show(found, as_json, list_text)


@push.command("test")
@topic_argument
@click.argument("subscription")
@click.option("--data", metavar="JSON|@FILE", help="The data of the record; by default it says that"
              " it is a test.")  # fmt: skip
@click.option("--key", metavar="KEY", help="The key of the record; by default it has none.")
@client_option
@output_option
def push_test(
    topic: str, subscription: str, data: str | None, key: str | None, client: Client, as_json: bool
) -> None:
    """Send the receiver a record that is in no topic, and show the whole exchange.

    The record counts as an attempt, and waits until the rate allows one. Values of own headers are
    hidden. If the receiver takes it, slow mode ends; otherwise the exit code is 1.

    \b
    Examples:
      headgate push test orders hook
      headgate push test orders hook --data '{"order": 7}' --key customer-17
    """
    asked: dict[str, Any] = {} if data is None else {"data": _json(data)}
    if key is not None:
        asked["key"] = key
    path = subscription_path(topic, subscription, "push", "test")
    answer = client.call("POST", path, msgspec.json.encode(asked), timeout_s=TEST_TIMEOUT_S)
    exchange = decoded(client, answer, PushExchange)
    show(exchange, as_json, exchange_text)
    if exchange.outcome != "success":
        raise click.exceptions.Exit(FAILED)


@push.command("attempts")
@topic_argument
@click.argument("subscription")
@click.argument("seq", type=click.IntRange(1), required=False)
@click.option(
    "--partition",
    type=click.IntRange(0, 999),
    metavar="P",
    help="The partition of SEQ, by default 0; without SEQ, of all its messages.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, ATTEMPTS_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="Most attempts to list.",
)
@client_option
@output_option
def push_attempts(
    topic: str, subscription: str, seq: int | None, partition: int | None, limit: int,
    client: Client, as_json: bool,
) -> None:  # fmt: skip
    """List the last POSTs, or those of the message with the offset SEQ, the last one first.

    The daemon keeps the last 1,000 of a subscription in memory, mostly of messages that failed.

    \b
    Examples:
      headgate push attempts orders hook
      headgate push attempts orders hook 57 --partition 3
    """
    query = {"limit": str(limit)}
    if seq is not None:
        query["seq"] = str(seq)
    if partition is not None or seq is not None:
        query["partition"] = str(partition or 0)
    path = subscription_path(topic, subscription, "push", "attempts")
    answer = client.call("GET", path, query=query)
    show(decoded(client, answer, PushAttempts), as_json, attempts_text)


@push.command("resume")
@topic_argument
@click.argument("subscription")
@client_option
@output_option
def push_resume(topic: str, subscription: str, client: Client, as_json: bool) -> None:
    """Go on pushing, after a receiver was repaired.

    It ends `paused`, slow mode, and a pause that the receiver asked for (Retry-After).

    \b
    Examples:
      headgate push resume orders hook
    """
    path = subscription_path(topic, subscription, "push", "resume")
    show(decoded(client, client.call("POST", path), PushResumed), as_json, resumed_text)


def _json(text: str) -> msgspec.Raw:
    """The JSON in a text, or in the file that it names."""
    try:
        encoded = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(encoded, type=msgspec.Raw)))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--data") from error
