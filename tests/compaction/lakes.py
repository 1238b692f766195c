"""Lakes on a temporary folder: topics, files of their rows, and two independent readers.

Files are written by ``compaction.parquet.writer`` as a run's tasks do; a ``Book`` holds what a
ledger would know. ``duckdb_rows`` shares no code with pyiceberg and begins at the metadata file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension

from compaction.inputs.place import Place
from compaction.parquet.writer import FileNames, Syncs, TopicWriter
from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.lake import Lake
from compaction.tables.prepare import TopicTable, prepare_tables
from compaction.tables.schema import arrow_schema
from ledger.lake import lake_files, lake_tables
from ledger.lake.types import Hole, LakeFile, LakeRange, LakeState, LakeTable, NewFile, TableSwitch
from ledger.table_names import table_name
from ledger.tx import P, ReadTx, T
from ledger.types import Topic, TopicConfig

DAY_MS = 86_400_000
NOON_MS = 19_675 * DAY_MS + DAY_MS // 2
"""Noon of 2023-11-14."""

Row = tuple[int, int]
"""(partition, offset)."""


@dataclass
class Book:
    """What a ledger knows of tables, as far as ``Lake`` asks it."""

    tables: dict[int, LakeTable] = field(default_factory=dict)
    compacted: dict[int, dict[int, int]] = field(default_factory=dict)
    files: dict[int, dict[str, LakeFile]] = field(default_factory=dict)
    ranges: dict[int, tuple[LakeRange, ...]] = field(default_factory=dict)
    quarantine: list[Hole] = field(default_factory=list)

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        answers: dict[object, Callable[..., Any]] = {
            lake_tables.states: self._states,
            lake_tables.named: self._named,
            lake_tables.holes: self._holes,
            lake_files.of_topic: self.live_files,
            lake_files.ranges: self._ranges,
        }
        found: T = answers[function](*args, **kwargs)
        return found

    def _states(self, topic_ids: list[int]) -> list[LakeState]:
        return [
            LakeState(self.tables.get(topic_id), dict(self.compacted.get(topic_id, {})))
            for topic_id in topic_ids
        ]

    def _named(self, with_deleted: bool) -> dict[str, str]:
        return {table.name: table.metadata_location for table in self.tables.values()}

    def live_files(
        self, topic_id: int, with_dropped: bool = False, after: int = 0, limit: int = 1_000
    ) -> list[LakeFile]:
        files = [file for file in self.files.get(topic_id, {}).values() if file.file_id > after]
        return [file for file in files if with_dropped or file.dropped_ms is None][:limit]

    def _holes(self, topic_id: int, after: tuple[int, int], limit: int) -> list[Hole]:
        found = [hole for hole in self.quarantine if hole.topic_id == topic_id]
        return [each for each in found if (each.partition, each.first_offset) > after][:limit]

    def _ranges(self, topic_id: int, after: int) -> dict[int, tuple[LakeRange, ...]]:
        files = [file.file_id for file in self.live_files(topic_id) if file.file_id > after]
        return {file_id: self.ranges[file_id] for file_id in files[:2]}

    def switch(self, switch: TableSwitch, run: str) -> None:
        """As ``lake_tables.switch``."""
        topic_id = switch.topic_id
        self.tables[topic_id] = LakeTable(topic_id, switch.table, switch.metadata_location, 1)
        compacted = self.compacted.setdefault(topic_id, {})
        for partition, seq in switch.watermarks.items():
            compacted[partition] = max(compacted.get(partition, 0), seq)
        files = self.files.setdefault(topic_id, {})
        for new in switch.added:
            if new.path not in files:
                number = len(self.ranges) + 1
                files[new.path] = LakeFile(
                    number, topic_id, new.path, new.size_bytes, new.rows, run
                )
                self.ranges[number] = new.ranges
        self.quarantine += [hole for hole in switch.holes if hole not in self.quarantine]
        self.quarantine = [hole for hole in self.quarantine if hole not in switch.restored]
        for path in switch.dropped:
            file = files[path]
            files[path] = LakeFile(
                file.file_id, topic_id, path, file.size_bytes, file.rows, file.run, 1
            )


def catalog_properties(directory: Path) -> dict[str, str]:
    """The default catalog of a data directory."""
    return {"uri": f"sqlite:///{directory}/catalog.db"}


def place_in(directory: Path) -> Place:
    """A place on the local disk."""
    return Place(f"file://{directory}/store")


def topic(name: str = "orders", topic_id: int = 1, **config: Any) -> Topic:
    """A topic that lives."""
    return Topic(topic_id, name, TopicConfig(**config), 1, table=table_name(name))


def prepared(lake: Lake, one: Topic, book: Book | None = None) -> TopicTable:
    """The table of a topic, or the error that refused it."""
    tables, failures = prepare_tables(lake, [one], book or Book())
    for failure in failures:
        raise failure.error
    return tables[one.topic_id]


def written(
    place: Place,
    table: TopicTable,
    run: str,
    rows: Sequence[Row],
    *,
    task: int = 0,
    timestamp_ms: int = NOON_MS,
    typed: Mapping[str, Sequence[Any]] | None = None,
) -> list[tuple[NewFile, bytes]]:
    """Files with these rows, sorted as they must be; ``typed`` are values of typed columns."""
    ordered = sorted(rows)
    schema = arrow_schema(table.columns)
    columns: dict[str, Any] = {
        "partition": [partition for partition, _ in ordered],
        "offset": [offset for _, offset in ordered],
        "timestamp": [timestamp_ms * 1000] * len(ordered),
        "key": [f"key-{offset}" for _, offset in ordered],
        "data": [f'{{"n":{offset}}}' for _, offset in ordered],
        "data_is_base64": [False] * len(ordered),
        **(typed or {}),
    }
    batch = pa.table(
        [pa.array(columns.get(each.name, [None] * len(ordered)), each.type) for each in schema],
        schema=schema,
    )
    sizes: dict[int, list[int]] = {}
    for partition, _ in ordered:
        size = sizes.setdefault(partition, [0, 0])
        size[0] += 1
        size[1] += 10
    syncs = Syncs()
    names = FileNames(table.location, table.topic_id, run, task)
    writer = TopicWriter(place, names, syncs, table.columns)
    writer.write(batch, sizes)
    files = [(each.file, each.footer) for each in writer.close()]
    syncs.wait()
    return files


def commit_of(
    place: Place, table: TopicTable, run: str, rows: Sequence[Row], **options: Any
) -> TableCommit:
    """The commit of a run that found these rows."""
    watermarks: dict[int, int] = {}
    for partition, offset in rows:
        watermarks[partition] = max(watermarks.get(partition, 0), offset)
    return TableCommit(table, written(place, table, run, rows, **options), watermarks)


def compacted(
    lake: Lake, book: Book, one: Topic, run: str, rows: Sequence[Row], **options: Any
) -> str:
    """A whole run for one topic; returns the metadata location."""
    commit = commit_of(lake.place, prepared(lake, one, book), run, rows, **options)
    location = commit_table(lake, run, commit)
    book.switch(switch_of(commit, location), run)
    return location


def rows(partition: int, first: int, last: int) -> list[Row]:
    """Offsets first to last of a partition."""
    return [(partition, offset) for offset in range(first, last + 1)]


def pyiceberg_rows(lake: Lake, table: str) -> list[Row]:
    """The table's rows as pyiceberg sees them."""
    found = lake.catalog.load_table(table).scan().to_arrow()
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


@functools.cache
def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """DuckDB that reads Iceberg. One per process: loading it takes 0.4 s of CPU."""
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        import_extension(name, con=connection)
        connection.load_extension(name)
    return connection


def duckdb_rows(metadata_location: str, select: str = '"partition", "offset"') -> list[Any]:
    """The table's rows as DuckDB sees them from its metadata file."""
    path = metadata_location.removeprefix("file://")
    query = f"SELECT {select} FROM iceberg_scan('{path}') ORDER BY 1, 2"
    return duckdb_with_iceberg().execute(query).fetchall()


def data_files(lake: Lake, table: str) -> set[str]:
    """Paths of the data files of a table's current snapshot."""
    return {task.file.file_path for task in lake.catalog.load_table(table).scan().plan_files()}


def on_disk(folder: str, suffix: str = ".parquet") -> set[str]:
    """Locations of files below a location."""
    found: Iterable[Path] = Path(folder.removeprefix("file://")).rglob(f"*{suffix}")
    return {f"file://{path}" for path in found}
