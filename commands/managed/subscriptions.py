"""``headgate subscriptions``: list, show, create, alter, delete and seek subscriptions; see and
settle what is blocked.

In the API, creating and altering are one PUT. Here they differ, as for topics: create refuses to
change a subscription, and alter refuses to create one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import click
import msgspec

from commands.client.http import Client, decoded
from commands.client.reader import since_ms
from commands.client.subscriptions import (
    all_subscriptions,
    known_subscription,
    put_subscription,
    subscription_of,
    subscription_path,
)
from commands.consuming.texts import (
    created_text,
    key_text,
    keys_text,
    list_text,
    progress_text,
    settled_text,
    show_text,
)
from commands.output import show
from commands.pushing.options import push_options, shown_target, take_push_settings
from commands.quantities import Milliseconds, whole_ms
from commands.shell.exits import CommandFailed
from commands.shell.filters import filter_options, take_filter
from commands.shell.options import (
    client_option,
    output_option,
    since_option,
    topic_argument,
    yes_option,
)
from daemon.schemas.subscriptions import SubscriptionStatus
from delivery.subscriptions.schemas import (
    BlockedKey,
    BlockedKeys,
    KeyState,
    RepairedMessages,
    ResentMessage,
    Sought,
)
from ledger.delivery.push_settings import PushTarget
from ledger.delivery.subscription_rules import (
    KeyFallback,
    Mode,
    Poison,
    SubscriptionRules,
    Unmatched,
)
from shards.clock import wall_ms

Function = TypeVar("Function", bound=Callable[..., Any])
UNSET = "none"  # the value that removes an optional setting
PLACES = "earliest, latest, or after an offset (N,N,... for each partition)"


def _range(_: click.Context, __: click.Parameter, value: str | None) -> list[int] | None:
    """``1s,10m``, or milliseconds."""
    if value is None:
        return None
    try:
        first, last = map(whole_ms, value.split(","))
    except ValueError:
        raise click.BadParameter(f"must be FIRST,LONGEST like 1s,10m, got {value!r}") from None
    return [first, last]


_SETTING_OPTIONS = (
    click.option("--mode", type=click.Choice(get_args(Mode)),
                 help="Who gets what: by key (the default), anybody, or one at a time."),
    click.option("--reliable/--not-reliable", default=None,
                 help="Not reliable: no acknowledgments; what is not taken is dropped."),
    click.option("--ack-timeout-ms", type=Milliseconds(1), metavar="DURATION",
                 help="How long a consumer may take for a message."),
    click.option("--redeliveries-max", type=click.IntRange(0), metavar="N",
                 help="How often a message is sent again."),
    click.option("--backoff-ms", callback=_range, metavar="FIRST,LONGEST",
                 help="Pauses before a message is sent again."),
    click.option("--poison", type=click.Choice(get_args(Poison)),
                 help="What becomes of a message that was sent too often."),
    click.option("--dead-letter-topic", metavar=f"TOPIC|{UNSET}", help="Where dead letters go."),
    click.option("--window-max", type=click.IntRange(1), metavar="N",
                 help="Most messages that all consumers have at a time."),
    click.option("--consumer-max", type=click.IntRange(1), metavar="N",
                 help="Most messages that one consumer has at a time."),
    click.option("--unmatched", type=click.Choice(get_args(Unmatched)),
                 help="What becomes of a key that no consumer's filter matches."),
    click.option("--key-fallback", type=click.Choice(get_args(KeyFallback)),
                 help="What counts as the key of a message that has none."),
    click.option("--paused/--not-paused", default=None, help="Send nothing while it is paused."),
    click.option("--no-filter", is_flag=True, help="Deliver all records."),
)  # fmt: skip


def _setting_options(function: Function) -> Function:
    """Options for the settings of a subscription; those not given are None."""
    function = filter_options(push_options(function))
    for option in reversed(_SETTING_OPTIONS):
        function = option(function)
    return function


def _named(function: Function) -> Function:
    """``topic`` and ``subscription``."""
    return topic_argument(click.argument("subscription")(function))


def _message_options(function: Function) -> Function:
    """A blocked message: by its key, or by its place."""
    for option in (
        click.option("--seq", type=click.IntRange(1), metavar="N", help="The message at an offset"
                     " of --partition, for one without a key."),
        click.option("--partition", type=click.IntRange(0, 999), metavar="P",
                     help="The partition of --seq; by default 0."),
        click.argument("key", required=False),
    ):  # fmt: skip
        function = option(function)
    return function


def _many_options(function: Function) -> Function:
    """Blocked messages: all, or those that match."""
    for option in (
        click.option("--resting", is_flag=True, help="With --all or --where: also those that rest,"
                     " and would be sent again by themselves."),
        click.option("--where", multiple=True, callback=_conditions, metavar="FIELD=VALUE",
                     help="All blocked messages that match: key=PATTERN, partition=P or"
                     " reason=PATTERN; repeated, they match all of these."),
        click.option("--all", "is_all", is_flag=True, help="All blocked messages."),
    ):  # fmt: skip
        function = option(function)
    return function


def _conditions(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
    """``key=customer-*``, ``partition=3``, ``reason=*503*``."""
    found: dict[str, Any] = {}
    for value in values:
        field, _equals, text = value.partition("=")
        if field not in ("key", "partition", "reason") or not text or field in found:
            raise click.BadParameter(
                f"must be key=PATTERN, partition=P or reason=PATTERN, each once, got {value!r}"
            )
        if field == "partition" and not text.isdecimal():
            raise click.BadParameter(f"partition must be a number from 0 on, got {text!r}")
        found[field] = int(text) if field == "partition" else text
    return found


@click.group()
def subscriptions() -> None:
    """List, show, change and seek subscriptions; settle blocked keys.

    \b
    Examples:
      headgate subscriptions ls
      headgate subscriptions create orders billing --poison dead_letter --dead-letter-topic bad
    """


@subscriptions.command("ls")
@click.argument("topic", required=False)
@client_option
@output_option
def subscriptions_ls(topic: str | None, client: Client, as_json: bool) -> None:
    """List the subscriptions of a topic, or all.

    \b
    Examples:
      headgate subscriptions ls
      headgate subscriptions ls orders -o json
    """
    show(list(all_subscriptions(client, topic)), as_json, list_text)


@subscriptions.command("show")
@_named
@client_option
@output_option
def subscriptions_show(topic: str, subscription: str, client: Client, as_json: bool) -> None:
    """Show a subscription, its consumers, and what waits for what.

    \b
    Example:
      headgate subscriptions show orders billing
    """
    show(subscription_of(client, topic, subscription), as_json, show_text)


@subscriptions.command("create")
@_named
@_setting_options
@click.option("--start", metavar="PLACE", help=f"Where to begin: {PLACES}; by default earliest.")
@since_option
@client_option
@output_option
def subscriptions_create(
    topic: str, subscription: str, start: str | None, since: str | None, client: Client,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Create a subscription.

    A subscription that exists with the same settings is left as it is, wherever it is. With other
    settings the command fails and changes nothing.

    \b
    Examples:
      headgate subscriptions create orders billing
      headgate subscriptions create orders audit --mode exclusive --since 1h
      headgate subscriptions create orders hook --push https://example.com/hook --where status=paid
    """
    settings = _settings_of(options)
    place = _place(start, since, "--start")
    present = known_subscription(client, topic, subscription)
    if present is None:
        begin = {} if place is None else {"start": place}
        made = put_subscription(client, topic, subscription, settings | begin)
        show(made, as_json, created_text)
        return
    different = _different(settings, present)
    if different:
        raise CommandFailed(
            f"the subscription {subscription!r} of {topic} exists with other settings:"
            f" {', '.join(different)}",
            hint="choose another name, or change it with `headgate subscriptions alter`",
        )
    show(present, as_json, show_text)


