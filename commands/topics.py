"""``headgate topics``: list, show, create, alter, trim, delete.

Creating and altering are one PUT in the API. Here they differ, because a person who creates a
topic that exists with other settings has mistaken its name: create refuses to change, alter
refuses to create. Between looking and putting another client may act; the PUT then decides. A
PUT leaves settings that it does not name as they are; the columns are one setting there, and here
each is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct

from commands.client import Client, Refused, UnknownAnswer, topic_path
from commands.exits import CommandFailed
from commands.output import bytes_text, count_text, table
from ledger.types import PartitionState, TopicConfig

Shape = TypeVar("Shape")
Function = TypeVar("Function", bound=Callable[..., Any])
COUNT = "N|none"
UNSET = "none"  # the value that takes an optional setting back
COLUMN_TYPES = ("string", "long", "double", "boolean", "timestamp")
PAGES_MAX = 100_000  # a daemon that always answers with another cursor ends somewhere


def _optional_count(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    """A whole number, or ``none``."""
    if value is None or value == UNSET:
        return value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a whole number nor {UNSET}") from None


_SETTING_OPTIONS = (
    click.option("--partitions", type=click.IntRange(1, 1_000), metavar="N", help="Default 1."),
    click.option(
        "--column", "columns", metavar="NAME:TYPE", multiple=True,
        help="A typed column of the topic's table; may be repeated. Types: "
        + ", ".join(COLUMN_TYPES) + ".",
    ),
    click.option("--priority", callback=_optional_count, metavar=COUNT,
                 help="A manual priority."),
    click.option("--auto-priority/--no-auto-priority", default=None, help="Priority by use."),
    click.option("--lossy/--not-lossy", default=None, help="Slow watchers may miss records."),
    click.option("--cap-records", callback=_optional_count, metavar=COUNT,
                 help="Most records that each partition keeps."),
    click.option("--cap-bytes", callback=_optional_count, metavar=COUNT,
                 help="Most bytes that each partition keeps; at most one extent more is kept."),
    click.option("--ttl-ms", callback=_optional_count, metavar=COUNT,
                 help="How long records are kept, by their own timestamps."),
    click.option("--discard", type=click.Choice(["old", "reject"]),
                 help="At a cap: evict the oldest records, or refuse new ones."),
    click.option("--dedupe", type=click.Choice(["none", "body"]),
                 help="Whether a body that was sent before is stored again."),
)  # fmt: skip


def setting_options(function: Function) -> Function:
    """The settings of a topic; absent ones are None."""
    for option in reversed(_SETTING_OPTIONS):
        function = option(function)
    return function


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the API takes them."""
    settings: dict[str, Any] = {}
    for key, value in options.items():
        if key == "columns":
            if value:
                columns = dict(_column(text) for text in value)
                settings[key] = {name: None if kind == UNSET else kind
                                 for name, kind in columns.items()}  # fmt: skip
        elif value is not None:
            settings[key] = None if value == UNSET else value
    return settings


def _column(text: str) -> tuple[str, str]:
    name, _, kind = text.rpartition(":")
    if not name or kind not in (*COLUMN_TYPES, UNSET):
        raise click.BadParameter(
            f"{text!r} is no NAME:TYPE with a type of {', '.join(COLUMN_TYPES)}",
            param_hint="--column",
        )
    return name, kind


class TopicState(Struct, frozen=True):
    """A topic as the API answers it. ``config`` stays as it came."""

    topic: str
    config: dict[str, Any]
    partitions: list[PartitionState]


class _Page(Struct):
    topics: list[msgspec.Raw]
    next_cursor: str | int | None = None


def fetch_all(client: Client) -> list[msgspec.Raw]:
    """The states of all topics, as they came."""
    states: list[msgspec.Raw] = []
    cursor: str | int | None = None
    for _ in range(PAGES_MAX):
        query = None if cursor is None else {"cursor": str(cursor)}
        page = _decoded(client, client.call("GET", "/v0/topics", query=query), _Page)
        states.extend(page.topics)
        cursor = page.next_cursor
        if not cursor:
            break
    return states


def fetch_one(client: Client, topic: str) -> msgspec.Raw:
    """The state of a topic, as it came."""
    return msgspec.Raw(client.call("GET", topic_path(topic)))


