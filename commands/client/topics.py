"""Topics as the daemon's API tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from commands.client.http import Client, decoded, topic_path
from ledger.types import PartitionState

PAGES_MAX = 100_000  # ends the loop if a daemon answers with a new cursor every time


class TopicState(Struct, frozen=True):
    """A topic. ``config`` stays as it came."""

    topic: str
    topic_id: int
    config: dict[str, Any]
    partitions: list[PartitionState]


class _Page(Struct):
    topics: list[msgspec.Raw]
    next_cursor: str | int | None = None


def all_states(client: Client) -> Iterator[msgspec.Raw]:
    """The states of all topics, as they came."""
    cursor: str | int | None = None
    for _ in range(PAGES_MAX):
        query = None if cursor is None else {"cursor": str(cursor)}
        page = decoded(client, client.call("GET", "/v0/topics", query=query), _Page)
        yield from page.topics
        cursor = page.next_cursor
        if not cursor:
            break


def names(client: Client) -> list[str]:
    """The names of all topics."""
    return [decoded(client, state, TopicState).topic for state in all_states(client)]


def state_of(client: Client, topic: str, patience_ms: float = 0) -> msgspec.Raw:
    """The state of one topic, as it came."""
    return msgspec.Raw(client.call("GET", topic_path(topic), patience_ms=patience_ms))
