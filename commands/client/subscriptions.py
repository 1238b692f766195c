"""Requests about subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from commands.client.http import Client, Refused, decoded, topic_path
from commands.client.pages import pages
from daemon.schemas.subscriptions import (
    EverySubscription,
    SubscriptionPage,
    SubscriptionStatus,
    SubscriptionSummary,
)


def subscription_path(topic: str, name: str, *rest: str) -> str:
    """``/v0/topics/{topic}/subscriptions/{subscription}/...``, quoted."""
    return topic_path(topic, "subscriptions", name, *rest)


def all_subscriptions(client: Client, topic: str | None) -> Iterator[SubscriptionSummary]:
    """All subscriptions of a topic by name, or those of all topics by id."""
    if topic is None:
        every = pages(client, "/v0/subscriptions", EverySubscription, _next_id)
        for one in every:
            yield from one.subscriptions
        return
    path = topic_path(topic, "subscriptions")
    for page in pages(client, path, SubscriptionPage, lambda page: page.next_after):
        yield from page.subscriptions


def subscription_of(
    client: Client, topic: str, name: str, patience_ms: float = 0
) -> SubscriptionStatus:
    """One subscription. Raises Refused with the code ``unknown_subscription`` if it does not
    exist."""
    body = client.call("GET", subscription_path(topic, name), patience_ms=patience_ms)
    return decoded(client, body, SubscriptionStatus)


def known_subscription(client: Client, topic: str, name: str) -> SubscriptionStatus | None:
    """A subscription; None if it does not exist."""
    try:
        return subscription_of(client, topic, name)
    except Refused as error:
        if error.code == "unknown_subscription":
            return None
        raise


def put_subscription(
    client: Client, topic: str, name: str, settings: dict[str, Any]
) -> SubscriptionSummary:
    """Creates a subscription, or changes the settings that are given."""
    body = client.call("PUT", subscription_path(topic, name), msgspec.json.encode(settings))
    return decoded(client, body, SubscriptionSummary)


def _next_id(page: EverySubscription) -> str | None:
    return None if page.next_after is None else str(page.next_after)
