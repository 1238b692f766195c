"""Requests about topics that several commands make."""

from __future__ import annotations

from collections.abc import Iterator

from commands.client.http import Client, decoded, topic_path
from daemon.api.schemas import TopicPage, TopicState

PAGES_MAX = 100_000  # ends the loop if a daemon answers with a new cursor every time


def all_states(client: Client) -> Iterator[TopicState]:
    """All topics, in the order of their names."""
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        query = None if cursor is None else {"cursor": cursor}
        page = decoded(client, client.call("GET", "/v0/topics", query=query), TopicPage)
        yield from page.topics
        cursor = page.next_cursor
        if not cursor:
            break


def state_of(client: Client, topic: str, patience_ms: float = 0) -> TopicState:
    """One topic. Raises Refused with the code ``unknown_topic`` if it does not exist."""
    body = client.call("GET", topic_path(topic), patience_ms=patience_ms)
    return decoded(client, body, TopicState)
