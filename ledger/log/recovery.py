"""What a recovered ledger must hold before it takes objects that no entry lists.

Vocabulary (docs/protocol.md 6): an object is *listed* if an entry of the owner's log covers its
commit. An unlisted one may have been acknowledged with offsets that are not known any more. So its
records get offsets above every offset that could have been given: first comes a *gap* as long as
all of them. Gaps stay forever; no record has an offset in one.

Called by a recovery, with no daemon on the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from ledger import ages, commits, cursors, epochs, notes, topics
from ledger.decide import PartitionKey
from ledger.dedupe import DedupeLimits
from ledger.errors import DraftInvalid
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.tx import WriteTx
from ledger.types import Commit, CommitDraft, Gap, TopicConfig

REASON = "recovery"
# More topics than may have been created since the last entry: an entry carries each within seconds.
# Objects that cannot be read may hold their ids.
IDS_SKIPPED = 1 << 20
NO_CURSOR = 0  # no cursor has this id


class TopicSeen(Struct, frozen=True):
    """A topic as an object's footer names it; ``partitions`` is above the greatest number seen."""

    topic_id: int
    name: str
    partitions: int
    created_ms: int


def begin_history(tx: WriteTx, name: str, mark: Mark, *, followed: bool = False) -> None:
    """After the entries up to ``mark`` were applied: begins another history. ``followed``: each
    entry was applied as it was written, so nobody can have put an older log back."""
    notes.put(tx, backup.EVENT_HISTORY, backup.event_history(tx) if followed else name)
    backup.keep_ids_above(tx, mark)
    backup.forget_named(tx)
    # Carried as a whole, so entries may have brought some of topics that an image lacks.
    for table in ("gaps", "lost"):
        tx.execute(f"DELETE FROM {table} WHERE topic_id NOT IN (SELECT topic_id FROM topics)")
    notes.put(tx, "history", name)


def prepare(
    tx: WriteTx, told: Mark, seen: list[TopicSeen], counts: dict[PartitionKey, int],
    everywhere: int, epoch: int,
) -> tuple[list[str], list[Gap]]:  # fmt: skip
    """Before unlisted objects are taken: topics, gaps, the epoch. ``told`` is what the log has.

    Entries may be older than the last ``epoch`` that an object was named by; names of objects
    must not come again.
    """
    epochs.advance_to(tx, epoch)
    names = restore_topics(tx, seen, told.last_topic_id)
    return names, declare_gaps(tx, counts, everywhere)


def take(
    tx: WriteTx,
    drafts: Iterable[CommitDraft],
    taken: Callable[[Commit | DraftInvalid], None],
    limits: DedupeLimits,
) -> None:
    """Commits unlisted objects in one transaction, each as of the time it was created.

    What our own cursors moved or settled with is void: it is copied again, from a source that has
    other offsets now. Clients' cursors are judged as usual, after all that the object's requests
    tell of them: each setting that one of them knew was made before the object's commit.

    ``taken`` gets the outcome of each before the next one is requested.
    """
    aged = ages.noted(tx)
    for draft in drafts:
        now_ms = ages.of_wall_time(aged, draft.created_ms)
        draft = _with_cursors(tx, draft)
        try:
            taken(commits.commit(tx, draft, now_ms, limits))
        except DraftInvalid as error:
            taken(error)


def _with_cursors(tx: WriteTx, draft: CommitDraft) -> CommitDraft:
    conditions = list(draft.conditions)
    for index, condition in enumerate(conditions):
        advance = condition.advance
        if advance is not None and advance.is_ours:
            unowned = msgspec.structs.replace(advance, cursor_id=NO_CURSOR)
            conditions[index] = msgspec.structs.replace(condition, advance=unowned)
        elif advance is not None:
            cursors.learn(tx, advance, draft.created_ms)
    return msgspec.structs.replace(draft, conditions=tuple(conditions))


def restore_topics(tx: WriteTx, seen: Sequence[TopicSeen], told: int) -> list[str]:
    """Creates topics and partitions that no entry lists. Returns the names of the topics that
    changed.

    The log has every topic of an id up to ``told``. What is not there was deleted, and its rows
    have gone: it is not created again, and its records are void.

    Settings of such a topic are lost: it gets the defaults. Names of live topics are unique, so of
    two topics with one name the older was deleted before.
    """
    topics.decide_tables(tx)  # listed topics get their tables first
    changed: list[str] = []
    for topic in sorted(seen, key=lambda each: each.topic_id):
        there = topics.row_of(tx, topic.topic_id)
        if there is None and topic.topic_id <= told:
            continue
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
    """A gap of ``counts`` plus ``everywhere`` offsets at the end of each partition.

    ``everywhere`` stands for objects that cannot be read: nothing says whose records they hold.
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
    # The next entry carries the partitions of topics that changed.
    for topic_id in sorted({gap.topic_id for gap in gaps}):
        topics.touch(tx, topic_id)
    return gaps
