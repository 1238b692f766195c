"""What a commit consists of, and what the ledger answers.

Vocabulary: a *lease* is what one pull took from the rings; it becomes one L0 object. An *extent* is
one partition's contiguous bytes in that object. A *run* is the part of an extent that came from one
shard. A *condition* is a request that the commit itself must decide (idempotency key,
expected_seq, advance of a cursor, batch of an idempotent producer). A *verdict* is the decision
that makes such a request *void*: its records stay in the object, get no offsets, and every reader
skips them.

Offsets start at 1 per (topic id, partition) and have no holes over the records that are not void.
``record_index`` always counts all records of an extent, void ones included.

This module holds data only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

VerdictKind = Literal[
    "deduped", "sequence_mismatch", "topic_deleted", "cursor_moved", "cursor_unknown",
    "out_of_order", "producer_fenced", "key_reused",
]  # fmt: skip


class LeaseId(Struct, frozen=True, array_like=True, order=True):
    """The name of a lease and so of its object: never used twice under a prefix."""

    incarnation: int
    epoch: int
    shard: int
    counter: int


class LeasedRange(Struct, frozen=True, array_like=True):
    """Ring bytes [start, end) of one shard; positions are monotonic byte counts."""

    shard: int
    start: int
    end: int


class ExtentRunDraft(Struct, frozen=True, array_like=True):
    """Records [record_index, record_index + record_count) of an extent came from ``shard``.

    ``ring_first`` and ``ring_span`` are as in ExtentRun.
    """

    shard: int
    record_index: int
    record_count: int
    ring_first: int = 0
    ring_span: int = 0


class ExtentDraft(Struct, frozen=True):
    """One partition's bytes in an object, before it has offsets. Times are epoch milliseconds."""

    topic_id: int
    partition: int
    byte_start: int
    byte_length: int
    record_count: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    codec: int
    crc32c: int
    runs: tuple[ExtentRunDraft, ...]


class ConditionPart(Struct, frozen=True, array_like=True):
    """Where the records of a conditional request are in the extent of ``partition``."""

    partition: int
    record_index: int
    record_count: int


class Advance(Struct, frozen=True, array_like=True):
    """A cursor moves from ``expected`` to ``next`` with the records of a request, or neither is
    done.

    ``is_ours``: Headgate moves it (a router), and can copy again what a recovery does not take. The
    rest is of clients' cursors, for a recovery: the cursor's ``name``, and its last explicit
    setting in this partition that the accepting shard knew, as change number and value.

    Ours with ``next`` equal to ``expected`` *settles* this offset of a subscription: the records
    are stored if it was not finished, and it is finished with them.
    """

    cursor_id: int
    partition: int
    expected: int
    next: int
    is_ours: bool = False
    name: str = ""
    set_change: int = 0
    set_seq: int = 0

    @property
    def settles(self) -> bool:
        """Whether it finishes one offset of a subscription, and moves nothing."""
        return self.is_ours and self.next == self.expected


SEQUENCE_MAX = (1 << 31) - 1


class ProducerBatch(Struct, frozen=True, array_like=True):
    """The records of an idempotent producer (of Kafka's protocol) for one partition: they have the
    sequence numbers ``first`` to ``last``, which count from 0 to SEQUENCE_MAX and begin again.

    A producer's ``epoch`` rises; its sequence numbers begin at 0 in each.
    """

    producer_id: int
    epoch: int
    first: int
    last: int


class Condition(Struct, frozen=True):
    """A request that the commit decides. ``position`` is where its frame starts in the shard's
    ring.

    With ``expected_seq`` or ``producer`` there is exactly one part. ``accepts_gaps``: batches
    between those of the producer that are known here may be lost. ``fingerprint`` is of the records
    that came with the idempotency key; None: it is not known, and repeats are not compared.
    """

    shard: int
    position: int
    topic_id: int
    parts: tuple[ConditionPart, ...]
    idempotency_key: str | None = None
    expected_seq: int | None = None
    advance: Advance | None = None
    producer: ProducerBatch | None = None
    accepts_gaps: bool = False
    fingerprint: int | None = None


class CommitDraft(Struct, frozen=True):
    """Everything that one ledger transaction needs to commit one object.

    ``extents`` are sorted by (topic_id, partition); ``conditions`` are in pull order.
    """

    lease_id: LeaseId
    key: str
    locator: str
    size_bytes: int
    created_ms: int
    ranges: tuple[LeasedRange, ...]
    extents: tuple[ExtentDraft, ...]
    conditions: tuple[Condition, ...] = ()


