"""Requests about topics that several commands make."""

from __future__ import annotations

from collections.abc import Iterator

from commands.client.http import Client, decoded, topic_path
from commands.client.pages import pages
from daemon.schemas.api import TopicPage, TopicState


def all_states(client: Client) -> Iterator[TopicState]:
    """All topics, in the order of their names."""
    for page in pages(client, "/v0/topics", TopicPage, lambda page: page.next_cursor, "cursor"):
        yield from page.topics


def state_of(client: Client, topic: str, patience_ms: float = 0) -> TopicState:
    """One topic. Raises Refused with the code ``unknown_topic`` if it does not exist."""
    body = client.call("GET", topic_path(topic), patience_ms=patience_ms)
    return decoded(client, body, TopicState)
