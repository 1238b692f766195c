"""Reads of a standby: diffs that allow stale answers, from the standby's ledger and the store.

A reader may have read more of the owner than the standby has heard of. Nothing tells it to go back:
it is refused with 503 ``standby_behind``, and asks again.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from daemon.api.handlers.diffs import check_diff, check_partition
from daemon.intake.topic_cache import unknown_topic
from daemon.schemas.api import DiffAnswer, DiffRequest
from daemon.schemas.errors import ApiError
from delivery.ledger_thread import LedgerReads
from delivery.reading.diff import DiffReader, OffsetPastEnd
from delivery.reading.followed import FollowedPartitions
from delivery.reading.partition import PartitionReader
from delivery.reading.stored import StoredReader
from delivery.reading.tail import TailReader
from ledger import topics
from ledger.errors import LedgerMissing


class StaleReads:
    """Reads in one committed state after the other; nothing is followed in between."""

    def __init__(self, ledger: LedgerReads, stored: StoredReader) -> None:
        self._ledger = ledger
        self._stored = stored
        self._tail = TailReader(None)

    async def diff(self, name: str, asked: DiffRequest) -> DiffAnswer:
        """Records after an offset, without ``stale_ms``. Raises ApiError."""
        check_diff(asked)
        try:
            topic = await self._ledger.read(topics.find, name)
        except LedgerMissing:
            raise behind("has not read the owner's log yet") from None
        if topic is None:
            raise unknown_topic(name)
        if asked.topic_id is not UNSET and asked.topic_id > topic.topic_id:
            raise behind(f"has not heard of topic id {asked.topic_id} of {name!r} yet")
        check_partition(name, topic.config.partitions, asked.partition)
        partitions = PartitionReader(
            FollowedPartitions(), self._tail, self._ledger, self._stored, lambda _: 0
        )
        try:
            return await DiffReader(partitions, self._ledger).answer(
                topic.topic_id, replace(asked, wait_ms=0)
            )
        except OffsetPastEnd as error:
            raise behind(
                f"knows partition {asked.partition} of {name!r} up to offset {error.head_seq},"
                f" and from_seq is {error.from_seq}"
            ) from error


def behind(why: str) -> ApiError:
    """The refusal of a standby that knows less than it is asked for."""
    return ApiError(
        503, "standby_behind",
        f"this standby {why}: ask again, or ask the owner", retry_after_s=1,
    )  # fmt: skip