class ExtentRun(Struct, frozen=True, array_like=True):
    """Offsets of one shard's records in one partition.

    ``first_offset`` is that of the first record of the run that is not void; the others follow in
    order. It is 0 if the whole run is void because its topic is deleted. If all are void for other
    reasons, it is what the next record gets. ``record_count`` counts all records, void ones
    included.

    ``ring_first`` is the position of the run's first request in the shard's ring, and
    ``ring_span`` how many bytes later its last part begins, for readers of the ring. A span of 0:
    they are not known.
    """

    shard: int
    topic_id: int
    partition: int
    first_offset: int
    record_count: int
    ring_first: int = 0
    ring_span: int = 0


class PartitionHead(Struct, frozen=True, array_like=True):
    """The last committed offset of a partition after the commit; 0 while it is empty."""

    topic_id: int
    partition: int
    head_seq: int


class AnswerPart(Struct, frozen=True, array_like=True):
    """Offsets that an earlier request with the same idempotency key got."""

    partition: int
    first_seq: int
    last_seq: int


class Verdict(Struct, frozen=True):
    """Why the request at (shard, position) is void, and what its producer is answered.

    ``parts`` is the first answer (deduped, also of a producer's batch, and key_reused).
    ``head_seq`` is the partition's head that an expectation met (sequence_mismatch), or the head
    after the first answer (deduped; of a producer's batch, its last offset).
    ``cursor_seq`` is where the cursor is (cursor_moved).
    """

    shard: int
    position: int
    kind: VerdictKind
    parts: tuple[AnswerPart, ...] = ()
    head_seq: int = 0
    cursor_seq: int = 0


class Commit(Struct, frozen=True):
    """A commit as it is in the ledger and in the commit log.

    ``number`` counts commits from 1 without gaps. ``runs`` and ``heads`` are sorted by (topic_id,
    partition). ``repeated``: the lease was committed before, and this is its earlier result.
    ``published_ns`` is when it came into the commit log, by the monotonic clock; 0: not known. The
    ledger does not keep it.
    """

    number: int
    lease_id: LeaseId
    ranges: tuple[LeasedRange, ...]
    runs: tuple[ExtentRun, ...]
    heads: tuple[PartitionHead, ...]
    verdicts: tuple[Verdict, ...] = ()
    repeated: bool = False
    published_ns: int = 0


CursorKind = Literal["client", "router", "subscription", "kafka"]


class Cursor(Struct, frozen=True):
    """A cursor. Ids are never used twice; a deleted cursor's row stays.

    ``source`` and what follows: what the cursor's owner told of what it follows, and when. Then
    ``told_ms`` is set. ``source_bytes`` None: the owner does not know."""

    cursor_id: int
    name: str
    kind: CursorKind
    created_ms: int
    deleted_ms: int | None = None
    source: str | None = None
    source_topic_id: int | None = None
    source_bytes: int | None = None
    told_ms: int | None = None


class CursorPosition(Struct, frozen=True):
    """Where a cursor is in one partition of what it follows."""

    partition: int
    seq: int


class CursorMove(Struct, frozen=True):
    """A step that holds only if the cursor is at ``expected``."""

    cursor_id: int
    partition: int
    expected: int
    next: int


class Extent(Struct, frozen=True):
    """A committed extent with the offsets [first_offset, last_offset].

    ``voids`` are (record_index, record_count) ranges without offsets, ascending. ``key`` is the
    object's, if a read by offsets has looked it up.
    """

    topic_id: int
    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    locator: str
    object_size_bytes: int
    byte_start: int
    byte_length: int
    crc32c: int
    codec: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    voids: tuple[tuple[int, int], ...] = ()
    key: str = ""


class Gap(Struct, frozen=True):
    """Offsets [gap_from, gap_to] of a partition that no record has or will have."""

    topic_id: int
    partition: int
    gap_from: int
    gap_to: int
    reason: str


class ObjectRow(Struct, frozen=True):
    """A committed object as ``headgate objects ls`` shows it."""

    key: str
    locator: str
    size_bytes: int
    created_ms: int
    commit_number: int
    extents: int
    records: int


PARTITIONS_MAX = 1_000  # each is a row of the ledger from the start
COLUMNS_MAX = 200
SUBSCRIPTIONS_MAX = 1_024  # of a daemon; each has a row of the shared segment
ROUTERS_MAX = 1_024  # each has one too, and a copy of its source's records
INTEGER_MAX = (1 << 63) - 1

Dedupe = Literal["none", "body"]
HookScheme = Literal["github", "stripe", "standard", "hmac"]
KafkaValue = Literal["bytes", "json"]
KafkaCleanupPolicy = Literal["delete", "compact", "compact,delete"]
Discard = Literal["old", "reject"]
Offset = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Limit = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]


