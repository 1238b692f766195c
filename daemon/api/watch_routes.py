"""Handlers of streams: what is watched, from where, and in which format.

A stream's beginning is decided before its head is written, so that everything that can be refused
is refused with a status. What happens later is told by events (delivery/watch/events.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from daemon.api.errors import ApiError, invalid
from daemon.api.schemas import WatchHeaders, WatchQuery
from daemon.api.streaming import Streaming
from daemon.intake.topic_cache import TopicCache
from delivery.diff import RECREATED
from delivery.filters import FilterError
from delivery.followed import Key
from delivery.partition_reader import PartitionReader
from delivery.watch.formats import FormatError, format_for
from delivery.watch.hub import WatchHub
from delivery.watch.outlet import Outlet
from delivery.watch.positions import PositionError, parse_position
from delivery.watch.tail_encoder import Shape
from delivery.watch.token import PLACES_MAX, WatchPlace, WatchSpec
from ledger.types import Topic


class _Beginning(NamedTuple):
    """Where a stream begins. ``former``: cursors of topics that had a topic's name before it."""

    cursors: dict[Key, int]
    former: dict[Key, int]


class WatchRoutes:
    """Streams of records."""

    def __init__(self, topics: TopicCache, reader: PartitionReader, hub: WatchHub) -> None:
        self._topics = topics
        self._reader = reader
        self._hub = hub

    async def topic(self, name: str, query: WatchQuery, headers: WatchHeaders) -> Streaming:
        """A stream of one topic."""
        entry = await self._topics.entry(name)
        given = (query.from_seq is not None, query.from_ts is not None, query.tail)
        if sum(given) > 1:
            raise invalid("give only one of from_seq, from_ts and tail", field="from_seq")
        place = WatchPlace(entry.topic_id, query.partition, query.from_seq, query.from_ts)
        spec = WatchSpec((place,), query.tag, query.node, query.key)
        position = headers.last_event_id or query.last_event_id
        return await self._stream(spec, [entry.topic], headers.accept, position)

    async def _stream(
        self, spec: WatchSpec, topics: list[Topic], accept: str, position: str
    ) -> Streaming:
        """The stream of live topics, each of which has a place in ``spec``."""
        try:
            format_ = format_for(accept)
            filter_ = spec.filter
            filter_.check()
            reached = parse_position(position)
        except FormatError as error:
            raise ApiError(406, "not_acceptable", str(error), {"accept": accept[:80]}) from error
        except FilterError as error:
            raise invalid(str(error), field=error.field) from error
        except PositionError as error:
            raise invalid(str(error), field="last_event_id") from error
        by_id = {topic.topic_id: topic for topic in topics}
        starts = self._starts(spec, by_id)
        begins = await self._begin(starts, reached)
        shape = Shape(
            format_,
            filter_,
            shows_topic=len(by_id) > 1,
            shows_partition=len(starts) > 1,
            with_position=len(starts) == 1,
        )
        whole = [place.topic_id for place in spec.places if place.partition is None]
        first = b"".join(
            [
                format_.tombstone(shape.origin(key, topics[0].name), cursor + 1, last, RECREATED)
                for key, cursor in begins.former.items()
                if (last := max(cursor + 1, await self._reader.ledger_head(key)))
            ]
        )

        def start(outlet: Outlet) -> None:
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
            starts.update({(topic.topic_id, partition): place for partition in partitions})
        if len(starts) > PLACES_MAX:
            raise invalid(
                f"a stream has at most {PLACES_MAX} partitions, got {len(starts)}; watch a part of"
                " them with partition=N, or with POST /v0/watch",
                field="partition",
                limit=PLACES_MAX,
            )
        return starts

    async def _begin(self, starts: dict[Key, WatchPlace], reached: dict[Key, int]) -> _Beginning:
        """The cursors to begin with; those of a position that the client sent come first."""
        former = {key: seq for key, seq in reached.items() if key not in starts}
        cursors: dict[Key, int] = {}
        if reached:
            topic_ids = {topic_id for topic_id, _ in starts}
            if len(topic_ids) > 1 or any(key[0] in topic_ids for key in former):
                foreign = ", ".join(f"{topic_id}:{p}" for topic_id, p in sorted(former))
                if former:
                    raise invalid(
                        f"the event id names partitions that this stream does not have: {foreign};"
                        " send it to the stream that it came from",
                        field="last_event_id",
                    )
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
