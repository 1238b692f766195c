"""The requests and answers of the HTTP API: each JSON shape once, with its limits and meaning.

The server decodes requests and encodes answers with these types, ``/openapi.json`` and the tables
of docs/http-api.md are generated from them, and the command line decodes answers into them. What a
lower floor builds or reads is defined there and listed here: settings and partitions of a topic in
``ledger/types.py``, diffs in ``delivery/schemas.py``, plans in ``compaction/source/schemas.py``.
The daemon's own state is in ``status.py``. Those of routers are in
``delivery/routers/schemas.py`` only, those of subscriptions in ``subscriptions.py`` and
``delivery/subscriptions/schemas.py``.

Fields may be added to an answer; none is renamed. So clients ignore fields that they do not know.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from compaction.source.schemas import Plan, PlanRequest
from daemon.schemas.bill import BillStatus, BudgetStatus, StoreCost, StoreStatus
from daemon.schemas.standby import StandbysStatus
from daemon.schemas.status import (
    AlarmStatus,
    CertificateStatus,
    DeliveryStatus,
    GateStatus,
    GroupStatus,
    ImportScaling,
    LatencyStatus,
    Live,
    MetricsHeaders,
    Pressure,
    PushStatus,
    Ready,
    RetentionStatus,
    RoutersStatus,
    Scaling,
    SchedulerStatus,
    SensorStatus,
    ShardStatus,
    Status,
    SubscriptionScaling,
    SubscriptionsStatus,
    Totals,
)
from daemon.schemas.topic_settings import TopicSettings
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
from delivery.filters import PATTERN_CHARACTERS_MAX
from delivery.schemas import DiffAnswer, DiffRequest
from delivery.streams.events import (
    HeadAt,
    WatchCaughtUp,
    WatchClosing,
    WatchError,
    WatchRecord,
    WatchRecords,
    WatchTombstone,
    WatchTopicDeleted,
)
from ledger.types import (
    COLUMNS_MAX,
    INTEGER_MAX,
    CursorKind,
    CursorPosition,
    Dedupe,
    Offset,
    PartitionState,
    TopicConfig,
)
from uploader.l0.records import TIMESTAMP_MS_MAX

__all__ = [
    "AdvanceRequest",
    "AlarmStatus",
    "BillStatus",
    "BudgetStatus",
    "CertificateStatus",
    "BackedUp",
    "COLUMNS_MAX",
    "CursorDeleted",
    "CursorPage",
    "CursorPosition",
    "CursorSetting",
    "CursorSettings",
    "CursorState",
    "CursorsQuery",
    "DiffAnswer",
    "DiffRequest",
    "DeliveryStatus",
    "GateStatus",
    "PushStatus",
    "SubscriptionsStatus",
    "Error",
    "ErrorAnswer",
    "GroupStatus",
    "HeadAt",
    "INTEGER_MAX",
    "LatencyStatus",
    "Live",
    "MetricsHeaders",
    "PartitionState",
    "Plan",
    "PlanEnded",
    "PlanRenewed",
    "PlanRequest",
    "Pressure",
    "ProduceBody",
    "ProduceOptions",
    "ProduceQuery",
    "ProduceRecord",
    "ProduceRequest",
    "Produced",
    "ProducedPart",
    "ProducedSpread",
    "Ready",
    "RetentionStatus",
    "RoutersStatus",
    "ImportScaling",
    "Scaling",
    "SubscriptionScaling",
    "SchedulerStatus",
    "SensorStatus",
    "ShardStatus",
    "StandbysStatus",
    "Status",
    "StoreCost",
    "StoreStatus",
    "Ticket",
    "TicketRequest",
    "TopicConfig",
    "TopicDeleteQuery",
    "TopicDeleted",
    "TopicPage",
    "TopicSettings",
    "TopicState",
    "TopicsQuery",
    "Totals",
    "TrimRequest",
    "Trimmed",
    "WatchAnswer",
    "WatchCaughtUp",
    "WatchClosing",
    "WatchError",
    "WatchHeaders",
    "WatchQuery",
    "WatchRecord",
    "WatchRecords",
    "WatchRequest",
    "WatchTombstone",
    "WatchTopicDeleted",
    "WatchedId",
    "WatchedRequest",
    "WidQuery",
]

PAGE_MAX = 1_000
SOURCE_NAME_MAX = 500  # characters; a page has up to 1,000 of them
SEQUENCE_MAX = 2**53
PARTITION_MAX = 999
IDEMPOTENCY_KEY_CHARACTERS_MAX = 256
# Of key, tag and node: what patterns have. Matching one takes 0.1 us per character, hashing it too,
# and a subscription keeps the keys of all that is not finished.
LABEL_CHARACTERS_MAX = PATTERN_CHARACTERS_MAX
NAME_CHARACTERS_MAX = 255
ACK_TIMEOUT_MS_MIN = 100  # deadlines are looked at ten times a second
ACK_TIMEOUT_MS_MAX = 600_000  # a request may hold ring space this long while nothing is stored

Count = Annotated[int, Meta(ge=0)]


# Errors


class Error(Struct, frozen=True):
    """Why a request was refused."""

    code: Annotated[str, Meta(description="for programs; stays the same between versions")]
    message: Annotated[str, Meta(description="for people: the value, the limit, what to do")]
    detail: Annotated[dict[str, Any], Meta(description="the values of the message")] = {}


class ErrorAnswer(Struct, frozen=True):
    """The body of every answer with a status of 400 or more."""

    error: Error


# Topics


class TopicState(Struct, frozen=True):
    """A topic."""

    topic: str
    topic_id: Annotated[int, Meta(description="never used twice; a recreated topic has another")]
    table: Annotated[str, Meta(description="the topic's table in the lake")]
    config: TopicConfig
    partitions: list[PartitionState]
    effective_priority: Annotated[
        int,
        Meta(description="`priority`, or else recency, and 100 for each second that a push waits"),
    ]
    band: Annotated[
        int, Meta(ge=0, le=4, description="whose turn it is after a commit; 4 is served most")
    ]
    age_ms: Annotated[
        int, Meta(ge=0, description="how long a push has waited for its turn; 0: none waits")
    ]
    recency: Annotated[
        int, Meta(ge=0, le=500, description="500 when just read, half of it every 30 s")
    ]
    watchers: Annotated[
        int, Meta(ge=0, description="streams that watch the topic, of all shards; a second late")
    ]
    lagged_watchers: Annotated[
        int,
        Meta(ge=0, description="those of them that lagged and are not at the end again"),
    ]
    created_ms: Annotated[int, Meta(description="epoch milliseconds")]


class TopicsQuery(Struct, frozen=True):
    """Which topics to list."""

    cursor: Annotated[str, Meta(description="`next_cursor` of the previous page")] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="topics in the page")] = 100


class TopicPage(Struct, frozen=True):
    """Topics in the order of their names."""

    topics: list[TopicState]
    next_cursor: Annotated[str | None, Meta(description="asks for the next page; null: no more")]


class TopicDeleteQuery(Struct, frozen=True):
    """What must not stop a deletion."""

    force: Annotated[
        bool, Meta(description="true: also if the topic takes dead letters, which then wait")
    ] = False


class TopicDeleted(Struct, frozen=True):
    """The topic is deleted; its name can be used again."""

    topic: str
    deleted: bool = True


class TrimRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Which records to give up."""

    before_seq: Annotated[Offset, Meta(description="records below it cannot be read any more")]
    partition: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] = 0