class HookSigning(Struct, frozen=True, forbid_unknown_fields=True):
    """How the hooks of a topic are signed. The secrets are in a file next to the ledger."""

    scheme: Annotated[
        HookScheme,
        Meta(
            description="`github` (X-Hub-Signature-256), `stripe` (Stripe-Signature), `standard`"
            " (Standard Webhooks), or `hmac`: an HMAC-SHA256 of the body, in hex or base64"
        ),
    ]
    header: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9-]{1,64}$",
            description="of `hmac`: where the signature is, also after `sha256=`",
        ),
    ] = "X-Signature"
    tolerance_s: Annotated[
        int,
        Meta(
            ge=1, le=86_400,
            description="how far the time in a signature of `stripe` or `standard` may be off",
        ),
    ] = 300  # fmt: skip


class HookSettings(HookSigning, frozen=True, forbid_unknown_fields=True):
    """How the hooks of a topic must be signed."""

    secrets_id: Annotated[
        str, Meta(description="the entry of `push-secrets.json` that has the secrets")
    ] = ""


class TopicConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a topic, as the HTTP API and the ledger's JSON have them."""

    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_MAX, description="how many there are; can only grow")
    ] = 1
    columns: Annotated[
        dict[str, Literal["string", "long", "double", "boolean", "timestamp"]],
        Meta(
            max_length=COLUMNS_MAX,
            description="typed columns of the topic's table, by the field of the data",
        ),
    ] = {}
    priority: (
        Annotated[
            int,
            Meta(
                ge=-INTEGER_MAX,
                le=INTEGER_MAX,
                description="how urgent deliveries are, clamped to -1000 to 1000; null: by"
                " `auto_priority`",
            ),
        ]
        | None
    ) = None
    auto_priority: Annotated[
        bool,
        Meta(description="without `priority`, a topic that was read lately is more urgent"),
    ] = True
    lossy: Annotated[
        bool,
        Meta(description="a watcher that lags is told what it missed; false: it catches up"),
    ] = False
    cap_records: (
        Annotated[Limit, Meta(description="records that each partition keeps; null: no limit")]
        | None
    ) = None
    cap_bytes: (
        Annotated[Limit, Meta(description="bytes that each partition keeps; null: no limit")] | None
    ) = None
    ttl_ms: (
        Annotated[Limit, Meta(description="how long records are kept; null: no limit")] | None
    ) = None
    discard: Annotated[
        Discard,
        Meta(description="at a cap: evict the oldest records, or refuse new ones"),
    ] = "old"
    dedupe: Annotated[
        Dedupe,
        Meta(description="the default of requests: `body` stores a repeated body once"),
    ] = "none"
    retain_for_subscriptions: (
        Annotated[
            Limit,
            Meta(
                description="caps and `ttl_ms` spare up to this many bytes of a partition"
                " that a reliable subscription has not finished"
            ),
        ]
        | None
    ) = None
    hook: (
        Annotated[HookSettings, Meta(description="how hooks must be signed; null: they need not")]
        | None
    ) = None
    kafka_value: Annotated[
        KafkaValue,
        Meta(
            description="what values of Kafka's producers are: bytes, or JSON text and nothing else"
        ),
    ] = "bytes"
    kafka_cleanup_policy: Annotated[
        KafkaCleanupPolicy,
        Meta(
            description="what Kafka's clients are told as `cleanup.policy`; nothing is"
            " compacted by key"
        ),
    ] = "delete"


class TokenName(Struct, frozen=True):
    """The token with which something was set up last."""

    id: str
    name: str


class Topic(Struct, frozen=True):
    """A topic. Ids are never used twice; a deleted topic's row stays. ``table`` is the name of its
    table in the lake, without the namespace."""

    topic_id: int
    name: str
    config: TopicConfig
    created_ms: int
    deleted_ms: int | None = None
    table: str = ""


class PartitionState(Struct, frozen=True):
    """One partition of a topic."""

    partition: int
    head_seq: Annotated[Offset, Meta(description="the last committed offset; 0 for none")]
    earliest_seq: Annotated[Offset, Meta(description="the first offset that can be read")]
    next_seq: Annotated[Offset, Meta(description="the offset of the next record")]
    count: Annotated[int, Meta(ge=0, description="records that can be read")]
    bytes: Annotated[
        int, Meta(ge=0, description="bytes that the records that can be read take in objects")
    ]
    compacted_seq: Annotated[
        Offset, Meta(description="up to and with this offset, records are read from the lake")
    ] = 0
    lost_seq: Annotated[
        Offset, Meta(description="the last offset that a cap or the time to live evicted; 0: none")
    ] = 0
    lost_reason: Annotated[
        str, Meta(description="why `lost_seq` was evicted: `cap`, `ttl` or empty")
    ] = ""
