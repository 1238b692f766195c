"""Handlers of streams: what is watched, from where, and in which format.

A stream's beginning is decided before its head is written, so that everything that can be refused
is refused with a status. Later problems are events (delivery/streams/events.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from daemon.access.access import Access
from daemon.access.rights import Rights
from daemon.api.streaming import Streaming
from daemon.http.head import split_target
from daemon.http.limits import HttpLimits
from daemon.intake.topic_cache import TopicCache
from daemon.schemas.errors import ApiError, invalid
from daemon.schemas.names import check_topic_name
from daemon.schemas.watch import (
    Ticket,
    TicketRequest,
    WatchAnswer,
    WatchedId,
    WatchedRequest,
    WatchHeaders,
    WatchQuery,
    WatchRequest,
    WidQuery,
)
from delivery.filters import FilterError
from delivery.reading.diff import RECREATED
from delivery.reading.followed import Key
from delivery.reading.partition import PartitionReader
from delivery.scheduler.settings import TopicPriorities
from delivery.streams.formats import FormatError, format_for
from delivery.streams.outlet import Outlet
from delivery.watch.hub import WatchHub
from delivery.watch.positions import PositionError, parse_position
from delivery.watch.tail_encoder import Shape
from delivery.watch.token import (
    PLACES_MAX,
    WID_CHARACTERS_MAX,
    WatchPlace,
    WatchSpec,
    WidError,
    decode_wid,
    encode_wid,
)
from ledger.types import Topic


class _Beginning(NamedTuple):
    """Where a stream begins. ``former``: cursors of topics that had a topic's name before it."""

    cursors: dict[Key, int]
    former: dict[Key, int]