@subscriptions.command("alter")
@_named
@_setting_options
@client_option
@output_option
def subscriptions_alter(
    topic: str, subscription: str, client: Client, as_json: bool, **options: Any
) -> None:
    """Change settings of a subscription; settings that are not given stay.

    \b
    Examples:
      headgate subscriptions alter orders billing --ack-timeout-ms 120000
      headgate subscriptions alter orders billing --where status=paid --where 'country=N*'
      headgate subscriptions alter orders hook --push-secrets secrets.txt
      headgate subscriptions alter orders billing --poison drop --dead-letter-topic none
    """
    settings = _settings_of(options)
    if not settings:
        raise click.UsageError("give at least one setting to change")
    subscription_of(client, topic, subscription)
    put_subscription(client, topic, subscription, settings)
    show(subscription_of(client, topic, subscription), as_json, show_text)


@subscriptions.command("delete")
@_named
@yes_option
@client_option
def subscriptions_delete(topic: str, subscription: str, yes: bool, client: Client) -> None:
    """Delete a subscription, and with it what is finished; the records stay.

    \b
    Example:
      headgate subscriptions delete orders billing --yes
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete the subscription {subscription} of {topic}?", abort=True, err=True)
    client.call("DELETE", subscription_path(topic, subscription))


@subscriptions.command("seek")
@_named
@click.option("--to", metavar="PLACE", help=f"Where to go on: {PLACES}.")
@since_option
@yes_option
@client_option
@output_option
def subscriptions_seek(
    topic: str, subscription: str, to: str | None, since: str | None, yes: bool, client: Client,
    as_json: bool,
) -> None:  # fmt: skip
    """Go on elsewhere: records are sent again, or never.

    \b
    Examples:
      headgate subscriptions seek orders billing --to latest --yes
      headgate subscriptions seek orders billing --since 2h
    """
    place = _place(to, since, "--to")
    if place is None:
        raise click.UsageError("give --to or --since")
    if not yes and sys.stdin.isatty():
        click.confirm(f"Go on elsewhere with {subscription} of {topic}?", abort=True, err=True)
    body = msgspec.json.encode({"to": place})
    answer = client.call("POST", subscription_path(topic, subscription, "seek"), body)
    show(decoded(client, answer, Sought), as_json, lambda sought: progress_text(sought.partitions))


@subscriptions.command("keys")
@_named
@click.argument("key", required=False)
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True,
              metavar="N", help="Most keys to list.")  # fmt: skip
@client_option
@output_option
def subscriptions_keys(
    topic: str, subscription: str, key: str | None, limit: int, client: Client, as_json: bool
) -> None:
    """List blocked keys, or show what one key waits for.

    \b
    Examples:
      headgate subscriptions keys orders billing
      headgate subscriptions keys orders billing customer-17
    """
    if key is not None:
        answer = client.call("GET", subscription_path(topic, subscription, "keys", key))
        show(decoded(client, answer, KeyState), as_json, key_text)
        return
    path = subscription_path(topic, subscription, "keys")
    answer = client.call("GET", path, query={"limit": str(limit)})
    show(decoded(client, answer, BlockedKeys).keys, as_json, keys_text)


@subscriptions.command("retry")
@_named
@_message_options
@_many_options
@client_option
@output_option
def subscriptions_retry(
    topic: str, subscription: str, client: Client, as_json: bool, **named: Any
) -> None:
    """Send a blocked message again, as if it had never failed; or all that match.

    \b
    Examples:
      headgate subscriptions retry orders billing customer-17
      headgate subscriptions retry orders billing --partition 2 --seq 1234
      headgate subscriptions retry orders billing --where 'reason=*503*'
    """
    body = _named_messages(**named)
    found = _settle(client, topic, subscription, "retry", body)
    show(found, as_json, lambda found: settled_text(found, "sent again"))


@subscriptions.command("resend")
@_named
@click.option(
    "--partition",
    type=click.IntRange(0, 999),
    default=0,
    show_default=True,
    metavar="P",
    help="The partition of --seq.",
)
@click.option(
    "--seq", type=click.IntRange(1), required=True, metavar="N", help="The offset of the message."
)
@client_option
@output_option
def subscriptions_resend(
    topic: str, subscription: str, partition: int, seq: int, client: Client, as_json: bool
) -> None:
    """Deliver a message that is finished once more, to this subscription only.

    \b
    Example:
      headgate subscriptions resend orders billing --partition 2 --seq 1234
    """
    body = msgspec.json.encode({"partition": partition, "seq": seq})
    answer = client.call("POST", subscription_path(topic, subscription, "resend"), body)
    sent = decoded(client, answer, ResentMessage)
    show(sent, as_json, lambda sent: settled_text(sent, "sent once more"))


@subscriptions.command("skip")
@_named
@_message_options
@_many_options
@yes_option
@client_option
@output_option
def subscriptions_skip(
    topic: str, subscription: str, yes: bool, client: Client, as_json: bool, **named: Any
) -> None:
    """Give a blocked message up, or all that match; the next one of the key is sent.

    \b
    Examples:
      headgate subscriptions skip orders billing customer-17 --yes
      headgate subscriptions skip orders billing --where 'key=test-*' --yes
    """
    body = _named_messages(**named)
    if not yes and sys.stdin.isatty():
        what = "all these messages" if "where" in body else "the message"
        click.confirm(f"Give {what} up? That is never sent again.", abort=True, err=True)
    found = _settle(client, topic, subscription, "skip", body)
    show(found, as_json, lambda found: settled_text(found, "given up"))


def _different(settings: Mapping[str, Any], present: SubscriptionStatus) -> list[str]:
    """Which settings of a subscription are not what was asked for, as far as they are shown."""
    rules = {name: value for name, value in settings.items() if name != "push"}
    wanted = msgspec.convert(rules, SubscriptionRules)
    found = [
        name
        for name in SubscriptionRules.__struct_fields__
        if name != "paused_because" and getattr(wanted, name) != getattr(present.config, name)
    ]
    push, shown = shown_target(settings.get("push")), present.config.push
    if push is None or shown is None:
        return found if push == shown else [*found, "push"]
    fields = PushTarget.__struct_fields__
    return found + [
        f"push.{each}" for each in fields if getattr(push, each) != getattr(shown, each)
    ]


def _named_messages(
    key: str | None, partition: int | None, seq: int | None, is_all: bool, where: dict[str, Any],
    resting: bool,
) -> dict[str, Any]:  # fmt: skip
    """The body that names one message, or many."""
    ways = [key is not None, seq is not None, is_all, bool(where)]
    if sum(ways) != 1 or (seq is None and partition is not None):
        raise click.UsageError(
            "name one message by its key, or by --partition and --seq; or many by --all or --where"
        )
    if is_all or where:
        return {"where": where | ({"resting": True} if resting else {})}
    if resting:
        raise click.UsageError("--resting is for --all and --where")
    return {"key": key} if seq is None else {"partition": partition or 0, "seq": seq}


def _settle(
    client: Client, topic: str, subscription: str, action: str, body: Mapping[str, Any]
) -> BlockedKey | RepairedMessages:
    if "where" in body:
        path = subscription_path(topic, subscription, "repair")
        answer = client.call("POST", path, msgspec.json.encode({"action": action, **body}))
        return decoded(client, answer, RepairedMessages)
    path = subscription_path(topic, subscription, action)
    return decoded(client, client.call("POST", path, msgspec.json.encode(body)), BlockedKey)


def _settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the API takes them."""
    options = dict(options)
    push = take_push_settings(options)
    filters, is_unfiltered = take_filter(options), options.pop("no_filter")
    if filters and is_unfiltered:
        raise click.UsageError("use --no-filter without --tag, --node, --key and --where")
    if filters or is_unfiltered:
        push["filter"] = filters or None
    given = {name: value for name, value in options.items() if value is not None} | push
    if given.get("dead_letter_topic") == UNSET:
        given["dead_letter_topic"] = None
    return given


def _place(text: str | None, since: str | None, option: str) -> Any:
    """A place in the topic as the API takes it; None if none is given."""
    if text is not None and since is not None:
        raise click.UsageError(f"use only one of {option} and --since")
    if since is not None:
        try:
            return {"ts": since_ms(since, wall_ms())}
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--since") from error
    if text is None or text in ("earliest", "latest"):
        return text
    try:
        offsets = [int(each) for each in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"must be earliest, latest, an offset or offsets with commas, got {text!r}",
            param_hint=option,
        ) from None
    return offsets[0] if len(offsets) == 1 else offsets
