"""The supervisor's upkeep thread: evicts, marks objects that are free, and raises the epoch.

Every ``retention_interval_ms`` it looks at the topics with limits (``daemon/upkeep/retention.py``
says which and by what time) and evicts in short transactions; where no topic has a limit that is
one read of the ledger. Each second it goes on with the lags of Kafka's groups (``group_lags.py``).
Every ten seconds it clears results of commits that nobody asks for any
more, and removes rows of what was deleted (``ledger/space/leftovers.py``). Every ten minutes it
raises the epoch in the names of new objects, and, where names of deleted objects wait for it, the
epoch floor; then it removes secrets of push subscriptions that are gone.

It writes its words of the segment, the ledger's partitions, marks and two notes. It waits for the
ledger lock, which the supervisor's tick must not: a shard that was stopped while it holds the lock
is killed by the tick meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from daemon.intake.commit_feed import followed_and_live
from daemon.upkeep.group_lags import GroupLags
from daemon.upkeep.retention import CLOCK_NOTE, Noted, Schedule, judge, note_of, noted_of
from delivery.push.secrets import SecretsFile, SecretsFileError
from ledger import commits, dedupe, epochs, notes, topics
from ledger.ages import NOTE as AGES_NOTE
from ledger.ages import Aged, Clocks, is_due
from ledger.ages import note_of as aged_note
from ledger.delivery import subscriptions
from ledger.errors import LedgerError
from ledger.lake.types import Evicted
from ledger.ledger import Ledger
from ledger.log.backup import Mark
from ledger.space import leftovers, marking, reclaim, retention, unreferenced
from ledger.space.leftovers import Heard
from ledger.space.retention import Eviction
from ledger.types import Topic
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import boot_id, boottime_ms, monotonic_ns, wall_ms
from shards.leases import LeaseTable
from shards.segment import Segment
from uploader.l0 import epoch_prefix

log = logging.getLogger("headgate.upkeep")

LOOK_S = 1.0
EPOCH_MS = 600_000
RECLAIM_MS = 10_000
CLEARINGS_AT_ONCE = 20  # 2,000 commits a second; more are caught up when there are fewer
EVICTIONS_AT_ONCE = 64  # in one transaction: a few row updates each
LOOKS_MAX = 1_000  # at one topic in one round: 20 million extents
TOPICS_AT_ONCE = 1_000


class UpkeepThread:
    """One daemon's upkeep."""

    def __init__(
        self,
        segment: Segment,
        ledger: Ledger,
        interval_ms: Callable[[], int],
        now: Callable[[], Noted],
        secrets: SecretsFile,
        told: Callable[[], Mark],
        lags: GroupLags | None = None,
    ) -> None:
        """``told`` is up to where accepted entries of the owner's log have the ledger; ``lags``
        tells those of Kafka's groups, if there may be any."""
        self._words = segment.words
        self._layout = segment.layout
        self._leases = LeaseTable(segment.words, segment.layout)
        self._ledger = ledger
        self._interval_ms = interval_ms
        self._now = now
        self._secrets = secrets
        self._told = told
        self._lags = lags
        self._schedule = Schedule()
        self._alarms = AlarmBoard(segment, segment.layout.shards)
        self._aged: Aged | None = None
        self._learned = (-1, 0)  # (catalog version, topic id) up to which topics are known
        self._stopped = threading.Event()
        self._cleared = 0  # results of commits up to here are cleared, or were looked at
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Begins the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        passed_ms = self._interval_ms()
        epoch_ms = reclaim_ms = 0
        while not self._stopped.is_set() and not self._words[at.G_SUPERSEDED]:
            try:
                self.note_ages()
                self.look_at_keys()
                if self._lags is not None:
                    self._lags.look()
                if passed_ms >= self._interval_ms():
                    passed_ms = 0
                    self.round()
                if epoch_ms >= EPOCH_MS:
                    epoch_ms = 0
                    self.raise_epoch()
                    self.tidy_secrets()
                if reclaim_ms >= RECLAIM_MS:
                    reclaim_ms = 0
                    self.reclaim()
            except LedgerError as error:
                log.error("retention waits: %s", error)
            except SecretsFileError as error:
                log.error("secrets of deleted push subscriptions stay: %s", error)
            except Exception as error:  # the last resort of a thread: said, and it goes on
                log.error("retention failed by a bug", exc_info=error)
            wait_ms = min(LOOK_S * 1000, self._interval_ms())
            self._stopped.wait(wait_ms / 1000)
            passed_ms += int(wait_ms)
            epoch_ms += int(wait_ms)
            reclaim_ms += int(wait_ms)

    # Retention

    def round(self) -> list[Evicted]:
        """Looks at all topics with limits once. Raises LedgerError."""
        news = self._learn()
        if not len(self._schedule):
            if news:
                self._mark()
            return []
        now = self._now()
        by_time = self._schedule.has_times and self._is_trusted(now)
        done: list[Evicted] = []
        looking = list(self._schedule.turn(now.boot_ms, by_time=by_time))
        for _ in range(LOOKS_MAX):
            gone = self._turn(looking, now)
            done += gone
            # What is more than one look walks over goes now.
            topics = {one.topic_id for one in gone}
            looking = [one for one in looking if one[0].topic_id in topics]
            if not looking or self._stopped.is_set():
                break
        if done or news:
            self._mark()
        return done

    def _learn(self) -> bool:
        """Takes the topics that changed since the last time; whether there were any."""
        learned = self._learned
        while page := self._ledger.read(retention.changed_topics, self._learned, TOPICS_AT_ONCE):
            for changed, topic_id in page:
                topic = self._ledger.read(topics.by_id, topic_id)
                if topic is not None:
                    self._schedule.changed(topic)
                self._learned = (changed, topic_id)
        return self._learned != learned

    def _turn(self, looking: Sequence[tuple[Topic, bool]], now: Noted) -> list[Evicted]:
        done: list[Evicted] = []
        waiting: list[Eviction] = []
        for topic, by_time in looking:
            if self._stopped.is_set():
                break
            look = self._ledger.read(
                retention.due_evictions, topic, now.wall_ms if by_time else None
            )
            if by_time:
                wait_ms = look.due_ms - now.wall_ms
                self._schedule.looked(topic, now.boot_ms, wait_ms, self._interval_ms())
            waiting += look.evictions
            while len(waiting) >= EVICTIONS_AT_ONCE:
                done += self._evict(waiting[:EVICTIONS_AT_ONCE])
                waiting = waiting[EVICTIONS_AT_ONCE:]
        return done + self._evict(waiting)

    def _evict(self, evictions: list[Eviction]) -> list[Evicted]:
        done = self._ledger.write(retention.evict, evictions) if evictions else []
        if done:
            with self._ledger.lock:
                version = self._ledger.read(topics.catalog_version)
                for topic_id in {one.topic_id for one in done}:
                    word = at.evicted(topic_id)
                    self._words[word] = max(self._words[word], version)
            records = sum(one.records for one in done)
            self._words[at.G_RECORDS_EVICTED] += records
            log.debug("%d records of %d partitions evicted", records, len(done))
        return done

    def _mark(self) -> None:
        now_ms = self._age_ms(self._now())
        while marking.mark_unreferenced(self._ledger, now_ms) and not self._stopped.is_set():
            pass

    def _is_trusted(self, now: Noted) -> bool:
        """Whether records are evicted by the wall clock; notes the clocks, and says a jump."""
        before = noted_of(self._ledger.read(notes.get, CLOCK_NOTE))
        noted = judge(before, now)
        if noted != before:
            self._ledger.write(notes.put, CLOCK_NOTE, note_of(noted))
            if noted.jump_ms:
                hours = f"{abs(noted.jump_ms) / 3_600_000:.1f}"
                log.error(
                    "the wall clock went %s by %s hours: nothing is evicted by its time to live"
                    " until an operator accepts the time, by `headgate gc --accept-clock`",
                    "ahead" if noted.jump_ms > 0 else "back", hours,
                )  # fmt: skip
        jump_ms = noted.jump_ms
        if before is not None and self._words[at.G_CLOCK_STOPPED] and not jump_ms:
            log.warning("the time of the wall clock was accepted: time to live goes on")
        self._words[at.G_CLOCK_JUMP_MS] = abs(jump_ms)
        self._words[at.G_CLOCK_STOPPED] = 0 if not jump_ms else 1 if jump_ms > 0 else 2
        return not jump_ms

    # Ages

    def note_ages(self) -> None:
        """Notes the clock of ages now and then, and after a step of the wall clock."""
        now = self._now()
        if is_due(self._aged, now):
            self._aged = Aged(now.boot_id, now.wall_ms, now.boot_ms, self._age_ms(now))
            self._ledger.write(notes.put, AGES_NOTE, aged_note(self._aged))

    def look_at_keys(self) -> None:
        """Says when idempotency keys are too many for their window; one read."""
        kept_ms = self._ledger.read(
            dedupe.kept_ms, self._age_ms(self._now()), self._ledger.dedupe_limits
        )
        if kept_ms is None:
            self._alarms.clear(AlarmKind.DEDUPE_WINDOW_SHORT)
            return
        said = f"the newest are known for {kept_ms / 1000:.0f} s; raise dedupe_entries_max"
        self._alarms.raise_(AlarmKind.DEDUPE_WINDOW_SHORT, said, monotonic_ns())

    def _age_ms(self, now: Clocks) -> int:
        return now.boot_ms + int(self._words[at.G_AGE_OFFSET_MS])

    # Space

    def reclaim(self) -> None:
        """Clears results of commits that nobody asks for any more, removes rows of what was
        deleted, and gives free pages back."""
        seen = followed_and_live(self._words, self._layout, self._leases)
        to = self._ledger.read(commits.before_leases, *seen)
        for _ in range(CLEARINGS_AT_ONCE):
            if self._cleared >= to or self._stopped.is_set():
                break
            self._cleared = reclaim.clear_results(self._ledger, self._cleared, to)
        heard = self._heard()
        while leftovers.remove_some(self._ledger, heard) and not self._stopped.is_set():
            pass
        reclaim.give_pages_back(self._ledger)

    def _heard(self) -> Heard:
        """What the owner's log, all shards and this thread know."""
        told = self._told()
        shards = [self._layout.shard(shard) for shard in range(self._layout.shards)]
        return Heard(
            min(
                told.catalog_version,
                self._learned[0],
                *(int(self._words[shard + at.S_HEARD_TOPICS]) for shard in shards),
            ),
            min(
                told.change_number,
                *(int(self._words[shard + at.S_HEARD_DELIVERY]) for shard in shards),
            ),
        )

    # Epochs

    def raise_epoch(self) -> None:
        """The next epoch; and the floor, where names of what was deleted wait for it.

        A recovery takes no object below the floor, so it is as high as no lease lives or ever will.
        """
        over = epoch_prefix(self._ledger.read(epochs.floor))
        if self._ledger.read(unreferenced.are_names_kept, over):
            self._ledger.write(epochs.raise_floor, self._leases.oldest_epoch())
        self._words[at.G_EPOCH] = self._ledger.write(epochs.advance)

    # Secrets

    def tidy_secrets(self) -> None:
        """Removes secrets that no subscription or topic has had for a day. Raises LedgerError,
        SecretsFileError."""
        if self._secrets.path.exists():
            pushed = self._ledger.read(subscriptions.secrets_ids)
            self._secrets.retain(pushed | self._ledger.read(topics.secrets_ids))


def clocks() -> Noted:
    """Both clocks of this machine."""
    return Noted(boot_id(), wall_ms(), boottime_ms())
