"""The properties that Headgate keeps in a table, and what a table must look like.

The properties are set in the same commit as the files, so that a commit happens exactly once
(docs/protocol.md 8):

    headgate.topic-id     the id of the topic; a table without it is not Headgate's
    headgate.topic        the topic's name, for people
    headgate.run          the run of the last commit
    headgate.watermarks   JSON {partition: offset}: records up to there are in the table or lost
    headgate.holes        JSON [[partition, first, last, key, reason], ...], the newest last

Pure functions over pyiceberg's metadata objects; nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from compaction.tables.errors import ForeignTable, SchemaConflict, TableChanged
from compaction.tables.schema import BASE, BaseType, Column, ColumnType, typed_columns
from ledger.lake.types import Hole

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.types import IcebergType

TOPIC_ID = "headgate.topic-id"
TOPIC = "headgate.topic"
RUN = "headgate.run"
WATERMARKS = "headgate.watermarks"
HOLES = "headgate.holes"
NUM_RETRIES = "commit.retry.num-retries"

DAY_FIELD = "timestamp_day"
# A hole takes about 150 bytes in each version of the metadata. The ledger has all holes; the
# property is for people, and for the run after one that was killed.
HOLES_MAX = 5_000
# Versions of the metadata that stay, for readers that have an older location.
METADATA_VERSIONS_MAX = 100
# Each commit adds a manifest; this many are merged.
MANIFESTS_MAX = 25

# Which statistics a manifest has. Bounds of payloads exclude nothing; our files have none.
METRICS = {
    "write.metadata.metrics.column.data": "none",
    "write.metadata.metrics.column.meta": "none",
}

# What the properties of a table may be named; "." at the end stands for all that begin so. Others
# are refused: from some, pyiceberg and engines take code, paths, addresses and credentials
# (``*impl``, ``*path``, ``s3.*``). Engines and catalogs set some of the allowed ones themselves.
_ALLOWED = (
    TOPIC_ID,
    TOPIC,
    RUN,
    WATERMARKS,
    HOLES,
    "format-version",
    "comment",
    "owner",
    "commit.",
    "gc.enabled",
    "history.expire.",
    "read.",
    "schema.name-mapping.default",
    "compatibility.snapshot-id-inheritance.enabled",
    "write.avro.",
    "write.delete.",
    "write.distribution-mode",
    "write.fanout.enabled",
    "write.format.default",
    "write.merge.",
    "write.metadata.compression-codec",
    "write.metadata.delete-after-commit.enabled",
    "write.metadata.metrics.",
    "write.metadata.previous-versions-max",
    "write.parquet.",
    "write.spark.",
    "write.summary.partition-limit",
    "write.target-file-size-bytes",
    "write.update.",
    "nessie.commit.id",
    "nessie.catalog.content-id",
)

_watermarks_decoder = msgspec.json.Decoder(dict[int, int])
_holes_decoder = msgspec.json.Decoder(list[tuple[int, int, int, str, str]])


class TableState(Struct, frozen=True):
    """The properties of a table of Headgate's."""

    topic_id: int
    run: str
    watermarks: dict[int, int]
    holes: tuple[Hole, ...]


def owner_of(properties: Mapping[str, str], table: str) -> int:
    """The id of the table's topic. Raises ForeignTable."""
    text = properties.get(TOPIC_ID, "")
    if not text.isdecimal():
        raise ForeignTable(
            f"the table {table} in the catalog was not made by Headgate"
            f" (it has no property {TOPIC_ID})",
            "rename or drop it, or rename the topic",
        )
    return int(text)


def state_of(properties: Mapping[str, str], table: str) -> TableState:
    """The state in a table's properties. Raises ForeignTable, TableChanged."""
    topic_id = owner_of(properties, table)
    try:
        watermarks = _watermarks_decoder.decode(properties.get(WATERMARKS, ""))
        holes = _holes_decoder.decode(properties.get(HOLES, "[]"))
        if any(partition < 0 or seq < 0 for partition, seq in watermarks.items()):
            raise msgspec.ValidationError("a negative number")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TableChanged(
            f"the table {table} was changed: its properties {WATERMARKS} and {HOLES} cannot"
            f" be read ({error})",
            "set them to the values in an older version of its metadata",
        ) from error
    return TableState(
        topic_id,
        properties.get(RUN, ""),
        watermarks,
        tuple(Hole(topic_id, *hole) for hole in holes),
    )


