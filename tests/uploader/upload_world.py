"""The commit pipeline of a crew: the real store and ledger, and a store that fails on purpose."""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate

import msgspec

from ledger import commits, epochs, reads, topics
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.tx import P, ReadTx, T
from ledger.types import Commit, CommitDraft, Topic, TopicConfig
from shards import layout as at
from shards import locks
from shards.alarms import AlarmBoard, AlarmKind, raised
from shards.clock import boottime_ns, monotonic_ns, wall_ns
from shards.commitlog import CommitLog
from shards.frame import Part, batch_payload, batches, encode_conditions
from shards.latency import Counted, Stage, counted
from shards.leases import DONE, Lease
from shards.locks import SharedLock
from tests.uploader.crew import MS, WINDOW, Crew, crew
from uploader import l0
from uploader.groups.puller import Pulled
from uploader.l0 import records
from uploader.ownership.ownership import Moment, tell_sent
from uploader.pipeline.upload import Uploads
from uploader.stores import open_store
from uploader.stores.base import ObjectHead, ObjectStore

GIVES_UP_S = 60.0  # ends a hang; no test waits for it
LASTS_NS = 3_600 * 1_000_000_000  # longer than any test

Around = Callable[[Callable[[], str]], str]  # gets the real PUT, may make it or not


