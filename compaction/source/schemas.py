"""What ``POST /v0/plans`` is asked and what it answers, as JSON.

``plan.py`` builds the answers and the Spark source reads them; the server, ``openapi.json`` and
docs/http-api.md use the same types.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ledger.types import Offset

TOPICS_MAX = 1_000
PAGE_MAX = 10_000  # extents and files' ranges in a page: some 3 MB of JSON

Offsets = dict[str, dict[int, int]]


class PlanRequest(Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Which offsets to plan."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=TOPICS_MAX)]
    from_: Annotated[
        Offsets,
        Meta(
            description="`{topic: {partition: offset}}`, inclusive; by default the earliest offsets"
        ),
    ] = {}
    to: Annotated[
        Offsets,
        Meta(description="`{topic: {partition: offset}}`, exclusive; by default the present ends"),
    ] = {}
    plan: (
        Annotated[str, Meta(description="continue this plan, under its lease; null: a new plan")]
        | None
    ) = None
    limit: Annotated[
        int, Meta(ge=1, le=PAGE_MAX, description="extents and ranges in this page")
    ] = PAGE_MAX


class PlanExtent(Struct, frozen=True):
    """The records of one partition in an L0 object (docs/l0-format.md)."""

    topic: str
    topic_id: int
    partition: int
    first_offset: Offset
    last_offset: Offset
    record_count: int
    byte_start: int
    byte_length: int
    crc32c: int
    codec: int
    voids: Annotated[
        tuple[tuple[int, int], ...],
        Meta(description="`[record index, record count]` of records without offsets"),
    ] = ()


class PlanObject(Struct, frozen=True):
    """An L0 object of which ``extents`` are needed. Objects are in an order in which the offsets
    of each partition rise."""

    key: str
    locator: str
    size_bytes: int
    extents: list[PlanExtent]


class PlanRange(Struct, frozen=True):
    """The rows of one partition in a file."""

    partition: int
    first_offset: Offset
    last_offset: Offset
    rows: int
    bytes: Annotated[int, Meta(description="what the records were in L0 objects")]


class PlanFile(Struct, frozen=True):
    """A Parquet file of one topic."""

    path: Annotated[str, Meta(description="a URL")]
    size_bytes: int
    topic: str
    topic_id: int
    ranges: list[PlanRange]


class PlanHole(Struct, frozen=True):
    """Offsets that cannot be read."""

    topic: str
    topic_id: int
    partition: int
    first_offset: Offset
    last_offset: Offset
    reason: Annotated[
        str,
        Meta(
            description="`cap`, `ttl`, `trim` (evicted), `quarantined` (damaged, or given"
            " up), `recovery` (no record ever had these offsets)"
        ),
    ]


class PlanPartition(Struct, frozen=True, rename={"from_": "from"}):
    """Offsets [``from``, ``to``) that this page covers: up to ``compacted_seq`` by files, after it
    by objects."""

    topic: str
    topic_id: int
    partition: int
    earliest_seq: Offset
    head_seq: Offset
    compacted_seq: Offset
    from_: Annotated[
        Offset, Meta(description="greater than what was asked where offsets were evicted")
    ]
    to: Annotated[Offset, Meta(description="less than what was asked while `next` is not null")]


class PlanStore(Struct, frozen=True):
    """Where objects and files are. Each reader has its own credentials."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    lake_url: str = ""


class Plan(Struct, frozen=True):
    """A page of a plan."""

    plan: Annotated[str, Meta(description="the name of the plan, for the next page and for PUT")]
    expires_ms: Annotated[int, Meta(description="when the lease ends, epoch milliseconds")]
    store: PlanStore
    partitions: list[PlanPartition]
    objects: Annotated[
        list[PlanObject], Meta(description="records of offsets greater than `compacted_seq`")
    ]
    files: Annotated[
        list[PlanFile], Meta(description="rows of offsets up to and with `compacted_seq`")
    ]
    holes: list[PlanHole]
    next: Annotated[
        PlanRequest | None,
        Meta(description="the body of the next POST; null when everything asked is planned"),
    ] = None