def check_properties(properties: Mapping[str, str], table: str) -> None:
    """Checks that a table has only properties that name no code and no place. Raises
    TableChanged."""
    refused = sorted(key for key in properties if not _is_allowed(key))
    if refused:
        raise TableChanged(
            f"the table {table} was changed: it has a property that may name code, a place or"
            f" credentials, {refused[0][:100]!r} (one of {len(refused)})",
            "find out who set it, and remove it with an engine",
        )


def _is_allowed(key: str) -> bool:
    return any(key.startswith(each) if each.endswith(".") else key == each for each in _ALLOWED)


def check_not_behind(state: TableState, compacted: Mapping[int, int], table: str) -> None:
    """Checks that the table has all that the ledger says it has. Raises TableChanged."""
    for partition, seq in sorted(compacted.items()):
        found = state.watermarks.get(partition, 0)
        if found < seq:
            raise TableChanged(
                f"the table {table} was changed: its watermark of partition {partition} is"
                f" {found}, and the ledger has compacted up to {seq}",
                "register the table's newest metadata in the catalog again",
            )


def check_not_rolled_back(metadata: TableMetadata, state: TableState, table: str) -> None:
    """Checks that the last run's snapshot is an ancestor of the current one. Raises TableChanged.

    A rollback does not change properties, so watermarks would promise rows that are gone.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    last = {
        each.snapshot_id
        for each in metadata.snapshots
        if state.run and each.summary is not None and each.summary.get(RUN) == state.run
    }
    current = metadata.current_snapshot()
    while current is not None and current.snapshot_id not in last:
        parent = current.parent_snapshot_id
        current = None if parent is None else by_id.get(parent)
    if last and current is None:
        raise TableChanged(
            f"the table {table} was rolled back to before the run {state.run}, and the rows of that"
            " run would be lost",
            "set its current snapshot to the newest one again",
        )


def new_properties(topic_id: int, topic: str) -> dict[str, str]:
    """The properties of a new table, except its name mapping."""
    return {
        "format-version": "2",
        TOPIC_ID: str(topic_id),
        TOPIC: topic,
        RUN: "",
        WATERMARKS: "{}",
        HOLES: "[]",
        # pyiceberg's own retry would commit the files without checking the watermarks.
        NUM_RETRIES: "0",
        "write.parquet.compression-codec": "zstd",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(METADATA_VERSIONS_MAX),
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": str(MANIFESTS_MAX),
        **METRICS,
    }


def committed_properties(
    state: TableState, topic: str, run: str, watermarks: Mapping[int, int], holes: Sequence[Hole],
    restored: Sequence[Hole] = (),
) -> dict[str, str]:  # fmt: skip
    """The properties that a commit sets. Watermarks of other partitions stay; ``restored`` holes
    are removed."""
    back = {(hole.partition, hole.first_offset) for hole in restored}
    left = [hole for hole in state.holes if (hole.partition, hole.first_offset) not in back]
    kept = (*left, *(hole for hole in holes if hole not in left))[-HOLES_MAX:]
    listed = [[h.partition, h.first_offset, h.last_offset, h.key, h.reason] for h in kept]
    return {
        TOPIC_ID: str(state.topic_id),
        TOPIC: topic,
        RUN: run,
        WATERMARKS: msgspec.json.encode(merged(state.watermarks, watermarks)).decode(),
        HOLES: msgspec.json.encode(listed).decode(),
        NUM_RETRIES: "0",
    }


def merged(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    """The watermarks after a commit, by partition."""
    return dict(sorted({**before, **after}.items()))


def wanted_columns(topic: str, columns: Mapping[str, ColumnType]) -> tuple[Column, ...]:
    """A topic's typed columns, checked for Iceberg. Raises SchemaConflict."""
    hint = "remove it from the topic's columns"
    try:
        wanted = typed_columns(columns)
    except ValueError as error:
        raise SchemaConflict(f"topic {topic!r}: {error}", hint) from error
    for column in wanted:
        if "." in column.name or not column.name or column.name.lower() == DAY_FIELD:
            raise SchemaConflict(
                f"topic {topic!r} has a column {column.name!r}, a name that its table cannot have",
                hint,
            )
    return wanted


