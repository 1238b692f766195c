"""What there is to compact, and what a compaction would do. Only reads the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from compaction.access.ledger_access import LedgerAccess
from ledger import commits, notes, topics
from ledger.lake import catalog, lake_tables, runs
from ledger.lake.types import PlannedObject
from ledger.log import backup
from ledger.table_names import NAMESPACE
from ledger.tx import Transactions
from ledger.types import Topic

# A page may have a thousand extents an object; the daemon encodes it in one piece.
PAGE_OBJECTS = 100
HISTORY_NOTE = "lake_history"  # of the ledger that was last compared with the tables


class Backlog(Struct, frozen=True):
    """What a run would do: objects, bytes of extents, topics by name. ``unfinished``: a former run
    died, the ledger was recovered, or the catalog lost a table, so tables and ledger must be
    compared."""

    to_commit: int
    objects: int
    bytes: int
    topics: dict[str, int]
    unfinished: bool


class UnknownTopics(ValueError):
    """Topics that were asked for and are not there."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"there is no topic {', '.join(map(repr, names))}")


def look(ledger: LedgerAccess, chosen: frozenset[str], own_catalog: bool = True) -> Backlog:
    """What there is to do, up to the head of now. ``chosen`` are topics by name, empty for all.

    ``own_catalog``: the owner of the ledger keeps the pointers, so a lost one is seen here.
    """
    to_commit = ledger.read(commits.latest_number)
    names = {topic.topic_id: topic.name for topic in topics_of(ledger, chosen)}
    objects, total = 0, 0
    by_topic: dict[str, int] = {}
    for planned in planned_objects(ledger, 0, to_commit, frozenset(names)):
        objects += 1
        for extent in planned.extents:
            total += extent.byte_length
            name = names[extent.topic_id]
            by_topic[name] = by_topic.get(name, 0) + extent.byte_length
    unfinished = ledger.read(runs.unfinished) is not None or (
        bool(ledger.read(lake_tables.every, 0, 1))
        and ledger.read(notes.get, HISTORY_NOTE) != ledger.read(backup.history)
    )
    tables = ledger.read(lake_tables.named, False) if own_catalog and not unfinished else {}
    if tables:
        there = ledger.catalog(catalog.pointers, NAMESPACE)
        unfinished = any(name.removeprefix(f"{NAMESPACE}.") not in there for name in tables)
    return Backlog(to_commit, objects, total, dict(sorted(by_topic.items())), unfinished)


def topics_of(ledger: Transactions, chosen: frozenset[str] = frozenset()) -> list[Topic]:
    """The live topics of these names, all without names. Raises UnknownTopics."""
    found: list[Topic] = []
    after = ""
    while page := ledger.read(topics.page, after):
        found += [topic for topic in page if not chosen or topic.name in chosen]
        after = page[-1].name
    missing = chosen - {topic.name for topic in found}
    if missing:
        raise UnknownTopics(sorted(missing))
    return found


def planned_objects(
    ledger: Transactions, after: int, to_commit: int, topic_ids: frozenset[int]
) -> Iterator[PlannedObject]:
    """What L1 does not hold of these topics, in commit order, a page of the ledger at a time."""
    while page := ledger.read(lake_tables.plan_objects, after, to_commit, PAGE_OBJECTS, topic_ids):
        yield from page
        after = page[-1].commit_number