class FaultyStore:
    """A store whose PUTs of some keys call what a test wants to happen around them."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self.store = store
        self.around: dict[str, Around] = {}
        self.calls: list[str] = []
        self.kept: list[str] = []

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        self.calls.append(key)

        def real() -> str:
            locator = self.store.put(key, body, crc32c)
            self.kept.append(key)
            return locator

        around = self.around.get(key)
        return around(real) if around is not None else real()

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        return self.store.get(locator, start, length)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        return self.store.list(prefix, start_after)

    def delete(self, locators: Sequence[str]) -> None:
        self.store.delete(locators)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        return self.store.put_if_absent(key, body)

    def check(self) -> None:
        self.store.check()

    def reconnect(self) -> None:
        self.store.reconnect()

    def close(self) -> None:
        self.store.close()


class WatchedLedger(Ledger):
    """A ledger whose calls first call what a test wants to happen before them."""

    before_commit: Callable[[CommitDraft], None] | None = None
    before_look: Callable[[], None] | None = None  # for the commit of a lease or a number

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        is_look = function is commits.by_lease or function is commits.by_number
        if is_look and self.before_look is not None:
            self.before_look()
        return super().read(function, *args, **kwargs)

    def commit(
        self, draft: CommitDraft, now_ms: int, published: Callable[[Commit], None]
    ) -> Commit:
        if self.before_commit is not None:
            self.before_commit(draft)
        return super().commit(draft, now_ms, published)


class AtOnce(random.Random):
    """A random source that makes every delay 0."""

    def random(self) -> float:
        return 0.0


class Pipeline:
    """Two shards in separate groups (unless ``together``), and their uploads."""

    def __init__(self, made: Crew, directory: Path) -> None:
        self.crew = made
        self.words = made.words
        self.store = FaultyStore(open_store(f"file://{directory}/store", threads=8))
        self.lock = SharedLock(made.locks, locks.LEDGER)
        self.ledger = WatchedLedger(directory / "ledger.db", self.lock)
        incarnation, epoch = self.ledger.write(epochs.begin_incarnation, 1)
        self.words[at.G_INCARNATION], self.words[at.G_EPOCH] = incarnation, epoch
        self.stay_owner()
        self.topic: Topic = self.ledger.write(topics.create, "t", TopicConfig(partitions=2), 1)[0]
        self.log = CommitLog(made.segment)
        self.topic_name: Callable[[int], str] = {self.topic.topic_id: "t"}.__getitem__
        self.ended: list[int] = []  # shards whose process would have ended
        self.pullers = [made.puller(shard) for shard in (0, 1)]
        self.uploads = [self.uploads_of(shard) for shard in (0, 1)]
        self.now_ns = 1_000_000 * MS
        self.published: list[str] = []
        made.groups.map.split(made.groups.map.group_of(0))

    def stay_owner(self) -> None:
        """As after an entry of the owner's log that was accepted. Of one that was sent just now it
        holds for 15 s, in which a machine may stand still: so this one is sent later."""
        tell_sent(self.words, Moment(boottime_ns() + LASTS_NS, wall_ns() + LASTS_NS))

    def uploads_of(self, shard: int, *, hedge_puts: bool = False) -> Uploads:
        return Uploads(
            self.crew.segment,
            shard,
            self.crew.leases,
            self.crew.bells,
            self.store,
            self.ledger,
            lambda topic_id: self.topic_name(topic_id),
            AtOnce(),
            AlarmBoard(self.crew.segment, shard),
            lambda: self.ended.append(shard),
            hedge_puts=hedge_puts,
        )

    def alarms(self) -> list[tuple[AlarmKind, int]]:
        """Kind and process of each alarm that is raised."""
        return [(alarm.kind, alarm.process) for alarm in raised(self.crew.segment)]

    def together(self) -> None:
        """One group of both shards."""
        self.crew.groups.start()

    def publish(self, shard: int, text: str, partition: int = 0, key: str | None = None) -> int:
        """One record comes to a shard."""
        payload = records.encode([(text,)])
        part = Part(self.topic.topic_id, partition, 1, payload, 1, 1)
        conditions = encode_conditions(key, None)
        return self.crew.writers[shard].append(self.now_ns, 1, conditions, [part])

    def pull(self, shard: int) -> Pulled:
        """The one lease of a pull by ``shard``, which is idle for a window."""
        self.now_ns += 2 * WINDOW
        (pulled,) = self.pullers[shard].look(self.now_ns).pulled
        return pulled

    def lease_of(self, shard: int, *texts: str) -> Pulled:
        for text in texts:
            self.publish(shard, text)
        return self.pull(shard)

    def start(self, shard: int, pulled: Pulled) -> None:
        self.uploads[shard].start(pulled.lease, pulled.requests)

    def turn_until(self, holds: Callable[[], bool]) -> None:
        """Does what the loops do with their bells until something holds."""
        gives_up_ns = monotonic_ns() + int(GIVES_UP_S * 1e9)
        while not holds():
            assert monotonic_ns() < gives_up_ns
            select.select(self.crew.bells.fds, [], [], 0.05)
            for shard in self.crew.rung():
                if shard != self.crew.bells.owner:
                    self.uploads[shard].committed_moved()

    def is_done(self, lease: Lease) -> bool:
        return self.crew.leases.state(lease.shard, lease.slot) == DONE

    def turn_until_done(self, *pulled: Pulled) -> None:
        self.turn_until(lambda: all(self.is_done(each.lease) for each in pulled))

    def in_log(self, number: int) -> Commit | None:
        """A commit of the log, without when it came there: as the ledger has it."""
        commit = self.log.read(number)
        if commit is None:
            return None
        assert commit.published_ns, "the log knows when a commit came"
        return msgspec.structs.replace(commit, published_ns=0)

    def committed(self) -> list[str]:
        """All records of partition 0 in offset order, as a reader finds them."""
        found: list[str] = []
        next_offset = 1
        for extent in self.ledger.read(reads.extents_from, self.topic.topic_id, 0, 1, 1000):
            assert extent.first_offset == next_offset
            next_offset = extent.last_offset + 1
            data = self.store.get(extent.locator, extent.byte_start, extent.byte_length)
            for head in batches(data):
                found += [str(each.data) for each in records.decode(batch_payload(data, head))]
        return found

    def counted(self, stage: Stage) -> Counted:
        return counted(self.crew.segment, stage)

    def counter(self, shard: int, word: int) -> int:
        return self.crew.word(shard, word)

    def close(self) -> None:
        for uploads in self.uploads:
            uploads.stop()
        self.ledger.read(invariants.check)
        self.ledger.close()
        self.store.close()


@contextmanager
def pipeline(directory: Path) -> Iterator[Pipeline]:
    with crew(2, directory) as made:
        opened = Pipeline(made, directory)
        try:
            yield opened
        finally:
            opened.close()


def key_of(pulled: Pulled) -> str:
    return l0.object_key(pulled.lease.lease_id)


def held_until(event: threading.Event) -> Around:
    """A PUT that begins when a test allows it."""

    def around(real: Callable[[], str]) -> str:
        assert event.wait(GIVES_UP_S)
        return real()

    return around
