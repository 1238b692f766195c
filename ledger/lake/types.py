"""What the ledger knows of the lake: tables and their files, readers, and the compaction.

Vocabulary: *L1* is the Parquet files of Iceberg tables. A partition is *compacted* up to and
including ``compacted_seq``: each offset up to there is a row of an L1 file, or in a gap, or in
*quarantine* (the object that holds it cannot be read), or below ``earliest_seq``. A *run* is one
compaction. The *switch* is the ledger transaction after which readers use L1 for what a run
committed to the tables. A file is *dropped* when a later run has rewritten its rows; it stays until
a collection removes it. A *read lease* protects what a bulk reader planned with from deletion.

This module holds data only. Times are epoch milliseconds.
"""

from __future__ import annotations

from msgspec import Struct

from ledger.types import Extent


class LakeRange(Struct, frozen=True, array_like=True):
    """The rows of one partition in one file, between ``first_offset`` and ``last_offset``.

    They are sorted by offset. Offsets in between may be missing: they are rows of other files
    (another day) or of none (gaps). ``bytes`` is their share of L0 payload, which caps count.
    """

    partition: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int


class NewFile(Struct, frozen=True):
    """A Parquet file as described by the task that wrote it. ``path`` is a URL (file://, s3://)."""

    path: str
    size_bytes: int
    rows: int
    ranges: tuple[LakeRange, ...]


class LakeFile(Struct, frozen=True):
    """A file of a table as the ledger has it; ``dropped_ms`` once its rows are in other files."""

    file_id: int
    topic_id: int
    path: str
    size_bytes: int
    rows: int
    run: str
    dropped_ms: int | None = None


class FileRange(Struct, frozen=True):
    """A partition's rows in a live file, for readers."""

    file_id: int
    path: str
    size_bytes: int
    range: LakeRange


class Hole(Struct, frozen=True):
    """Offsets [first_offset, last_offset] whose object (``key``) cannot be read, and why."""

    topic_id: int
    partition: int
    first_offset: int
    last_offset: int
    key: str
    reason: str


class Quarantined(Struct, frozen=True):
    """A hole and its object, which is kept.

    ``topic`` is empty if the topic is deleted, ``locator`` if the ledger has no such object.
    ``readable``: neither evicted nor deleted.
    """

    hole: Hole
    topic: str
    locator: str
    size_bytes: int
    found_ms: int
    readable: bool


class LakeTable(Struct, frozen=True):
    """A topic's table as of the last switch. ``name`` is its identifier in the catalog."""

    topic_id: int
    name: str
    metadata_location: str
    switched_ms: int


class LakeState(Struct, frozen=True, array_like=True):
    """How far a topic is in the lake: its table as of the last switch, and by partition the offset
    up to and including which readers use L1."""

    table: LakeTable | None
    compacted: dict[int, int]


class TableSwitch(Struct, frozen=True):
    """What one table's Iceberg commit did, for the ledger.

    ``watermarks`` by partition: compacted up to and including that offset. ``dropped`` are paths of
    files whose rows were rewritten, ``restored`` holes whose rows are in ``added``.
    """

    topic_id: int
    table: str
    metadata_location: str
    watermarks: dict[int, int]
    added: tuple[NewFile, ...] = ()
    dropped: tuple[str, ...] = ()
    holes: tuple[Hole, ...] = ()
    restored: tuple[Hole, ...] = ()


class PlannedObject(Struct, frozen=True):
    """An object, and those of its extents that a reader needs, by (topic id, partition)."""

    commit_number: int
    key: str
    locator: str
    size_bytes: int
    extents: tuple[Extent, ...]


class ReadLease(Struct, frozen=True):
    """A bulk reader's protection of what existed when it planned. ``what`` is for people."""

    lease: str
    created_ms: int
    expires_ms: int
    what: str


class Evicted(Struct, frozen=True):
    """Offsets below ``earliest_seq`` can no longer be read; ``reason``: cap, ttl or trim."""

    topic: str
    topic_id: int
    partition: int
    earliest_seq: int
    records: int
    reason: str
