"""Everything that there is of a kind in the lake, asked for page by page.

However many files, tables or holes there are, an answer of the owner of the ledger has a page of
them. The pages are of several committed states; a caller that needs more holds a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ledger.lake import lake_files, lake_tables, quarantine
from ledger.lake.types import Hole, LakeFile, LakeRange, LakeState, LakeTable, Quarantined
from ledger.tx import Reads

PAGE = 1_000
# Topics in one question about several; one may have 10,000 partitions.
PAGE_TOPICS = 100


def states(ledger: Reads, topic_ids: Sequence[int]) -> Iterator[LakeState]:
    """How far topics are in the lake, in their order."""
    for start in range(0, len(topic_ids), PAGE_TOPICS):
        yield from ledger.read(lake_tables.states, list(topic_ids[start : start + PAGE_TOPICS]))


def files_of_each(ledger: Reads, topic_ids: Sequence[int]) -> Iterator[list[LakeFile]]:
    """The live files of the tables of topics, in the order of these."""
    start = 0
    while start < len(topic_ids):
        asked = list(topic_ids[start : start + PAGE])
        for topic_id, files in zip(asked, ledger.read(lake_files.of_topics, asked), strict=False):
            yield files if len(files) < PAGE else [*files_of(ledger, topic_id)]
            start += 1


def files_of(ledger: Reads, topic_id: int, with_dropped: bool = False) -> Iterator[LakeFile]:
    """The files of a topic's table, by number."""
    after = 0
    while True:
        page = ledger.read(lake_files.of_topic, topic_id, with_dropped, after, PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].file_id


def ranges_of(ledger: Reads, topic_id: int) -> dict[int, tuple[LakeRange, ...]]:
    """The ranges of each live file of a topic by its ``file_id``."""
    found: dict[int, tuple[LakeRange, ...]] = {}
    after = 0
    while page := ledger.read(lake_files.ranges, topic_id, after):
        found |= page
        after = max(page)
    return found


def tables(ledger: Reads) -> Iterator[LakeTable]:
    """All tables by topic id, also those of deleted topics."""
    after = 0
    while True:
        page = ledger.read(lake_tables.every, after, PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].topic_id


def holes_of(ledger: Reads, topic_id: int) -> Iterator[Hole]:
    """A topic's offsets that are in quarantine or given up, in order."""
    after = -1, 0
    while True:
        page = ledger.read(lake_tables.holes, topic_id, after, PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].partition, page[-1].first_offset


def quarantined(ledger: Reads) -> list[Quarantined]:
    """All holes whose objects are kept, by object."""
    found: list[Quarantined] = []
    after = 0, 0, 0
    while True:
        page = ledger.read(quarantine.rows, after, PAGE)
        found += page
        if len(page) < PAGE:
            return sorted(found, key=lambda one: one.hole.key)
        hole = page[-1].hole
        after = hole.topic_id, hole.partition, hole.first_offset
