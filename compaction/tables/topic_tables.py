"""What a run says of tables: plain data between the driver, its tasks, the lake and the ledger.

``TopicTable`` is what a run needs to know before it reads, ``TableCommit`` what it found. Nothing
is read or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from compaction.tables.errors import LakeError
from compaction.tables.names import run_of_file
from compaction.tables.schema import Column
from compaction.tables.table_state import merged
from ledger.lake.coverage import Spans
from ledger.lake.types import Hole, LakeFile, LakeRange, LakeTable, NewFile, TableSwitch


class LakeLedger(Protocol):
    """What is asked of the ledger; ``ledger.ledger.Ledger`` is one."""

    def lake_table(self, topic_id: int) -> LakeTable | None:
        """A topic's table as of the last switch."""
        ...

    def compacted_seqs(self, topic_id: int) -> dict[int, int]:
        """Up to where each partition is in the table."""
        ...

    def lake_files(self, topic_id: int, with_dropped: bool = False) -> list[LakeFile]:
        """The files of a topic's table."""
        ...

    def holes(self, topic_id: int) -> list[Hole]:
        """Offsets of a topic whose object cannot be read."""
        ...

    def ranges_of_files(self, topic_id: int) -> dict[int, tuple[LakeRange, ...]]:
        """What each live file holds."""
        ...


@dataclass(frozen=True)
class TopicTable:
    """A topic's table, ready to be written. Plain data; it may travel to executors.

    ``columns`` are the topic's typed columns with the table's ids. Data files go below
    ``location``/data. ``made`` says that the table is new, ``registered`` that the catalog had lost
    it and the ledger's metadata was registered again.
    """

    topic_id: int
    topic: str
    table: str
    location: str
    columns: tuple[Column, ...]
    watermarks: dict[int, int]
    metadata_location: str
    made: bool = False
    registered: bool = False


@dataclass(frozen=True)
class TopicFailure:
    """A topic of which nothing is compacted, and why."""

    topic_id: int
    topic: str
    error: LakeError


class TableCommit(Struct, frozen=True):
    """What a run does to one table. ``files`` come with their footers (``datafiles.py``).

    ``rewritten`` are paths of data files whose rows are all in ``files``, ``restored`` holes whose
    rows are. A commit that restores is refused unless the table is exactly as it was prepared.
    """

    table: TopicTable
    files: Sequence[tuple[NewFile, bytes]]
    watermarks: Mapping[int, int]
    rewritten: Sequence[str] = ()
    holes: Sequence[Hole] = ()
    restored: Sequence[Hole] = ()


def switch_of(commit: TableCommit, metadata_location: str) -> TableSwitch:
    """What the ledger is told of a commit."""
    return TableSwitch(
        topic_id=commit.table.topic_id,
        table=commit.table.table,
        metadata_location=metadata_location,
        watermarks=dict(commit.watermarks),
        added=tuple(file for file, _ in commit.files),
        dropped=tuple(commit.rewritten),
        holes=tuple(commit.holes),
        restored=tuple(commit.restored),
    )


def check_commit(run: str, commit: TableCommit) -> None:
    """The files are the run's, and lie at or below the watermarks, which do not fall.

    Raises ValueError.
    """
    table = commit.table
    after = merged(table.watermarks, commit.watermarks)
    for partition, seq in table.watermarks.items():
        if after[partition] < seq:
            raise ValueError(
                f"the watermark of partition {partition} of {table.table} would fall from {seq}"
                f" to {after[partition]}"
            )
    for file, _ in commit.files:
        if not file.path.startswith(f"{table.location}/data/"):
            raise ValueError(f"{file.path} is not below {table.location}/data/")
        if run_of_file(file.path.rpartition("/")[2]) != run:
            raise ValueError(f"{file.path} is not named as a file of the run {run}")
        for one in file.ranges:
            if one.last_offset > after.get(one.partition, 0):
                raise ValueError(
                    f"{file.path} holds offset {one.last_offset} of partition {one.partition},"
                    f" its watermark is {after.get(one.partition, 0)}"
                )
            if commit.restored:
                if not _is_of(commit.restored, one):
                    raise ValueError(
                        f"{file.path} holds offsets {one.first_offset} to {one.last_offset} of"
                        f" partition {one.partition}, which are not those of the holes"
                    )
            elif not commit.rewritten and one.first_offset <= table.watermarks.get(
                one.partition, 0
            ):
                raise ValueError(
                    f"{file.path} holds offset {one.first_offset} of partition {one.partition},"
                    f" which is in {table.table} already"
                )


def _is_of(holes: Sequence[Hole], one: LakeRange) -> bool:
    """Whether a range has rows of the holes only, as far as it says."""
    spans = Spans([(h.first_offset, h.last_offset) for h in holes if h.partition == one.partition])
    length = one.last_offset + 1 - one.first_offset
    ends = {one.first_offset, one.last_offset}
    return all(spans.outside(end, end) == 0 for end in ends) and one.rows <= length - spans.outside(
        one.first_offset, one.last_offset
    )
