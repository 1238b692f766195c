"""Handlers of ``/v0/topics``: create, change, show, list, trim, delete."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from daemon.access.rights import Rights
from daemon.api.handlers.pages import visible_page
from daemon.api.handlers.push_settings import PushSecretChanges
from daemon.api.handlers.topic_activity import TopicActivityView
from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.schemas.api import (
    TopicDeleted,
    TopicDeleteQuery,
    TopicPage,
    TopicsQuery,
    TopicState,
    Trimmed,
    TrimRequest,
)
from daemon.schemas.names import check_columns
from daemon.schemas.topic_settings import HookChange
from ledger.types import TopicConfig
from shards.boards.topicrows import UNWATCHED


class Created(NamedTuple):
    """What a handler returns for an answer with the status 201."""

    document: Struct


def given_settings(settings: Struct) -> dict[str, Any]:
    """The settings that a client sent. Raises ApiError 400 for names of columns."""
    values = ((name, getattr(settings, name)) for name in settings.__struct_fields__)
    given = {name: value for name, value in values if value is not UNSET}
    check_columns(given.get("columns", {}))
    return given


class TopicRoutes:
    """The topics of the daemon."""

    def __init__(
        self, topics: TopicCache, activity: TopicActivityView, secrets: PushSecretChanges
    ) -> None:
        self._topics = topics
        self._activity = activity
        self._secrets = secrets

    async def put(self, name: str, settings: Struct) -> TopicState | Created:
        """Creates a topic or changes its settings; those that are not given stay."""
        given = given_settings(settings)
        if isinstance(given.get("hook"), HookChange):
            given["hook"] = await self._secrets.save_hook(name, given["hook"])
        entry, created = await self._topics.create(name, TopicConfig(**given))
        if created:
            return Created(await self._state(entry))
        before = entry.topic.config
        config = msgspec.structs.replace(before, **given)
        if before != config:
            entry = await self._topics.alter(name, config)
        if before.hook is not None and before.hook != config.hook:
            await self._secrets.forget(before.hook.secrets_id)
        return await self._state(entry)

    async def get(self, name: str) -> TopicState:
        """One topic."""
        return await self._state(await self._topics.entry(name))

    async def list(self, query: TopicsQuery, rights: Rights) -> TopicPage:
        """A page of topics, by name; those that the sender may not see are left out of it."""
        topics, more = await visible_page(
            self._topics.page, lambda topic: topic.name, lambda topic: (topic.name,), rights,
            query.cursor, query.limit,
        )  # fmt: skip
        activity = self._activity.of_each([topic.topic_id for topic in topics])
        states = [
            self._activity.state(
                topic,
                await self._topics.states(topic.topic_id),
                activity.get(topic.topic_id, UNWATCHED),
            )
            for topic in topics
        ]
        return TopicPage(states, more)

    async def delete(self, name: str, query: TopicDeleteQuery) -> TopicDeleted:
        """Deletes a topic. Its name may be used again; the new topic has another id."""
        return TopicDeleted((await self._topics.delete(name, force=query.force)).name)

    async def trim(self, name: str, asked: TrimRequest) -> Trimmed:
        """Raises a partition's first offset; one that is lower already changes nothing."""
        state = await self._topics.trim(name, asked.partition, asked.before_seq)
        return Trimmed(**msgspec.structs.asdict(state), topic=name)

    async def _state(self, entry: TopicEntry) -> TopicState:
        partitions = await self._topics.states(entry.topic_id)
        activity = self._activity.of(entry.topic_id)
        return self._activity.state(entry.topic, partitions, activity)
