"""What a diff is asked and what it answers, as JSON: each field with its limits and its meaning.

``DiffReader`` builds the answers; the server decodes requests and encodes answers with these
types, and ``openapi.json`` and docs/http-api.md are made from them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ledger.types import INTEGER_MAX, Offset

LIMIT_MAX = 1_000
BYTES_MAX = 8 << 20  # the records of an answer; a larger record is alone in its answer
WAIT_MS_MAX = 30_000


class DiffRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Which records to read. Give at most one of ``from_seq``, ``from_ts`` and ``tail``."""

    from_seq: (
        Annotated[
            Offset,
            Meta(
                description="the last offset that was read; 0 for the beginning, at most `head_seq`"
            ),
        ]
        | UnsetType
    ) = UNSET
    topic_id: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=INTEGER_MAX,
                description="the `topic_id` of the answer that gave `from_seq`",
            ),
        ]
        | UnsetType
    ) = UNSET
    from_ts: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=INTEGER_MAX,
                description="begin with the first record whose `ts` is not earlier (epoch ms)",
            ),
        ]
        | UnsetType
    ) = UNSET
    tail: Annotated[bool, Meta(description="begin after the last record")] = False
    partition: Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="which one to read")] = 0
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="records in the answer")] = 256
    max_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=BYTES_MAX,
            description="bytes of data, key, tag, node and meta in the answer; a larger"
            " record comes alone. 65536 at most while clients do not take the"
            " shard's answers",
        ),
    ] = BYTES_MAX
    tag: Annotated[str, Meta(description="keep records with this tag")] | None = None
    node: Annotated[str, Meta(description="keep records with this node")] | None = None
    wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=WAIT_MS_MAX,
            description="a long poll: wait this long for a first record",
        ),
    ] = 0
    stale: Annotated[
        bool,
        Meta(description="a standby may answer, from what it has read so far"),
    ] = False


class DiffRecord(Struct, frozen=True):
    """A record. It has ``data``, or ``data_b64`` if it was produced as bytes."""

    seq: Annotated[Offset, Meta(description="the record's offset")]
    ts: Annotated[int, Meta(description="epoch milliseconds")]
    data: Annotated[Raw, Meta(description="the JSON value as it was received")] | UnsetType = UNSET
    data_b64: Annotated[str, Meta(description="the bytes in base64")] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    meta: Annotated[Raw, Meta(description="a JSON object")] | UnsetType = UNSET


class Tombstone(Struct, frozen=True):
    """Offsets that the reader does not get. It is not a delete marker."""

    gap_from: Annotated[Offset, Meta(description="the first missing offset")]
    gap_to: Annotated[Offset, Meta(description="the last missing offset")]
    reason: Annotated[
        str,
        Meta(
            description="`cap` or `ttl` (evicted), `quarantined` (damaged; may come back),"
            " `lost` (given up), `recovery` (no record ever had these offsets), `recreated`"
            " (offsets of a deleted topic of this name)"
        ),
    ]


class DiffAnswer(Struct, frozen=True):
    """Records in the order of their offsets, and where to read on."""

    records: list[DiffRecord]
    next_from_seq: Annotated[Offset, Meta(description="the `from_seq` of the next request")]
    head_seq: Annotated[Offset, Meta(description="the last committed offset; 0 for none")]
    earliest_seq: Annotated[Offset, Meta(description="the first offset that can be read")]
    caught_up: Annotated[bool, Meta(description="whether `next_from_seq` is `head_seq`")]
    lag: Annotated[int, Meta(ge=0, description="offsets from `next_from_seq` to `head_seq`")]
    topic_id: Annotated[int, Meta(description="send it with the next `from_seq`")]
    tombstone: Annotated[
        Tombstone | None,
        Meta(description="what the reader misses before the first of these records, if anything"),
    ]
    stale_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                description="only of a standby: how long ago it saw the end of its owner's"
                " log. What the owner acknowledged since then, and in the 5 s before (15 if"
                " it cannot write its log), may be missing",
            ),
        ]
        | UnsetType
    ) = UNSET