def missing_columns(
    schema: Schema, wanted: Sequence[Column], topic: str, table: str
) -> tuple[Column, ...]:
    """The wanted columns that the table lacks. Raises SchemaConflict, TableChanged."""
    for base in BASE:
        field = next((f for f in schema.fields if f.field_id == base.field_id), None)
        if field is None or field.name != base.name or field.field_type != iceberg_type(base.type):
            raise TableChanged(
                f"the table {table} was changed: its column {base.field_id} is"
                f" {'missing' if field is None else f'{field.name} {field.field_type}'}, not"
                f" {base.name} {iceberg_type(base.type)}",
                "restore the column's name and type",
            )
    by_name = {field.name.lower(): field for field in schema.fields}
    missing = []
    for column in wanted:
        field = by_name.get(column.name.lower())
        if field is None:
            missing.append(column)
        elif field.name != column.name or field.field_type != iceberg_type(column.type):
            raise SchemaConflict(
                f"topic {topic!r} wants the column {column.name} as {column.type}, and the table"
                f" {table} has it as {field.name} {field.field_type}",
                "give the topic's column its earlier type, or rename the column of the table",
            )
        elif field.required:
            raise SchemaConflict(
                f"the column {column.name} of the table {table} is required, and a record of topic"
                f" {topic!r} may lack it",
                "make the column of the table optional",
            )
    return tuple(missing)


def check_layout(metadata: TableMetadata, table: str) -> None:
    """Checks that the table is partitioned as our files are. Raises TableChanged."""
    if [_key(f) for f in metadata.spec().fields] != [_key(f) for f in partition_spec().fields]:
        raise TableChanged(
            f"the table {table} was changed: it is partitioned by {metadata.spec()}, not by the day"
            " of the timestamp",
            f"partition it by day(timestamp), with the name {DAY_FIELD}, again",
        )


def sort_order_id(metadata: TableMetadata) -> int | None:
    """The table's id of the sort order that our files have."""
    wanted = [_sort_key(field) for field in sort_order().fields]
    for order in metadata.sort_orders:
        if [_sort_key(field) for field in order.fields] == wanted:
            return order.order_id
    return None


def partition_spec() -> PartitionSpec:
    """By the day of the timestamp."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    return PartitionSpec(
        PartitionField(source_id=3, field_id=1000, transform=DayTransform(), name=DAY_FIELD)
    )


def sort_order() -> SortOrder:
    """By partition and offset."""
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    return SortOrder(
        *(SortField(source_id=source, transform=IdentityTransform()) for source in (1, 2))
    )


def new_schema(columns: Sequence[Column]) -> Schema:
    """The schema of a new table, numbered from 1 without gaps, as catalogs do."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    fields = [
        NestedField(
            field_id=base.field_id,
            name=base.name,
            field_type=iceberg_type(base.type),
            required=base.required,
        )
        for base in BASE
    ]
    fields += [
        NestedField(
            field_id=number,
            name=column.name,
            field_type=iceberg_type(column.type),
            required=False,
        )
        for number, column in enumerate(columns, len(BASE) + 1)
    ]
    return Schema(*fields)


def iceberg_type(kind: BaseType) -> IcebergType:
    """The type of a column in a table."""
    from pyiceberg import types

    made: dict[BaseType, type[IcebergType]] = {
        "int": types.IntegerType,
        "string": types.StringType,
        "long": types.LongType,
        "double": types.DoubleType,
        "boolean": types.BooleanType,
        "timestamp": types.TimestamptzType,
    }
    return made[kind]()


def _key(field: PartitionField) -> tuple[int, str, str]:
    return (field.source_id, field.name, str(field.transform))


def _sort_key(field: SortField) -> tuple[int, str, str]:
    return (field.source_id, str(field.transform), str(field.direction))