class Trimmed(PartitionState, frozen=True, kw_only=True):
    """The partition as it is after the trim."""

    topic: str


# Produce


class ProduceRecord(Struct, forbid_unknown_fields=True, gc=False):
    """A record. It has ``data`` or ``data_b64``."""

    data: (
        Annotated[Raw, Meta(description="any JSON value; kept as the text that was received")]
        | UnsetType
    ) = UNSET
    data_b64: Annotated[str, Meta(description="bytes, in base64")] | None = None
    key: (
        Annotated[
            str,
            Meta(max_length=LABEL_CHARACTERS_MAX, description="chooses the partition, as in Kafka"),
        ]
        | None
    ) = None
    tag: Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX)] | None = None
    node: Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX)] | None = None
    meta: Annotated[Raw, Meta(description="a JSON object")] | UnsetType = UNSET
    ts: (
        Annotated[
            int,
            Meta(
                description="epoch milliseconds, up to the end of the year 9999; by default"
                " the arrival",
                # Checked by check_ts, which names the record and the unit that was meant.
                extra_json_schema={"minimum": 0, "maximum": TIMESTAMP_MS_MAX},
            ),
        ]
        | None
    ) = None


class ProduceOptions(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What a produce request says in addition to its records: in the body, or in the query."""

    partition: (
        Annotated[
            int,
            Meta(ge=0, le=PARTITION_MAX, description="takes all records; else keys choose"),
        ]
        | None
    ) = None
    idempotency_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=IDEMPOTENCY_KEY_CHARACTERS_MAX,
                description="a repeat within `dedupe_window_ms` is stored once; other records"
                " are refused",
            ),
        ]
        | None
    ) = None
    expected_seq: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=SEQUENCE_MAX,
                description="store only if this is the partition's `head_seq` at the commit",
            ),
        ]
        | None
    ) = None
    disable_backpressure: Annotated[
        bool,
        Meta(description="wait for space in a full ring, instead of 429; best in the query"),
    ] = False
    ack_timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=ACK_TIMEOUT_MS_MIN,
                le=ACK_TIMEOUT_MS_MAX,
                description="how long the request may take to become durable; by default the"
                " daemon's",
            ),
        ]
        | None
    ) = None
    dedupe: (
        Annotated[
            Dedupe,
            Meta(description="`body` makes an idempotency key of the body; by default the topic's"),
        ]
        | None
    ) = None


class AdvanceRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A cursor that moves with the records, if it is where it is expected; otherwise nothing is
    stored."""

    cursor: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX, description="its name")]
    expected: Annotated[
        int, Meta(ge=0, le=SEQUENCE_MAX, description="where it must be; 0 before the first move")
    ]
    next: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX, description="where it moves, further on")]
    partition: Annotated[
        int, Meta(ge=0, le=PARTITION_MAX, description="of what the cursor follows")
    ] = 0


