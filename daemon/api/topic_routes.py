"""The topics' own routes: create, change, read, list, trim, delete."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from daemon.api.errors import ApiError, invalid
from daemon.api.questions import read_json
from daemon.api.topic_settings import LIMIT_MAX, read_config
from daemon.http.request import Request
from daemon.intake.topic_cache import Catalog, TopicEntry
from ledger.types import PartitionState, Topic

PAGE_MAX = 1_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


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
        "table": topic.table,
        "config": topic.config,
        "partitions": partitions,
        "effective_priority": topic.config.priority if topic.config.priority is not None else 0,
        "created_ms": topic.created_ms,
    }


class Trim(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a trim: records below ``before_seq`` cannot be read any more."""

    before_seq: int
    partition: int = 0


_trim_decoder = msgspec.json.Decoder(Trim)


def read_trim(request: Request) -> Trim:
    """The body of a trim. Raises ApiError."""
    trim = read_json(request, _trim_decoder, "a trim")
    for field, value in (("before_seq", trim.before_seq), ("partition", trim.partition)):
        if not 0 <= value <= LIMIT_MAX:
            raise invalid(f"{field} is {value}; it must be between 0 and {LIMIT_MAX}", field=field)
    return trim


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

    async def trim(self, request: Request, name: str) -> tuple[int, Any]:
        """Raises where a partition begins; lower than it does already changes nothing."""
        asked = read_trim(request)
        state = await self._catalog.trim(name, asked.partition, asked.before_seq)
        return 200, {"topic": name, **msgspec.structs.asdict(state)}

    async def _state(self, entry: TopicEntry) -> dict[str, Any]:
        return topic_state(entry.topic, await self._catalog.states(entry.topic_id))
