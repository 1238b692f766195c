"""Where the records of a topic go: along routers, and to topics of dead letters.

The ways form no cycle: records would go around forever. What is paused counts, because it may be
resumed at any time; a topic of dead letters counts whatever the policy is, because that may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledger.tx import ReadTx

_EDGES_SQL = """SELECT source_id, dest_id FROM routers WHERE deleted_ms IS NULL
    UNION SELECT topic_id, dead_letter_id FROM subscriptions
        WHERE deleted_ms IS NULL AND dead_letter_id IS NOT NULL
    ORDER BY 1, 2"""


def edges(tx: ReadTx) -> dict[int, list[int]]:
    """Where the records of a topic are copied, by topic ids."""
    found: dict[int, list[int]] = {}
    for source_id, dest_id in tx.execute(_EDGES_SQL):
        found.setdefault(source_id, []).append(dest_id)
    return found


def path(edges: Mapping[int, Iterable[int]], start: int, goal: int) -> list[int] | None:
    """A shortest way along the edges, both ends included; None if there is none."""
    came_from = {start: start}
    reached = [start]
    for at in reached:
        if at == goal:
            way = [at]
            while way[-1] != start:
                way.append(came_from[way[-1]])
            return way[::-1]
        for following in edges.get(at, ()):
            if following not in came_from:
                came_from[following] = at
                reached.append(following)
    return None


def cycle(tx: ReadTx, source_id: int, dest_id: int) -> list[str] | None:
    """The topics, by name, of the cycle that another way from source to destination would close."""
    way = path(edges(tx), dest_id, source_id)
    if way is None:
        return None
    sql = "SELECT name FROM topics WHERE topic_id = ?"
    return [str(tx.execute(sql, (topic_id,)).fetchone()[0]) for topic_id in (source_id, *way)]