class ProduceBody(ProduceOptions, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What only a body with named fields can say."""

    advance: (
        Annotated[AdvanceRequest, Meta(description="a cursor that moves with the records")] | None
    ) = None


class ProduceRequest(ProduceBody, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Records to store, all or none."""

    records: Annotated[list[ProduceRecord], Meta(min_length=1)]


class ProduceQuery(ProduceOptions, kw_only=True):
    """The query of a produce request; for a body that has no place for these."""

    create: Annotated[bool, Meta(description="false: 404 for a topic that does not exist")] = True
    raw: Annotated[
        bool,
        Meta(
            description="also without a value: the body is one record, as it came; the rest"
            " is as in `HookQuery`"
        ),
    ] = False
    key: (
        Annotated[
            str,
            Meta(
                max_length=LABEL_CHARACTERS_MAX,
                description="of arrays and NDJSON: the field that is the record's key (`a.b`"
                " also inside an object); of a body of bytes: the key",
            ),
        ]
        | None
    ) = None
    tag: (
        Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX, description="of a body of bytes")]
        | None
    ) = None
    node: (
        Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX, description="of a body of bytes")]
        | None
    ) = None
    ts: Annotated[int, Meta(description="of a body of bytes")] | None = None


class ProducedPart(Struct, frozen=True):
    """The offsets of a request's records in one partition."""

    partition: int
    first_seq: Offset
    last_seq: Offset
    count: Count
    head_seq: Annotated[Offset, Meta(description="the partition's last offset at the commit")]


class Produced(Struct, frozen=True):
    """The records are durable, all in one partition."""

    topic: str
    partition: int
    first_seq: Offset
    last_seq: Offset
    count: Count
    head_seq: Annotated[Offset, Meta(description="the partition's last offset at the commit")]
    deduped: Annotated[bool, Meta(description="whether this repeats the answer to an earlier one")]


