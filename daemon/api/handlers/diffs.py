"""The handler of ``POST /v0/topics/{topic}/diff``: checks the request, and asks the reader."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from daemon.intake.topic_cache import TopicCache
from daemon.schemas.api import DiffAnswer, DiffRequest
from daemon.schemas.errors import ApiError, invalid
from delivery.reading.diff import DiffReader, OffsetPastEnd
from delivery.scheduler.recency import Recency
from shards.clock import monotonic_ns

# Of an answer while clients do not take theirs: fewer records, and `caught_up` is false. 500 such
# answers are half of what may wait for clients.
SHORT_BYTES = 64 << 10


def check_diff(asked: DiffRequest) -> None:
    """Raises ApiError 400 for fields that exclude each other."""
    given = (asked.from_seq is not UNSET, asked.from_ts is not UNSET, asked.tail)
    if sum(given) > 1:
        raise invalid("give only one of from_seq, from_ts and tail", field="from_seq")
    if asked.topic_id is not UNSET and asked.from_seq is UNSET:
        raise invalid(
            "topic_id says which topic from_seq belongs to: give both, or neither",
            field="topic_id",
        )


def check_partition(name: str, partitions: int, partition: int) -> None:
    """Raises ApiError 400 for a partition that the topic does not have."""
    if partition >= partitions:
        raise invalid(
            f"topic {name!r} has partitions 0 to {partitions - 1}, got partition {partition}",
            field="partition",
        )


class DiffRoutes:
    """Reads. ``must_be_short`` says whether clients have left too many answers untaken."""

    def __init__(
        self,
        topics: TopicCache,
        reader: DiffReader,
        recency: Recency,
        must_be_short: Callable[[], bool],
    ) -> None:
        self._topics = topics
        self._reader = reader
        self._recency = recency
        self._must_be_short = must_be_short

    async def diff(self, name: str, asked: DiffRequest) -> DiffAnswer:
        """Records after an offset; waits for some if asked to."""
        check_diff(asked)
        entry = await self._topics.entry(name)
        if asked.topic_id is not UNSET and asked.topic_id != entry.topic_id:
            # This shard may learn late of a recreated topic, and no cursor may go backwards.
            entry = await self._topics.entry_now(name)
        check_partition(name, entry.partitions, asked.partition)
        self._recency.consumed(entry.topic_id, monotonic_ns())
        if asked.max_bytes > SHORT_BYTES and self._must_be_short():
            asked = replace(asked, max_bytes=SHORT_BYTES)
        try:
            return await self._reader.answer(entry.topic_id, asked)
        except OffsetPastEnd as error:
            raise ApiError(
                416, "offset_out_of_range",
                f"from_seq is {error.from_seq}, but the last offset (head_seq) of partition"
                f" {asked.partition} of topic {name!r} is {error.head_seq}; read from an offset"
                " that is not greater, and send topic_id with it if the topic may have been"
                " deleted and created again",
                {"from_seq": error.from_seq, "head_seq": error.head_seq,
                 "partition": asked.partition, "topic": name, "topic_id": entry.topic_id},
            ) from error  # fmt: skip
