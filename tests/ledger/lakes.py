"""A compaction in miniature for the ledger's tests: switches made of plans, without files.

``switches_of`` plans as a compaction does and tells the switch that follows from it: one file per
topic and group of partitions, or the records of each partition over two files, interleaved, as
two days' are.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ledger import commits
from ledger.lake import lake_tables, runs
from ledger.lake.types import Hole, LakeRange, NewFile, PlannedObject, TableSwitch
from ledger.ledger import Ledger
from ledger.types import Extent
from tests.ledger.requests import Request, draft_of, lease


def commit(ledger: Ledger, counter: int, *requests: Request) -> None:
    """Commits the requests as one object with a key by ``counter``."""
    ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)


def plan_all(
    ledger: Ledger, to_commit: int | None = None, page: int = 1_000,
    topic_ids: frozenset[int] | None = None,
) -> list[PlannedObject]:  # fmt: skip
    """A whole plan up to a commit, by pages."""
    head = ledger.read(commits.latest_number) if to_commit is None else to_commit
    planned: list[PlannedObject] = []
    while some := ledger.read(
        lake_tables.plan_objects, planned[-1].commit_number if planned else 0, head, page, topic_ids
    ):
        planned += some
    return planned


def switches_of(
    planned: Sequence[PlannedObject], run: str, bad_keys: AbstractSet[str] = frozenset(),
    days: int = 1,
) -> list[TableSwitch]:  # fmt: skip
    """What a run over the plan tells; objects of ``bad_keys`` cannot be read."""
    extents: dict[int, dict[int, list[Extent]]] = {}
    holes: dict[int, list[Hole]] = {}
    watermarks: dict[int, dict[int, int]] = {}
    for item in planned:
        for one in item.extents:
            watermarks.setdefault(one.topic_id, {})[one.partition] = one.last_offset
            if item.key in bad_keys:
                holes.setdefault(one.topic_id, []).append(
                    Hole(one.topic_id, one.partition, one.first_offset, one.last_offset,
                         item.key, "torn")
                )  # fmt: skip
            else:
                extents.setdefault(one.topic_id, {}).setdefault(one.partition, []).append(one)
    return [
        TableSwitch(
            topic_id, f"headgate.t{topic_id}", f"{run}.json", marks,
            tuple(
                file
                for day in range(days)
                if (file := _file(extents.get(topic_id, {}), f"{run}-{topic_id}-{day}", day, days))
            ),
            (), tuple(holes.get(topic_id, ())),
        )
        for topic_id, marks in sorted(watermarks.items())
    ]  # fmt: skip


def _file(partitions: dict[int, list[Extent]], name: str, day: int, days: int) -> NewFile | None:
    ranges = []
    for partition, extents in sorted(partitions.items()):
        rows: list[int] = []
        for one in extents:
            rows += [o for o in range(one.first_offset, one.last_offset + 1) if o % days == day]
        if rows:
            first = min(one.first_timestamp_ms for one in extents)
            last = max(one.last_timestamp_ms for one in extents)
            ranges.append(
                LakeRange(partition, rows[0], rows[-1], len(rows), 10 * len(rows), first, last)
            )
    if not ranges:
        return None
    total = sum(one.rows for one in ranges)
    return NewFile(f"file:///lake/{name}.parquet", 5 * total, total, tuple(ranges))


def compact(
    ledger: Ledger, run: str, now_ms: int = 100, bad_keys: AbstractSet[str] = frozenset(),
    to_commit: int | None = None, topic_ids: frozenset[int] | None = None, days: int = 1,
) -> list[TableSwitch]:  # fmt: skip
    """A whole run up to a commit; what it told."""
    ledger.write(runs.begin, run, "test", now_ms)
    planned = plan_all(ledger, to_commit, topic_ids=topic_ids)
    switches = switches_of(planned, run, bad_keys, days)
    ledger.write(lake_tables.switch, run, switches, now_ms)
    ledger.write(runs.end, run, now_ms)
    return switches
