"""What a compaction says of itself: one report, the same for people and for programs.

Field names are what scripts rely on; more may come. Bytes, seconds and US dollars as
the names say. Requests to the lake are counted as S3 would bill them: a file of more than a part
is a multipart upload.
"""

from __future__ import annotations

from msgspec import Struct, field

from uploader.stores.counted import Requests

PART_BYTES = 10 << 20  # what pyarrow uploads at once
METADATA_PUTS = 3  # of one Iceberg commit: manifest, manifest list, table metadata


class TableReport(Struct):
    """One table of a run. ``watermarks`` by partition: compacted up to and with that offset."""

    topic: str
    table: str
    metadata_location: str
    rows: int
    files: int
    bytes: int
    watermarks: dict[int, int]
    rewritten: int = 0


class Quarantined(Struct, frozen=True):
    """Offsets of an object that cannot be read; the object is kept, ``diff`` names the hole."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    key: str
    problem: str


class SetAside(Struct, frozen=True):
    """Records whose ``ts`` no table can hold: their rows have the arrival instead. ``records`` of
    them lie between two offsets; ``value`` is the ``ts`` of the first."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    value: int


class TopicFailed(Struct, frozen=True):
    """A topic of which nothing was compacted, and why; the others were."""

    topic: str
    problem: str
    hint: str = ""


class RunReport(Struct):
    """A run. ``bytes_compacted`` are those of extents, ``bytes_read`` what was fetched for them;
    ``would_compact`` are bytes by topic, of a dry run.

    ``start_up_seconds`` is Java's and Spark's; ``spark_seconds`` reading, shuffling, sorting and
    writing; ``commit_seconds`` the tables'. ``mb_per_second`` is of L0 over ``spark_seconds``.
    """

    dry_run: bool = False
    run: str = ""
    java: str = ""
    master: str = ""
    objects: int = 0
    bytes_compacted: int = 0
    bytes_read: int = 0
    rows: int = 0
    files: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    start_up_seconds: float = 0.0
    spark_seconds: float = 0.0
    commit_seconds: float = 0.0
    mb_per_second: float = 0.0
    peak_memory_bytes: int = 0
    requests: Requests = field(default_factory=Requests)
    usd: float = 0.0
    made_up_for: list[str] = []
    would_compact: dict[str, int] = {}
    tables: list[TableReport] = []
    quarantined: list[Quarantined] = []
    failed: list[TopicFailed] = []
    set_aside: list[SetAside] = []

    @property
    def sound(self) -> bool:
        """Whether all that was planned is in the tables."""
        return not self.quarantined and not self.failed


def file_puts(size_bytes: int) -> int:
    """PUT requests that S3 bills for a file of this size."""
    if size_bytes <= PART_BYTES:
        return 1
    return 2 + -(-size_bytes // PART_BYTES)