class ProducedSpread(Struct, frozen=True):
    """The records are durable, in the partitions that their keys chose."""

    topic: str
    partitions: list[ProducedPart]
    count: Annotated[int, Meta(ge=0, description="in all partitions")]
    deduped: Annotated[bool, Meta(description="whether this repeats the answer to an earlier one")]


# Cursors


class CursorSetting(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to put a cursor."""

    seq: Annotated[int, Meta(ge=0, le=SEQUENCE_MAX, description="may be before where it is")]
    partition: Annotated[int, Meta(ge=0, le=PARTITION_MAX)] = 0
    expected: (
        Annotated[
            int, Meta(ge=0, le=SEQUENCE_MAX, description="put it there only if it is here now")
        ]
        | None
    ) = None


class CursorSource(Struct, frozen=True, forbid_unknown_fields=True):
    """What a client tells of what its cursor follows. It is only shown."""

    name: Annotated[str, Meta(max_length=SOURCE_NAME_MAX, description="a path or URL")]
    topic_id: Annotated[
        int, Meta(ge=1, le=SEQUENCE_MAX, description="of the topic that the records go to")
    ]
    size_bytes: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=SEQUENCE_MAX,
                description="where it ends now, as a position in partition 0; null: unknown",
            ),
        ]
        | None
    ) = None


class CursorSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Positions to set, all or none; the others stay."""

    positions: Annotated[list[CursorSetting], Meta(max_length=PARTITION_MAX + 1)] = []
    source: Annotated[
        CursorSource | None, Meta(description="what the cursor follows; by default what was told")
    ] = None


class CursorSourceState(Struct, frozen=True):
    """What was told of what a cursor follows."""

    name: str
    topic_id: int
    size_bytes: int | None
    lag_bytes: Annotated[
        int | None,
        Meta(
            description="from the cursor to `size_bytes`; null for Kafka, and if the size is"
            " unknown, or was told more than an hour ago and is not reached"
        ),
    ]
    told_ms: Annotated[int, Meta(description="when, epoch milliseconds")]
    lag_records: Annotated[
        int | None, Meta(description="the lag of a source in Kafka, whose positions are offsets")
    ] = None


class CursorState(Struct, frozen=True):
    """A cursor."""

    cursor: str
    cursor_id: Annotated[int, Meta(description="never used twice; a recreated cursor has another")]
    kind: Annotated[
        CursorKind,
        Meta(description="who moves it: clients, a router, a subscription, or a group of Kafka"),
    ]
    positions: Annotated[
        list[CursorPosition], Meta(description="where it has been moved; 0 in other partitions")
    ]
    created_ms: Annotated[int, Meta(description="epoch milliseconds")]
    source: Annotated[
        CursorSourceState | None,
        Meta(description="what it follows; null if nobody told, and of routers"),
    ] = None


class CursorsQuery(Struct, frozen=True):
    """Which cursors to list."""

    after: Annotated[str, Meta(description="`next_after` of the previous page")] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="cursors in the page")] = 100


class CursorPage(Struct, frozen=True):
    """Cursors in the order of their names."""

    cursors: list[CursorState]
    next_after: Annotated[str | None, Meta(description="asks for the next page; null: no more")]


class CursorDeleted(Struct, frozen=True):
    """The cursor is deleted; its name can be used again."""

    cursor: str
    deleted: bool = True


# Plans


class PlanRenewed(Struct, frozen=True):
    """The plan's lease holds until ``expires_ms``."""

    plan: str
    expires_ms: Annotated[int, Meta(description="epoch milliseconds")]


class PlanEnded(Struct, frozen=True):
    """The plan's lease is ended."""

    plan: str
    ended: bool = True


# The owner of the ledger


class HandedOver(Struct, frozen=True):
    """A standby waits for the owner's last entry, and the owner drains."""

    commits: Annotated[int, Meta(description="commits in the standby's ledger, as it said last")]


class BackedUp(Struct, frozen=True):
    """The owner's log holds what the ledger held when the request came."""

    entry: Annotated[int, Meta(description="the number of the log's last entry")]
