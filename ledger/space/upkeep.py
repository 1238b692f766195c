"""What the ledger is asked about retention and collection: the half of ``Ledger`` that upkeeps it.

As in ``ledger.py``: writing methods take the ledger lock around one short transaction, reading
methods take none. What takes long (sums over extents, the search for free objects) is read before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger import ages, dedupe, topics
from ledger.ages import Clocks
from ledger.dedupe import DedupeLimits
from ledger.lake.types import Evicted, LakeTable
from ledger.log import backup
from ledger.session import Session
from ledger.space import collection, marking, reclaim, retention, settle
from ledger.space.collection import Dropped, Rule, Spent
from ledger.space.retention import Eviction, Look
from ledger.space.settle import Settled
from ledger.types import PartitionState, Topic


class Upkeep:
    """Methods of ``Ledger``; made by it alone."""

    _session: Session
    _dedupe_limits: DedupeLimits

    # The clock of ages

    def age_ms(self, now: Clocks) -> int:
        """The age time now, by the last note."""
        with self._session.reading() as connection:
            return ages.age_ms(ages.aged_of(backup.meta(connection, ages.NOTE)), now)

    # Retention

    def answered(self, topic_id: int, key: str, now_ms: int) -> bool:
        """Whether a request with this idempotency key was stored and is remembered."""
        with self._session.reading() as connection:
            return dedupe.knows(connection, topic_id, key, now_ms, self._dedupe_limits)

    def dedupe_kept_ms(self, now_ms: int) -> int | None:
        """How long idempotency keys are known, where they are too many for the whole window."""
        with self._session.reading() as connection:
            return dedupe.kept_ms(connection, now_ms, self._dedupe_limits)

    def changed_topics(self, after: tuple[int, int], limit: int = 1_000) -> list[tuple[int, int]]:
        """(catalog version of its last change, topic id) behind such a pair; deleted ones too."""
        with self._session.reading() as connection:
            return retention.changed_topics(connection, *after, limit)

    def look_for_evictions(self, topic: Topic, now_ms: int | None) -> Look:
        """What a topic's limits evict; without a time, its time to live evicts nothing."""
        with self._session.snapshot() as connection:
            return retention.look(connection, topic, now_ms)

    def carry_out(self, evictions: Sequence[Eviction]) -> list[Evicted]:
        """Evicts what was decided; what was decided before its topic changed is passed over."""
        with self._session.writing() as connection:
            return retention.evict(connection, evictions)

    def tell_version(self, tell: Callable[[int], None]) -> None:
        """Calls ``tell`` with the catalog version, under the ledger lock."""
        with self._session.lock, self._session.reading() as connection:
            tell(retention.catalog_version(connection))

    def evict(self, now_ms: int) -> list[Evicted]:
        """All that the limits of all topics evict now."""
        done: list[Evicted] = []
        for _, topic_id in self.changed_topics((-1, 0), 1 << 62):
            with self._session.reading() as connection:
                topic = topics.topic_by_id(connection, topic_id)
            assert topic is not None
            while found := self.carry_out(self.look_for_evictions(topic, now_ms).evictions):
                done += found
        while self.mark_free(now_ms):
            pass
        return done

    def trim(self, name: str, partition: int, before_seq: int) -> PartitionState:
        """The partition begins at ``before_seq``, or where it began if that is later.

        Raises TopicMissing, PartitionMissing, TrimBeyondHead.
        """
        while True:
            with self._session.snapshot() as connection:
                trim = retention.trim_to(connection, name, partition, before_seq)
                if trim is None:
                    return retention.state_of(connection, name, partition)
            self.carry_out([trim])  # nothing, when the topic changed since: look again

    def mark_free(self, now_ms: int) -> bool:
        """Notes since when objects are free, some at a time; whether there may be more."""
        with self._session.snapshot() as connection:
            marks = marking.markable(connection)
        if marks.partitions:
            with self._session.writing() as connection:
                marking.mark(connection, marks, now_ms)
        return marks.more

    def mark_void(self, now_ms: int, after_number: int = 0) -> int | None:
        """Marks objects without a live record among some commits; the last of them, None at
        the end."""
        with self._session.snapshot() as connection:
            marks, last = marking.markable_void(connection, after_number)
        if marks.commits:
            with self._session.writing() as connection:
                marking.mark(connection, marks, now_ms)
        return last

    # Space

    def clear_results(self, after: int, to: int) -> int:
        """Clears results of commits after ``after`` up to ``to``, which nobody asks for any more;
        some at a time. Returns up to where."""
        with self._session.snapshot() as connection:
            numbers, looked = reclaim.uncleared(connection, after, to)
        if numbers:
            with self._session.writing() as connection:
                reclaim.clear(connection, numbers)
        return looked

    def give_pages_back(self) -> bool:
        """Gives some free pages back to the file system; False when there are few."""
        with self._session.reading() as connection:
            if not reclaim.has_spare_pages(connection):
                return False
        with self._session.lock, self._session.reading() as connection:
            reclaim.give_pages_back(connection)
        return True

    # Collection of what is not needed any more

    def ask_settled(self) -> int:
        """Asks the daemon how far commits are settled; see ``settled``."""
        with self._session.writing() as connection:
            return settle.ask(connection)

    def settle_wanted(self) -> int | None:
        """The question that is not answered yet."""
        with self._session.reading() as connection:
            return settle.unanswered(connection)

    def set_settled(self, settled: Settled) -> None:
        with self._session.writing() as connection:
            settle.give(connection, settled)

    def settled(self) -> Settled | None:
        """The last answer."""
        with self._session.reading() as connection:
            return settle.answer(connection)

    def collection_rule(
        self,
        now_ms: int,
        grace_ms: int,
        epoch_floor: int,
        commits_to: int,
        *,
        run_lives: bool = False,
    ) -> Rule:
        """What a collection may take, by the read leases of now, and the compaction if it lives."""
        with self._session.snapshot() as connection:
            return collection.rule(
                connection, now_ms, grace_ms, epoch_floor, commits_to, run_lives=run_lives
            )

    def spent_count(self) -> int:
        """How many objects wait for their end."""
        with self._session.snapshot() as connection:
            return collection.spent_count(connection)

    def unmarked_after(self, after_number: int, limit: int) -> tuple[list[Spent], int | None]:
        """Objects that nothing needs and that are not marked yet, among the next commits."""
        with self._session.snapshot() as connection:
            return collection.unmarked_after(connection, after_number, limit)

    def named_without_rows(self, after_key: str, limit: int) -> list[tuple[str, str]]:
        """(key, locator) of spent objects that a recovery took as gone."""
        with self._session.reading() as connection:
            return collection.named_without_rows(connection, after_key, limit)

    def spent_after(self, rule: Rule, after: tuple[int, int], limit: int = 1_000) -> list[Spent]:
        """Objects that nothing needs, behind (free_ms, commit number); leases are not looked at."""
        with self._session.reading() as connection:
            return collection.spent_after(connection, rule, after, limit)

    def spent_among(self, rule: Rule, objects: Sequence[Spent]) -> list[Spent]:
        """Those that may go now."""
        with self._session.snapshot() as connection:
            return collection.spent_among(connection, rule, objects)

    def name_spent(self, rule: Rule, objects: Sequence[Spent]) -> list[Spent]:
        """Names those that may go now for deletion; returns them."""
        with self._session.writing() as connection:
            return collection.name_spent(connection, rule, objects)

    def forget_spent(self, keys: Sequence[str]) -> None:
        """These objects are gone from the store: their rows go too."""
        with self._session.writing() as connection:
            collection.forget_spent(connection, keys)

    def quarantined_objects(self) -> int:
        with self._session.reading() as connection:
            return collection.quarantined(connection)

    # Collection of dropped files of the lake

    def dropped_files(self, rule: Rule, after_path: str = "", limit: int = 1_000) -> list[Dropped]:
        """Files whose rows are elsewhere, and that may go now, by path."""
        with self._session.reading() as connection:
            return collection.dropped(connection, rule, after_path, limit)

    def name_known_files(self, paths: Sequence[str]) -> None:
        """Names those of the files of the lake for deletion that the ledger knows."""
        with self._session.writing() as connection:
            collection.name_known_files(connection, paths)

    def move_table(self, table: LakeTable, metadata_location: str) -> bool:
        """Notes where a table's metadata is now; False when a switch was quicker."""
        with self._session.writing() as connection:
            return collection.move_table(connection, table, metadata_location)

    def named_files(self, after_path: str = "", limit: int = 1_000) -> list[str]:
        """Files of the lake that are named for deletion, by path."""
        with self._session.reading() as connection:
            return collection.named_files(connection, after_path, limit)

    def forget_files(self, paths: Sequence[str]) -> None:
        """These files are gone from the store: their rows go too."""
        with self._session.writing() as connection:
            collection.forget_files(connection, paths)
