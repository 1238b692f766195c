"""The topics' own routes: create, change, read, list, delete.

Settings that nothing enforces yet are refused when they are not the default (DESIGN 12).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from daemon.catalog import Catalog, TopicEntry
from daemon.errors import ApiError, invalid
from daemon.http.request import Request
from ledger.types import PartitionState, Topic, TopicConfig

PARTITIONS_MAX = 1_000
PAGE_MAX = 1_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
# What is stored but has no effect before the work on retention, scheduling and compaction.
_NOT_YET = tuple(f for f in TopicConfig.__struct_fields__ if f != "partitions")
_DEFAULT = TopicConfig()
_config_decoder = msgspec.json.Decoder(TopicConfig)
_names_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def checked_name(name: str) -> str:
    """A topic's name from a path. Raises ApiError 400 ``invalid_topic``."""
    if NAME.fullmatch(name) is None:
        shown = name if len(name) <= 60 else name[:60] + "..."
        raise ApiError(
            400,
            "invalid_topic",
            f"{shown!r} is no topic name: it begins with a letter or digit, then letters, digits"
            " and . _ : - follow, 255 characters at most",
            {"topic": shown},
        )
    return name


def topic_state(topic: Topic, partitions: list[PartitionState]) -> dict[str, Any]:
    """A topic as GET answers it."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "config": topic.config,
        "partitions": partitions,
        "effective_priority": topic.config.priority if topic.config.priority is not None else 0,
        "created_ms": topic.created_ms,
    }


def read_config(request: Request) -> tuple[TopicConfig, tuple[str, ...]]:
    """The settings of a PUT, and which were given; no body gives none. Raises ApiError."""
    if not request.body:
        return _DEFAULT, ()
    if request.head.content_type != "application/json":
        raise ApiError(
            415, "unsupported_media_type", "a topic's settings are sent as application/json"
        )
    try:
        config = _config_decoder.decode(request.body)
        given = tuple(_names_decoder.decode(request.body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"the settings are wrong: {error}") from error
    if not 1 <= config.partitions <= PARTITIONS_MAX:
        raise invalid(
            f"partitions is {config.partitions}; it must be between 1 and {PARTITIONS_MAX}",
            field="partitions",
        )
    for field in _NOT_YET:
        if getattr(config, field) != getattr(_DEFAULT, field):
            raise ApiError(
                400,
                "not_supported_yet",
                f"{field} is not enforced yet, so only its default is accepted; leave it out",
                {"field": field},
            )
    return config, given


class TopicRoutes:
    """Handlers; each returns (status, document)."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def put(self, request: Request, name: str) -> tuple[int, Any]:
        """Creates a topic or changes its settings; those that are not given stay."""
        config, given = read_config(request)
        entry, created = await self._catalog.create(name, config)
        if not created:
            changes = {field: getattr(config, field) for field in given}
            config = msgspec.structs.replace(entry.topic.config, **changes)
            if entry.topic.config != config:
                entry = await self._catalog.alter(name, config)
        return (201 if created else 200), await self._state(entry)

    async def get(self, request: Request, name: str) -> tuple[int, Any]:
        """One topic."""
        return 200, await self._state(await self._catalog.entry(name))

    async def list(self, request: Request) -> tuple[int, Any]:
        """A page of topics, by name; ``next_cursor`` asks for the next one."""
        query = request.head.query
        text = query.get("limit", "100")
        limit = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0
        if not 1 <= limit <= PAGE_MAX:
            raise invalid(
                f"limit must be between 1 and {PAGE_MAX}, not {text[:40]!r}", field="limit"
            )
        topics = await self._catalog.page(query.get("cursor", ""), limit + 1)
        states = [
            topic_state(topic, await self._catalog.states(topic.topic_id))
            for topic in topics[:limit]
        ]
        more = len(topics) > limit
        return 200, {"topics": states, "next_cursor": topics[limit - 1].name if more else None}

    async def delete(self, request: Request, name: str) -> tuple[int, Any]:
        """Deletes a topic; its name may be used again and gets another id."""
        topic = await self._catalog.delete(name)
        return 200, {"topic": topic.name, "deleted": True}

    async def _state(self, entry: TopicEntry) -> dict[str, Any]:
        return topic_state(entry.topic, await self._catalog.states(entry.topic_id))
