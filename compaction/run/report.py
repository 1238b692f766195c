"""The report of a compaction, the same for people and for programs.

Scripts rely on the names of its fields; fields may be added. Requests to the lake are counted as
S3 bills them: a file larger than one part is a multipart upload.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from ledger.lake.types import LakeFile
from uploader.stores.counted import Requests

PART_BYTES = 10 << 20  # pyarrow uploads files in such parts
METADATA_PUTS = 3  # per Iceberg commit: manifest, manifest list, table metadata


class FileSizes(Struct, frozen=True):
    """The files of a table and their sizes, in bytes."""

    files: int = 0
    smallest: int = 0
    median: int = 0
    largest: int = 0


class TableReport(Struct):
    """One table of a run. ``watermarks`` has, by partition, the last offset that is compacted;
    ``files_now`` are all files that the table has after the run."""

    topic: str
    table: str
    metadata_location: str
    rows: int
    files: int
    bytes: int
    watermarks: dict[int, int]
    rewritten: int = 0
    files_now: FileSizes = FileSizes()


class QuarantinedOffsets(Struct, frozen=True):
    """Offsets whose object cannot be read. The object is kept, and ``diff`` names the hole."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    key: str
    problem: str


class SetAside(Struct, frozen=True):
    """Records whose ``ts`` a table cannot hold; their rows have the time of arrival instead.
    ``records`` of them lie between the two offsets; ``value`` is the ``ts`` of the first."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    value: int


class TopicFailed(Struct, frozen=True):
    """A topic of which nothing was compacted, and why. Other topics are not affected."""

    topic: str
    problem: str
    hint: str = ""


class RunReport(Struct):
    """One run. ``bytes_compacted`` are those of the extents, ``bytes_read`` what was read for them;
    ``would_compact`` has bytes by topic, after a dry run. ``made_up_for`` are tables that an
    earlier run had committed to before it died, and whose readers this run has switched;
    ``registered`` are tables that the catalog had lost.

    ``start_up_seconds`` is the start of Java and Spark; ``spark_seconds`` reading, shuffling,
    sorting, and writing; ``commit_seconds`` preparing tables and committing to them.
    ``mb_per_second`` is L0 divided by ``spark_seconds``.
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
    registered: list[str] = []
    would_compact: dict[str, int] = {}
    tables: list[TableReport] = []
    quarantined: list[QuarantinedOffsets] = []
    failed: list[TopicFailed] = []
    set_aside: list[SetAside] = []

    @property
    def sound(self) -> bool:
        """Whether everything that was planned is in the tables."""
        return not self.quarantined and not self.failed


def sizes_of(files: Iterable[LakeFile]) -> FileSizes:
    """The sizes of live files."""
    sizes = sorted(file.size_bytes for file in files if file.dropped_ms is None)
    if not sizes:
        return FileSizes()
    return FileSizes(len(sizes), sizes[0], sizes[len(sizes) // 2], sizes[-1])


def file_puts(size_bytes: int) -> int:
    """PUT requests that S3 bills for a file of this size."""
    if size_bytes <= PART_BYTES:
        return 1
    return 2 + -(-size_bytes // PART_BYTES)