class WatchRoutes:
    """Streams of records."""

    def __init__(
        self,
        topics: TopicCache,
        reader: PartitionReader,
        hub: WatchHub,
        priorities: TopicPriorities,
        access: Access,
    ) -> None:
        self._topics = topics
        self._reader = reader
        self._hub = hub
        self._priorities = priorities
        self._access = access

    async def topic(self, name: str, query: WatchQuery, headers: WatchHeaders) -> Streaming:
        """A stream of one topic."""
        entry = await self._topics.entry(name)
        position = _position(headers.last_event_id or query.last_event_id)
        if any(topic_id != entry.topic_id for topic_id, _ in position):
            # This shard may learn late of a recreated topic, and no cursor may go backwards.
            entry = await self._topics.entry_now(name)
        spec = WatchSpec((_place(entry.topic_id, query),), query.tag, query.node, query.key)
        _check_filter(spec)
        return await self._stream(spec, [entry.topic], [], headers.accept, position, True)

    async def post(self, rights: Rights, asked: WatchRequest) -> WatchAnswer:
        """The ``wid`` of a stream of several topics."""
        topics: dict[int, Topic] = {}
        places: list[WatchPlace] = []
        for each in asked.topics:
            rights.check_topics(each.topic)
            # Past the cache: a wid with the id of a former topic of this name would be useless.
            topic = (await self._topics.entry_now(check_topic_name(each.topic))).topic
            topics[topic.topic_id] = topic
            places.append(_place(topic.topic_id, each))
        spec = WatchSpec(tuple(places), asked.tag, asked.node, asked.key)
        _check_filter(spec)
        self._starts(spec, topics)
        try:
            wid = encode_wid(spec)
        except WidError as error:
            raise invalid(str(error), limit=WID_CHARACTERS_MAX) from error
        named = [WatchedId(topic.name, topic.topic_id) for topic in topics.values()]
        return WatchAnswer(wid, f"/v0/watch/{wid}", named)

    async def wid(
        self, wid: str, query: WidQuery, headers: WatchHeaders, rights: Rights
    ) -> Streaming:
        """The stream that a ``wid`` describes, if the sender may read all of its topics."""
        try:
            spec = decode_wid(wid)
        except WidError as error:
            raise invalid(str(error), field="wid") from error
        position = _position(headers.last_event_id or query.last_event_id)
        live: list[Topic] = []
        deleted: list[Topic] = []
        for topic_id in dict.fromkeys(place.topic_id for place in spec.places):
            topic = await self._topics.by_id(topic_id)
            if topic is None or not rights.covers(topic.name):
                rights.check_all_topics()
            if topic is None:
                raise ApiError(
                    404, "unknown_topic",
                    f"the wid has topic id {topic_id}, which this daemon has never had; get another"
                    " one with POST /v0/watch",
                    {"topic_id": topic_id},
                )  # fmt: skip
            (live if topic.deleted_ms is None else deleted).append(topic)
        if not live:
            names = ", ".join(topic.name for topic in deleted)
            raise ApiError(
                404, "unknown_topic",
                f"all topics of this wid were deleted: {names}; watch others with POST /v0/watch",
                {"topics": [topic.name for topic in deleted]},
            )  # fmt: skip
        return await self._stream(spec, live, deleted, headers.accept, position)

    async def ticket(self, rights: Rights, asked: TicketRequest) -> Ticket:
        """A ticket for one stream. Errors of the stream are found when it is opened."""
        try:
            _, segments, query = split_target(asked.target.encode(), HttpLimits())
        except ApiError as error:
            raise invalid(error.message, field="target") from None
        match segments:
            case ("v0", "topics", name, "watch"):
                rights.check_topics(check_topic_name(name))
            case ("v0", "watch", _):
                pass  # its topics are compared when it is opened
            case _:
                raise invalid(
                    "target must be the path of a stream, /v0/topics/TOPIC/watch or"
                    f" /v0/watch/WID, with its query, got {asked.target[:80]!r}",
                    field="target",
                )
        if "ticket" in query:
            raise invalid("target has a ticket already", field="target")
        ticket, expires_ms = self._access.ticket(rights, segments, query)
        mark = "&" if "?" in asked.target else "?"
        return Ticket(ticket, f"{asked.target}{mark}ticket={ticket}", expires_ms)

    async def _stream(
        self,
        spec: WatchSpec,
        topics: list[Topic],
        deleted: list[Topic],
        accept: str,
        position: dict[Key, int],
        is_named: bool = False,
    ) -> Streaming:
        """The stream of ``topics``. Each place of the spec is of one of them, or of a deleted one,
        of which the stream only tells that it was deleted."""
        try:
            format_ = format_for(accept)
        except FormatError as error:
            raise ApiError(406, "not_acceptable", str(error), {"accept": accept[:80]}) from error
        gone = {topic.topic_id for topic in deleted}
        places = tuple(place for place in spec.places if place.topic_id not in gone)
        starts = self._starts(
            msgspec.structs.replace(spec, places=places), {each.topic_id: each for each in topics}
        )
        reached = {key: seq for key, seq in position.items() if key[0] not in gone}
        begins = await self._begin(starts, reached, is_named)
        shape = Shape(
            format_,
            spec.filter,
            shows_topic=len(topics) + len(deleted) > 1,
            shows_partition=len(starts) > 1,
            with_position=len(starts) == 1,
        )
        whole = [place.topic_id for place in places if place.partition is None]
        first = b"".join(format_.topic_deleted(topic.name, topic.topic_id) for topic in deleted)
        for key, cursor in begins.former.items():
            last = max(cursor, await self._reader.ledger_head(key))
            origin = shape.origin(key, topics[0].name)
            first += format_.tombstone(origin, cursor + 1, last, RECREATED)

        def start(outlet: Outlet) -> None:
            for topic in topics:
                self._priorities.learn(topic)
            self._hub.add(outlet, shape, topics, begins.cursors, whole, first)

        return Streaming(format_.content_type, start)

    def _starts(self, spec: WatchSpec, by_id: dict[int, Topic]) -> dict[Key, WatchPlace]:
        """The partitions of a stream, and where each begins."""
        starts: dict[Key, WatchPlace] = {}
        for place in spec.places:
            topic = by_id[place.topic_id]
            count = topic.config.partitions
            if place.partition is not None and place.partition >= count:
                raise invalid(
                    f"topic {topic.name!r} has partitions 0 to {count - 1}, got partition"
                    f" {place.partition}",
                    field="partition",
                )
            if place.partition is None and place.from_seq and count > 1:
                raise invalid(
                    f"topic {topic.name!r} has {count} partitions, each with offsets of its own:"
                    f" give the partition that from_seq = {place.from_seq} belongs to",
                    field="partition",
                )
            partitions: Iterable[int] = (
                range(count) if place.partition is None else (place.partition,)
            )
            for partition in partitions:
                if (topic.topic_id, partition) in starts:
                    raise invalid(
                        f"partition {partition} of topic {topic.name!r} is named twice; name each"
                        " partition once, or the topic without a partition",
                        field="topics",
                    )
                starts[topic.topic_id, partition] = place
        if len(starts) > PLACES_MAX:
            raise invalid(
                f"a stream has at most {PLACES_MAX} partitions, got {len(starts)}; watch a part of"
                " them with partition=N, or with POST /v0/watch",
                field="partition",
                limit=PLACES_MAX,
            )
        return starts

    async def _begin(
        self, starts: dict[Key, WatchPlace], reached: dict[Key, int], is_named: bool
    ) -> _Beginning:
        """The cursors to begin with; those of a position that the client sent come first. The
        topic that a stream was opened for by name may have been another one before."""
        former = {key: seq for key, seq in reached.items() if key not in starts}
        topic_ids = {topic_id for topic_id, _ in starts}
        if former and (not is_named or any(key[0] in topic_ids for key in former)):
            foreign = ", ".join(f"{topic_id}:{p}" for topic_id, p in sorted(former))
            raise invalid(
                f"the event id names partitions that this stream does not have: {foreign};"
                " send it to the stream that it came from",
                field="last_event_id",
            )
        cursors: dict[Key, int] = {}
        if reached:
            # A partition that the position does not name was added later.
            cursors = {key: reached.get(key, 0) for key in starts}
        else:
            for key, place in starts.items():
                cursors[key] = await self._start(key, place)
        for key, cursor in cursors.items():
            head = await self._reader.head(key)
            if cursor > head:
                head = await self._reader.ledger_head(key)  # the commit log may be late
            if cursor > head:
                raise ApiError(
                    416, "offset_out_of_range",
                    f"the stream would begin after offset {cursor}, but the last offset (head_seq)"
                    f" of partition {key[1]} is {head}; begin at an offset that is not greater",
                    {"from_seq": cursor, "head_seq": head, "partition": key[1]},
                )  # fmt: skip
        return _Beginning(cursors, former)

    async def _start(self, key: Key, place: WatchPlace) -> int:
        if place.from_seq is not None:
            return place.from_seq
        if place.from_ts is not None:
            return await self._reader.before_time(key, place.from_ts)
        return await self._reader.head(key)


def _place(topic_id: int, asked: WatchQuery | WatchedRequest) -> WatchPlace:
    given = (asked.from_seq is not None, asked.from_ts is not None, asked.tail)
    if sum(given) > 1:
        raise invalid("give only one of from_seq, from_ts and tail", field="from_seq")
    return WatchPlace(topic_id, asked.partition, asked.from_seq, asked.from_ts)


def _position(text: str) -> dict[Key, int]:
    try:
        return parse_position(text)
    except PositionError as error:
        raise invalid(str(error), field="last_event_id") from error


def _check_filter(spec: WatchSpec) -> None:
    try:
        spec.filter.check()
    except FilterError as error:
        raise invalid(str(error), field=error.field) from error