def typed(client: Client, state: msgspec.Raw) -> TopicState:
    """A state for tables. Raises UnknownAnswer."""
    return _decoded(client, state, TopicState)


def present_config(client: Client, topic: str) -> dict[str, Any] | None:
    """A topic's settings, None when there is no such topic."""
    try:
        return typed(client, fetch_one(client, topic)).config
    except Refused as error:
        if error.status == 404:
            return None
        raise


def create(client: Client, topic: str, settings: Mapping[str, Any]) -> msgspec.Raw:
    """Makes a topic; one that exists with these settings is left as it is."""
    settings = _with_columns(settings, {})
    present = present_config(client, topic)
    if present is not None:
        wanted = msgspec.to_builtins(TopicConfig()) | dict(settings)
        other = [key for key, value in wanted.items() if present.get(key, value) != value]
        if other:
            raise CommandFailed(
                f"the topic {topic!r} exists with other settings: "
                + ", ".join(f"{key} is {present[key]!r}, not {wanted[key]!r}" for key in other),
                hint=f"`headgate topics alter {topic}` changes settings",
            )
        return fetch_one(client, topic)
    client.call("PUT", topic_path(topic), msgspec.json.encode(settings))
    return fetch_one(client, topic)


def alter(client: Client, topic: str, settings: Mapping[str, Any]) -> msgspec.Raw:
    """Changes the given settings of a topic and leaves the others."""
    present = present_config(client, topic)
    if present is None:
        raise CommandFailed(
            f"there is no topic {topic!r}", hint=f"`headgate topics create {topic}` makes one"
        )
    settings = _with_columns(settings, present.get("columns", {}))
    client.call("PUT", topic_path(topic), msgspec.json.encode(settings))
    return fetch_one(client, topic)


def _with_columns(settings: Mapping[str, Any], present: Mapping[str, str]) -> dict[str, Any]:
    """Columns as the API takes them, all of them: those there are, with the given changes."""
    if "columns" not in settings:
        return dict(settings)
    columns = {**present, **settings["columns"]}
    return {**settings, "columns": {name: kind for name, kind in columns.items() if kind}}


def trim(client: Client, topic: str, partition: int, before_seq: int) -> msgspec.Raw:
    """Raises where a partition begins; its state afterwards, as it came."""
    body = msgspec.json.encode({"partition": partition, "before_seq": before_seq})
    return msgspec.Raw(client.call("POST", f"{topic_path(topic)}/trim", body))


def trim_text(client: Client, topic: str, state: msgspec.Raw) -> str:
    """A trimmed partition for people. Raises UnknownAnswer."""
    now = _decoded(client, state, PartitionState)
    return (
        f"{topic}, partition {now.partition}: begins at {now.earliest_seq},"
        f" {count_text(now.count)} records, {bytes_text(now.bytes)}"
    )


def delete(client: Client, topic: str) -> None:
    """Deletes a topic; Refused with 404 when there is none."""
    client.call("DELETE", topic_path(topic))


def list_text(states: list[TopicState]) -> str:
    """A line for each topic."""
    rows = [
        [
            state.topic,
            str(len(state.partitions)),
            count_text(sum(partition.count for partition in state.partitions)),
            bytes_text(sum(partition.bytes for partition in state.partitions)),
            count_text(max((partition.head_seq for partition in state.partitions), default=0)),
        ]
        for state in states
    ]
    return table(("topic", "partitions", "records", "bytes", "highest seq"), rows)


def show_text(state: TopicState) -> str:
    """One topic: the settings that are not the default, and its partitions."""
    usual = msgspec.to_builtins(TopicConfig())
    settings = [
        f"  {key} = {msgspec.json.encode(value).decode()}"
        for key, value in state.config.items()
        if key not in usual or usual[key] != value
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
    lines = [f"topic {state.topic}", *(settings or ["  all settings are the default"]), ""]
    head = ("partition", "earliest seq", "head seq", "next seq", "records", "bytes")
    return "\n".join([*lines, table(head, rows)])


def _decoded(client: Client, body: bytes | msgspec.Raw, kind: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownAnswer(f"an answer of {client.url} cannot be read: {error}") from error
