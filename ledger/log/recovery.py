"""What a recovered ledger must hold before objects are taken that no entry lists.

Vocabulary (protocol 6): an object is *listed* when an entry of the owner's log covers its commit.
Unlisted ones may have been acknowledged, with offsets that nobody knows any more. So their
records get offsets behind every offset that could have been given: a *gap* as long as all of them
comes first. Gaps stay forever; no record has an offset in one.

Called inside a write transaction by whoever recovers, with no daemon on the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from ledger import ages, commits, epochs, notes, topics
from ledger.decide import PartitionKey
from ledger.dedupe import DedupeLimits
from ledger.errors import DraftInvalid
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.tx import WriteTx
from ledger.types import Commit, CommitDraft, Gap, TopicConfig

REASON = "recovery"
# Topic ids that objects which cannot be read may hold, and no entry lists: each topic that is
# created is news that an entry tells within seconds.
IDS_SKIPPED = 1 << 20


class TopicSeen(Struct, frozen=True):
    """A topic as an object's footer names it; ``partitions``: more than the greatest number."""

    topic_id: int
    name: str
    partitions: int
    created_ms: int


def begin_history(tx: WriteTx, name: str, mark: Mark) -> None:
    """After the entries up to ``mark`` were applied: from here on it is another history."""
    backup.keep_ids_above(tx, mark)
    backup.forget_named(tx)
    notes.put(tx, "history", name)


def prepare(
    tx: WriteTx, seen: list[TopicSeen], counts: dict[PartitionKey, int], everywhere: int, epoch: int
) -> tuple[list[str], list[Gap]]:
    """Before unlisted objects are taken: topics, gaps, the epoch.

    Entries may be older than the last ``epoch`` that an object was named by; names of objects
    must not come again.
    """
    epochs.advance_to(tx, epoch)
    names = restore_topics(tx, seen)
    return names, declare_gaps(tx, counts, everywhere)


def take(
    tx: WriteTx,
    drafts: Iterable[CommitDraft],
    told: Callable[[Commit | DraftInvalid], None],
    limits: DedupeLimits,
) -> None:
    """Commits unlisted objects in one transaction, each as of the time it was made.

    ``told`` gets what became of each before the next one is asked for.
    """
    aged = ages.noted(tx)
    for draft in drafts:
        now_ms = ages.of_wall_time(aged, draft.created_ms)
        try:
            told(commits.commit(tx, draft, now_ms, limits))
        except DraftInvalid as error:
            told(error)


def restore_topics(tx: WriteTx, seen: Sequence[TopicSeen]) -> list[str]:
    """Makes what no entry lists: topics and partitions. Returns the names of those changed.

    Settings of a topic that is not listed are lost: it gets the default ones. Names are unique
    among the living, so of two topics with one name the older was deleted before.
    """
    topics.decide_tables(tx)  # what entries list has its table before what they do not
    changed: list[str] = []
    for topic in sorted(seen, key=lambda each: each.topic_id):
        there = topics.by_id(tx, topic.topic_id)
        if there is None:
            topics.restore(
                tx,
                topic.topic_id,
                topic.name,
                TopicConfig(partitions=topic.partitions),
                topic.created_ms,
            )
        elif there.deleted_ms is None and there.config.partitions < topic.partitions:
            topics.grow(tx, there, topic.partitions)
        else:
            continue
        changed.append(topic.name)
    return changed


def declare_gaps(tx: WriteTx, counts: Mapping[PartitionKey, int], everywhere: int) -> list[Gap]:
    """A gap of ``counts`` offsets, and ``everywhere`` more, at the end of each partition.

    ``everywhere`` stands for objects that cannot be read: it is unknown whose records they held.
    """
    if everywhere:
        tx.execute(
            "UPDATE state SET last_topic_id = last_topic_id + ? WHERE id = 1", (IDS_SKIPPED,)
        )
    gaps: list[Gap] = []
    for topic_id, partition, next_seq in tx.execute(
        "SELECT topic_id, partition, next_seq FROM partitions WHERE deleted = 0"
        " ORDER BY topic_id, partition"
    ).fetchall():
        length = counts.get((topic_id, partition), 0) + everywhere
        if length:
            gaps.append(Gap(topic_id, partition, next_seq, next_seq + length - 1, REASON))
    tx.executemany(
        "INSERT INTO gaps (topic_id, partition, gap_from, gap_to, reason) VALUES (?, ?, ?, ?, ?)",
        [(g.topic_id, g.partition, g.gap_from, g.gap_to, g.reason) for g in gaps],
    )
    tx.executemany(
        "UPDATE partitions SET next_seq = ? WHERE topic_id = ? AND partition = ?",
        [(g.gap_to + 1, g.topic_id, g.partition) for g in gaps],
    )
    # The next entry tells the partitions of topics that changed.
    for topic_id in sorted({gap.topic_id for gap in gaps}):
        topics.touch(tx, topic_id)
    return gaps
