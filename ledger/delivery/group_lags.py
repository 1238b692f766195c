"""The lags of groups of Kafka's consumers, page by page.

The lag of a group in a topic is how many records follow what it has committed, of those that are
there: of what was evicted nothing is left to do. A partition of which it has committed nothing
does not count. A page has a bounded number of committed offsets, whatever the groups and topics;
another process may commit between two pages.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger import changes
from ledger.tx import ReadTx

_PAGE_SQL = """WITH page AS (
        SELECT cursor_id, partition, seq FROM cursor_positions
        WHERE (cursor_id, partition) > (?, ?) ORDER BY cursor_id, partition LIMIT ?
    )
    SELECT page.cursor_id, max(page.partition), count(*), c.kind, c.name,
        sum(max(0, h.next_seq - 1 - max(page.seq, h.earliest_seq - 1)))
    FROM page JOIN cursors AS c ON c.cursor_id = page.cursor_id
    LEFT JOIN partitions AS h ON c.kind = 'kafka'
        AND h.topic_id = CAST(substr(c.name, 7) AS INTEGER) AND h.partition = page.partition
    GROUP BY page.cursor_id ORDER BY page.cursor_id"""

Place = tuple[int, int]
BEGINNING: Place = (0, -1)


class LagPart(NamedTuple):
    """The lag of a group in a topic, or in those of its partitions that are on a page."""

    cursor_id: int
    topic_id: int
    group: str
    partitions: int
    lag: int


class LagPage(NamedTuple):
    """Where the next page begins; None: this is the last one."""

    parts: list[LagPart]
    after: Place | None


def page(tx: ReadTx, after: Place, limit: int) -> LagPage:
    """The lags by the next ``limit`` offsets of all cursors, in the order of their ids."""
    parts, seen, last = [], 0, after
    for cursor_id, partition, count, kind, name, lag in tx.execute(_PAGE_SQL, (*after, limit)):
        seen += count
        last = (cursor_id, partition)
        if kind == "kafka":
            _, topic_id, group = name.split("/", 2)
            parts.append(LagPart(cursor_id, int(topic_id), group, count, lag or 0))
    return LagPage(parts, last if seen == limit else None)


def state(tx: ReadTx) -> tuple[int, int, int]:
    """Changes with whatever changes a lag."""
    found = tx.execute("SELECT commit_number, catalog_version FROM state WHERE id = 1").fetchone()
    return (*found, changes.latest(tx))
