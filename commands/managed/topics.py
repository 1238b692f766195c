"""``headgate topics``: list, show, create, alter, trim and delete topics.

In the API, creating and altering are one PUT. Here they differ, because a person who creates a
topic that exists with other settings has probably mistaken the name: create refuses to change a
topic, and alter refuses to create one. Another client may act between our GET and our PUT; the PUT
then decides.

A PUT keeps the settings that it does not name. It takes all columns as one setting; here each
column is a setting of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click
import msgspec
from msgspec.structs import asdict

from commands.client.http import Client, Refused, decoded, topic_path
from commands.client.topics import all_states, state_of
from commands.output import bytes_text, count_text, duration_text, show, table
from commands.quantities import Duration, size_bytes, whole_ms
from commands.shell.exits import CommandFailed
from commands.shell.options import client_option, output_option, topic_argument, yes_option
from commands.shell.secret_lines import secret_lines
from daemon.schemas.api import TopicConfig, TopicState, Trimmed, TrimRequest
from delivery.filters import compiled
from ledger.types import (
    Dedupe,
    Discard,
    HookScheme,
    HookSigning,
    KafkaCleanupPolicy,
    KafkaValue,
)

Function = TypeVar("Function", bound=Callable[..., Any])
COUNT = "N|none"
UNSET = "none"  # the value that removes an optional setting
COLUMN_TYPES = ("string", "long", "double", "boolean", "timestamp")


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be an integer, got {text!r}") from None


def _optional(read: Callable[[str], int]) -> Callable[..., int | str | None]:
    """What ``read`` understands, or ``none``."""

    def callback(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
        if value is None or value == UNSET:
            return value
        try:
            return read(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}; {UNSET} removes it") from None

    return callback


_SETTING_OPTIONS = (
    click.option("--partitions", type=click.IntRange(1, 1_000), metavar="N",
                 help="How many partitions, by default 1; can only grow."),
    click.option(
        "--column", "columns", metavar="NAME:TYPE", multiple=True,
        help="A typed column of the topic's table; repeatable. Types: "
        + ", ".join(COLUMN_TYPES) + ".",
    ),
    click.option("--priority", callback=_optional(_count), metavar=COUNT,
                 help="How urgent deliveries are, from -1000 to 1000."),
    click.option("--auto-priority/--no-auto-priority", default=None,
                 help="Without a priority, what was read lately is more urgent."),
    click.option("--lossy/--not-lossy", default=None,
                 help="A watcher that lags is told what it missed instead of catching up."),
    click.option("--cap-records", callback=_optional(_count), metavar=COUNT,
                 help="Most records that each partition keeps."),
    click.option("--cap-bytes", callback=_optional(size_bytes), metavar="SIZE|none",
                 help="Most bytes that each partition keeps, plus one extent at most."),
    click.option("--ttl-ms", "--ttl", "ttl_ms", callback=_optional(whole_ms),
                 metavar="DURATION|none",
                 help="How long records are kept, by their own timestamps."),
    click.option("--discard", type=click.Choice(get_args(Discard)),
                 help="At a cap: evict the oldest records, or refuse new ones."),
    click.option("--dedupe", type=click.Choice(get_args(Dedupe)),
                 help="With body, a body that was sent before is not stored again."),
    click.option("--retain-for-subscriptions", callback=_optional(size_bytes),
                 metavar="SIZE|none",
                 help="Up to how many bytes of each partition caps and --ttl spare what reliable"
                 " subscriptions have not finished."),
    click.option("--hook", type=click.Choice([*get_args(HookScheme), UNSET]),
                 help="How webhooks must be signed; none ends the check."),
    click.option("--hook-secrets", metavar="FILE",
                 help="The secrets of their sender, in lines: four at most. - is stdin."),
    click.option("--hook-header", metavar="NAME",
                 help="Of --hook hmac: the header with the signature."),
    click.option("--hook-tolerance", type=Duration(1, 86_400), metavar="DURATION",
                 help="How far the time of a signature may be off."),
    click.option("--kafka-value", type=click.Choice(get_args(KafkaValue)),
                 help="What values of Kafka's producers are: bytes, or JSON."),
    click.option("--kafka-cleanup-policy", type=click.Choice(get_args(KafkaCleanupPolicy)),
                 help="What Kafka's clients are told; nothing is ever compacted by key."),
)  # fmt: skip


def _setting_options(function: Function) -> Function:
    """Options for the settings of a topic; those not given are None."""
    for option in reversed(_SETTING_OPTIONS):
        function = option(function)
    return function


@click.group()
def topics() -> None:
    """List, show, create, alter, trim and delete topics.

    \b
    Examples:
      headgate topics ls
      headgate topics create orders --partitions 4 --ttl 7d
    """


@topics.command("ls")
@click.argument("pattern", default="*")
@client_option
@output_option
def topics_ls(pattern: str, client: Client, as_json: bool) -> None:
    """List all topics, or those whose names match a PATTERN with * and ?.

    \b
    Examples:
      headgate topics ls
      headgate topics ls 'orders-*' -o json
    """
    matches = compiled(pattern)
    show([each for each in all_states(client) if matches(each.topic)], as_json, _list_text)


@topics.command("show")
@topic_argument
@client_option
@output_option
def topics_show(topic: str, client: Client, as_json: bool) -> None:
    """Show the settings and partitions of a topic.

    \b
    Example:
      headgate topics show orders
    """
    show(state_of(client, topic), as_json, _show_text)


@topics.command("create")
@click.argument("topic")
@_setting_options
@client_option
@output_option
def topics_create(topic: str, client: Client, as_json: bool, **settings: Any) -> None:
    """Create a topic.

    A topic that exists with the same settings is left as it is. With other settings the command
    fails and changes nothing, and so it does with secrets of hooks: nothing shows whether they are
    the same.

    \b
    Examples:
      headgate topics create orders
      headgate topics create orders --partitions 4 --column price:double --ttl 7d
      headgate topics create events --hook github --hook-secrets github.secret
    """
    _create(client, topic, _settings_of(settings))
    show(state_of(client, topic), as_json, _show_text)


@topics.command("alter")
@topic_argument
@_setting_options
@client_option
@output_option
def topics_alter(topic: str, client: Client, as_json: bool, **settings: Any) -> None:
    """Change settings of a topic; settings that are not given stay.

    The number of partitions can only grow. The value none removes a setting. --column NAME:none
    removes a column, which is then no longer filled.

    \b
    Examples:
      headgate topics alter orders --cap-bytes 10GiB --discard old
      headgate topics alter orders --ttl none --column price:none
    """
    chosen = _settings_of(settings)
    if not chosen:
        raise click.UsageError("give at least one setting to change")
    _alter(client, topic, chosen)
    show(state_of(client, topic), as_json, _show_text)


@topics.command("trim")
@topic_argument
@click.option(
    "--before-seq",
    type=click.IntRange(0),
    required=True,
    metavar="N",
    help="The first offset that can still be read.",
)
@click.option(
    "--partition",
    type=click.IntRange(0, 999),
    default=0,
    show_default=True,
    metavar="P",
    help="The partition to trim.",
)
@client_option
@output_option
def topics_trim(
    topic: str, before_seq: int, partition: int, client: Client, as_json: bool
) -> None:  # fmt: skip
    """Drop the oldest records of a partition; this cannot be undone.

    Rows of the topic's table stay.

    \b
    Example:
      headgate topics trim orders --before-seq 1000 --partition 2
    """
    body = msgspec.json.encode(TrimRequest(before_seq, partition))
    now = decoded(client, client.call("POST", topic_path(topic, "trim"), body), Trimmed)
    show(now, as_json, _trim_text)


@topics.command("delete")
@topic_argument
@click.option("--force", is_flag=True, help="Also if it takes dead letters, which then wait.")
@yes_option
@client_option
def topics_delete(topic: str, force: bool, yes: bool, client: Client) -> None:
    """Delete a topic with all its records.

    \b
    Examples:
      headgate topics delete orders --yes
      headgate topics delete bad --force --yes
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {topic} with all its records?", abort=True, err=True)
    client.call("DELETE", topic_path(topic), query={"force": "true"} if force else {})


