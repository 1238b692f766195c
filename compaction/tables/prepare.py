"""Prepares a topic's table before a run writes to it: finds or makes it, adds columns, checks it.

A missing table is made, or registered again if only the catalog has lost it. The table of a former
topic is renamed. A table that is not Headgate's, or not as the ledger left it, is refused and not
touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compaction.tables.errors import ForeignTable, LakeError, TableChanged, busy
from compaction.tables.lake import Lake
from compaction.tables.names import identifier_of, table_location
from compaction.tables.schema import Column, typed_columns
from compaction.tables.table_state import (
    NUM_RETRIES,
    check_layout,
    check_not_behind,
    check_not_rolled_back,
    iceberg_type,
    missing_columns,
    new_properties,
    new_schema,
    owner_of,
    partition_spec,
    sort_order,
    state_of,
    wanted_columns,
)
from ledger.lake import pages
from ledger.lake.types import LakeTable
from ledger.table_names import NAMESPACE, former_name
from ledger.tx import Reads
from ledger.types import Topic

if TYPE_CHECKING:
    from pyiceberg.table import Table


TRIES_MAX = 8  # changes by others that one preparation may meet


@dataclass(frozen=True)
class TopicTable:
    """A topic's table, ready to be written to. Plain data, which may be sent to executors.

    ``columns`` are the topic's typed columns with the table's ids. Data files are written below
    ``location``/data. ``made``: the table is new. ``registered``: the catalog had lost it, and the
    metadata that the ledger knows was registered again.
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


def prepare_tables(
    lake: Lake, topics: Iterable[Topic], ledger: Reads
) -> tuple[dict[int, TopicTable], list[TopicFailure]]:
    """The tables of ``topics`` by topic id, and the topics that cannot be compacted.

    Only the calling thread reads the ledger. Raises LakeUnusable, as ``Lake.attempt``.
    """
    listed = list(topics)
    states = pages.states(ledger, [topic.topic_id for topic in listed])
    wanted = [
        (topic, state.table, state.compacted) for topic, state in zip(listed, states, strict=True)
    ]

    found = lake.attempt(lambda item: prepare_table(lake, *item), wanted)
    tables: dict[int, TopicTable] = {}
    failures: list[TopicFailure] = []
    for (topic, *_), each in zip(wanted, found, strict=True):
        if isinstance(each, LakeError):
            failures.append(TopicFailure(topic.topic_id, topic.name, each))
        else:
            tables[topic.topic_id] = each
    return tables, failures


def prepare_table(
    lake: Lake, topic: Topic, known: LakeTable | None, compacted: Mapping[int, int]
) -> TopicTable:
    """A topic's table, made or evolved if needed. Raises TableRefused, LakeUnusable."""
    from pyiceberg.exceptions import CommitFailedException

    name = identifier_of(topic)
    wanted = wanted_columns(topic.name, topic.config.columns)
    for _ in range(TRIES_MAX):
        try:
            with lake.about(name):
                return _prepare(lake, topic, name, wanted, known, compacted)
        except CommitFailedException:
            continue  # another writer changed it: read it again
    raise busy(name, TRIES_MAX)


def _prepare(
    lake: Lake,
    topic: Topic,
    name: str,
    wanted: tuple[Column, ...],
    known: LakeTable | None,
    compacted: Mapping[int, int],
) -> TopicTable:
    loaded = _own(lake, name, topic)
    registered = made = False
    if loaded is None:
        if known is None:
            loaded, made = _make(lake, topic, name, wanted), True
        else:
            loaded, registered = register(lake, name, known.metadata_location), True
    state = state_of(loaded.metadata.properties, name)
    check_not_behind(state, compacted, name)
    check_not_rolled_back(loaded.metadata, state, name)
    check_layout(loaded.metadata, name)
    missing = missing_columns(loaded.schema(), wanted, topic.name, name)
    if missing:
        with loaded.update_schema() as update:
            for column in missing:
                update.add_column(column.name, iceberg_type(column.type), required=False)
    if loaded.metadata.properties.get(NUM_RETRIES) != "0":
        with loaded.transaction() as transaction:
            transaction.set_properties({NUM_RETRIES: "0"})
    ids = {field.name: field.field_id for field in loaded.schema().fields}
    return TopicTable(
        topic_id=topic.topic_id,
        topic=topic.name,
        table=name,
        location=loaded.location().rstrip("/"),
        columns=typed_columns(topic.config.columns, ids),
        watermarks=state.watermarks,
        metadata_location=loaded.metadata_location,
        made=made,
        registered=registered,
    )


def _own(lake: Lake, name: str, topic: Topic) -> Table | None:
    """The topic's table, or None. The table of a former topic is renamed."""
    from pyiceberg.exceptions import TableAlreadyExistsError

    loaded = lake.load(name)
    if loaded is None:
        return None
    owner = owner_of(loaded.metadata.properties, name)
    lake.check_has(loaded)
    if owner == topic.topic_id:
        return loaded
    former = former_name(name, owner)
    try:
        lake.catalog.rename_table(name, former)
    except TableAlreadyExistsError as error:
        raise ForeignTable(
            f"the table {name} belongs to a deleted topic (id {owner}), and its new name"
            f" {former} is taken",
            "rename or drop one of them",
        ) from error
    return None


def _make(lake: Lake, topic: Topic, name: str, columns: tuple[Column, ...]) -> Table:
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
    from pyiceberg.table import TableProperties

    schema = new_schema(columns)
    properties = new_properties(topic.topic_id, topic.name)
    properties[TableProperties.DEFAULT_NAME_MAPPING] = schema.name_mapping.model_dump_json()
    try:
        made = lake.catalog.create_table(
            name,
            schema,
            location=table_location(
                lake.place.lake, name.removeprefix(f"{NAMESPACE}."), topic.topic_id
            ),
            partition_spec=partition_spec(),
            sort_order=sort_order(),
            properties=properties,
        )
    except TableAlreadyExistsError as error:
        raise CommitFailedException(f"another process made {name}") from error
    if made.schema().name_mapping != schema.name_mapping:
        # A catalog may number the columns itself.
        with made.transaction() as transaction:
            mapping = made.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    return made


def register(lake: Lake, name: str, metadata_location: str) -> Table:
    """Registers the metadata that the ledger knows; the catalog has lost the table. Raises
    TableChanged, and CommitFailedException if another process has made one."""
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    from compaction.tables.fileio import LakeFileIO, properties_of

    files = LakeFileIO(properties_of(lake.place))
    if not files.new_input(metadata_location).exists():
        raise TableChanged(
            f"the table {name} is not in the catalog, and its metadata {metadata_location} is gone",
            "restore the table; its records are stored nowhere else",
        )
    try:
        return lake.catalog.register_table(name, metadata_location)
    except TableAlreadyExistsError as error:
        raise CommitFailedException(f"another process made {name}") from error
