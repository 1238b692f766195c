"""What a stream tells in addition to records: each event with its fields.

The names of the events are those of the constants. In an event stream the name is the ``event``
field and these are the ``data``; in the other formats they are one object, and its field ``event``
has the name (formats.py).
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from delivery.schemas import DiffRecord
from ledger.types import Offset

RECORD = "record"
RECORDS = "records"
BATCH = "batch"
TOMBSTONE = "tombstone"
CAUGHT_UP = "caught-up"
TOPIC_DELETED = "topic-deleted"
ERROR = "error"
CLOSING = "closing"
POSITION = "position"
HEARTBEAT = "heartbeat"


class WatchRecord(DiffRecord, frozen=True, kw_only=True):
    """A record of a stream: that of a diff, with where it is from."""

    topic: Annotated[str, Meta(description="if the stream has several topics")] | UnsetType = UNSET
    partition: (
        Annotated[int, Meta(description="if the stream has several partitions")] | UnsetType
    ) = UNSET


class WatchRecords(Struct, frozen=True):
    """Several records in one event, each as it would be in an event of its own."""

    records: list[WatchRecord]


class WatchTombstone(Struct, frozen=True):
    """Offsets that the watcher does not get."""

    topic: str
    topic_id: int
    partition: int
    gap_from: Annotated[Offset, Meta(description="the first missing offset")]
    gap_to: Annotated[Offset, Meta(description="the last missing offset")]
    reason: Annotated[
        str,
        Meta(
            description="a reason of a diff's tombstone, or `lagged` (of a lossy topic;"
            " `diff` still has the records)"
        ),
    ]


class HeadAt(Struct, frozen=True):
    """The last offset of a partition."""

    topic: str
    partition: int
    head_seq: Annotated[Offset, Meta(description="the last committed offset; 0 for none")]


class WatchCaughtUp(Struct, frozen=True):
    """The watcher has everything up to these offsets; what follows is new."""

    positions: list[HeadAt]


class WatchTopicDeleted(Struct, frozen=True):
    """A topic of the stream was deleted. A stream without a topic ends."""

    topic: str
    topic_id: int


class WatchError(Struct, frozen=True):
    """Why the stream ends after this event; the fields are those of an error answer."""

    code: str
    message: str
    detail: dict[str, Any]


class WatchClosing(Struct, frozen=True):
    """The stream ends because the daemon does; connect again with the last position."""

    code: Annotated[str, Meta(description="`shutting_down`")] = "shutting_down"