def _settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the API takes them."""
    options = dict(options)
    settings = _take_hook(options)
    for key, value in options.items():
        if key == "columns":
            if value:
                columns = dict(_column(text) for text in value)
                settings[key] = {name: None if kind == UNSET else kind
                                 for name, kind in columns.items()}  # fmt: skip
        elif value is not None:
            settings[key] = None if value == UNSET else value
    return settings


def _take_hook(options: dict[str, Any]) -> dict[str, Any]:
    """``{"hook": ...}``, or nothing if it stays; takes its options out of ``options``."""
    scheme, file = options.pop("hook"), options.pop("hook_secrets")
    header, tolerance_s = options.pop("hook_header"), options.pop("hook_tolerance")
    if scheme is None or scheme == UNSET:
        if (file, header, tolerance_s) != (None, None, None):
            raise click.UsageError(
                "--hook-secrets, --hook-header and --hook-tolerance need --hook SCHEME"
            )
        return {} if scheme is None else {"hook": None}
    if file is None:
        raise click.UsageError(
            f"--hook {scheme} needs --hook-secrets FILE: nothing shows secrets, so each change has"
            " all of them"
        )
    hook = {
        "scheme": scheme,
        "secrets": [line for _, line in secret_lines("--hook-secrets", file)],
        "header": header,
        "tolerance_s": None if tolerance_s is None else int(tolerance_s),
    }
    return {"hook": {name: value for name, value in hook.items() if value is not None}}


def _column(text: str) -> tuple[str, str]:
    name, _, kind = text.rpartition(":")
    if not name or kind not in (*COLUMN_TYPES, UNSET):
        raise click.BadParameter(
            f"must be NAME:TYPE with a type of {', '.join(COLUMN_TYPES)}, got {text!r}",
            param_hint="--column",
        )
    return name, kind


def _present_config(client: Client, topic: str) -> dict[str, Any] | None:
    """The settings of a topic; None if it does not exist."""
    try:
        return asdict(state_of(client, topic).config)
    except Refused as error:
        if error.status == 404:
            return None
        raise


def _create(client: Client, topic: str, settings: Mapping[str, Any]) -> None:
    """Creates a topic; one that exists with these settings is left as it is."""
    settings = _with_columns(settings, {})
    present = _present_config(client, topic)
    if present is None:
        client.call("PUT", topic_path(topic), msgspec.json.encode(settings))
        return
    wanted = asdict(TopicConfig()) | settings
    for config in (wanted, present):  # nothing shows the secrets, so these are not compared
        hook = config["hook"]
        if hook is not None:
            told = hook if isinstance(hook, dict) else asdict(hook)
            names = HookSigning.__struct_fields__
            config["hook"] = HookSigning(**{n: told[n] for n in names if n in told})
    other = [key for key, value in wanted.items() if present[key] != value]
    if other:
        raise CommandFailed(
            f"the topic {topic!r} exists with other settings: "
            + ", ".join(f"{key} is {present[key]!r}, not {wanted[key]!r}" for key in other),
            hint=f"`headgate topics alter {topic}` changes settings",
        )
    if wanted["hook"] is not None:
        raise CommandFailed(
            f"the topic {topic!r} exists, and nothing shows whether its secrets are those of"
            " --hook-secrets; nothing was changed",
            hint=f"`headgate topics alter {topic}` with the same options sets them",
        )


def _alter(client: Client, topic: str, settings: Mapping[str, Any]) -> None:
    """Changes the given settings of a topic and keeps the others."""
    present = _present_config(client, topic)
    if present is None:
        raise CommandFailed(
            f"there is no topic {topic!r}", hint=f"`headgate topics create {topic}` creates it"
        )
    settings = _with_columns(settings, present["columns"])
    client.call("PUT", topic_path(topic), msgspec.json.encode(settings))


def _with_columns(settings: Mapping[str, Any], present: Mapping[str, str]) -> dict[str, Any]:
    """The settings with all columns, as the API takes them: the present ones and the changes."""
    if "columns" not in settings:
        return dict(settings)
    columns = {**present, **settings["columns"]}
    return {**settings, "columns": {name: kind for name, kind in columns.items() if kind}}


def _trim_text(now: Trimmed) -> str:
    return (
        f"{now.topic}, partition {now.partition}: begins at {now.earliest_seq},"
        f" {count_text(now.count)} records, {bytes_text(now.bytes)}"
    )


def _list_text(states: list[TopicState]) -> str:
    rows = [
        [
            state.topic,
            str(len(state.partitions)),
            count_text(sum(partition.count for partition in state.partitions)),
            bytes_text(sum(partition.bytes for partition in state.partitions)),
            count_text(max((partition.head_seq for partition in state.partitions), default=0)),
            *_activity_cells(state),
        ]
        for state in states
    ]
    head = ("topic", "partitions", "records", "bytes", "highest seq", *_ACTIVITY)
    return table(head, rows)


_ACTIVITY = ("priority", "band", "age", "recency", "watchers")


def _activity_cells(state: TopicState) -> list[str]:
    """How urgent the topic's deliveries are, and for whom, under the heads of _ACTIVITY."""
    return [
        str(state.effective_priority),
        f"B{state.band}",
        duration_text(state.age_ms) if state.age_ms else "-",
        str(state.recency),
        count_text(state.watchers)
        + (f" ({count_text(state.lagged_watchers)} lagged)" if state.lagged_watchers else ""),
    ]


def _show_text(state: TopicState) -> str:
    usual = TopicConfig()
    settings = [
        f"  {key} = {msgspec.json.encode(value).decode()}"
        for key, value in asdict(state.config).items()
        if getattr(usual, key) != value
    ]
    rows = [
        [
            str(partition.partition),
            str(partition.earliest_seq),
            str(partition.head_seq),
            str(partition.next_seq),
            count_text(partition.count),
            bytes_text(partition.bytes),
        ]
        for partition in state.partitions
    ]
    activity = zip(_ACTIVITY, _activity_cells(state), strict=True)
    lines = [
        f"topic {state.topic}",
        *(settings or ["  all settings are the default"]),
        "  " + ", ".join(f"{name} {cell}" for name, cell in activity),
        "",
    ]
    head = ("partition", "earliest seq", "head seq", "next seq", "records", "bytes")
    return "\n".join([*lines, table(head, rows)])
