"""A store and the nodes that own it one after the other, for tests of recovery.

A *node* is what a start leaves of itself: a ledger file in a directory, entries in the owner's
log, objects in a real embedded store. It is killed by forgetting the directory, at any moment
between a PUT and the entry that lists its commit.

Each record's data is its own number, so what is read back says which record stands at an offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Container
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import msgspec
from crc32c import crc32c

from daemon.upkeep.owner import check_history
from daemon.upkeep.recover import RecoveryReport, rebuild
from ledger import commits, cursors, epochs, reads, topics
from ledger.checks import invariants
from ledger.delivery import progress
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.log.entry import Image, Owner
from ledger.types import (
    Advance,
    CommitDraft,
    Condition,
    ConditionPart,
    LeasedRange,
    LeaseId,
    ProducerBatch,
)
from shards.frame import CODEC_RECORDS, encode_batch
from tests.ledger import images
from uploader import l0
from uploader.l0 import ExtentParts, RingRun
from uploader.l0.records import Record, encode
from uploader.ownership.ownerlog import Former, OwnerLog, SealedLog
from uploader.stores.base import PartedStore
from uploader.stores.file import FileStore

Place = tuple[int, int]  # topic id, partition
SETTLED_MAX = 5  # dead letters are of offsets up to here; an owner acknowledges those after it


class Step(msgspec.Struct, frozen=True):
    """A cursor's advance, from where the request expects it."""

    cursor: str
    expected: int
    next: int


class Request(msgspec.Struct, frozen=True):
    """Records of one produce call: ``count`` of them for one partition of a topic."""

    topic: str
    partition: int
    count: int
    key: str | None = None
    expected_seq: int | None = None
    step: Step | None = None
    producer: ProducerBatch | None = None


class Node:
    """One incarnation on a data directory of its own."""

    def __init__(self, root: Path, number: int, taken: SealedLog, log: OwnerLog) -> None:
        self.path = root / f"data-{number}" / "ledger.db"
        self.log = log
        self.ledger = Ledger(self.path, nullcontext())
        self.incarnation, self.epoch = self.ledger.write(
            epochs.begin_incarnation, 1, taken.incarnation
        )
        self.told = Mark() if taken.last is None else taken.last.mark
        self.number = 0
        self.image: Image | None = None
        self.images = 0
        self.counter = 0
        self.rings = [0, 0]

    def tell(self, kind: Literal["entry", "release"] = "entry", *, naming: bool = True) -> None:
        self.number += 1
        mark, changes = self.ledger.read(backup.changes_since, self.told)
        names = None
        if naming:
            names, self.image = self.image, None
        entry = self.log.entry(self.incarnation, self.number, kind, mark, changes, names)
        assert self.log.put(entry)
        self.told = mark
        if names is not None:
            self.log.forget_before(names)

    def put_image(self, store: PartedStore) -> None:
        """An image of now; the next entry that is asked to names it."""
        self.images += 1  # each has a key of its own
        self.image = images.put(
            store, self.ledger, self.incarnation, self.number, nonce=self.images
        )


class World:
    """A store, its nodes one after the other, and what anybody was ever told of offsets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = FileStore(str(root / "store"))
        self.starts = 0
        self.records = 0
        self.names: dict[int, str] = {}
        self.sources: dict[int, tuple[int, int]] = {}  # record: incarnation and shard
        self.given: dict[tuple[int, int, int], int] = {}  # place and offset: record
        self.acknowledged: dict[int, int] = {}  # record: topic id
        self.refused: set[int] = set()  # records that are void
        self.answers: dict[tuple[int, str], list[int]] = {}  # records of a key's first answer
        self.steps: dict[int, Advance] = {}  # first record: what its request carried
        self.copies: set[int] = set()  # records that a router or a subscription copied
        self.node = self.start()

    def log(self) -> OwnerLog:
        self.starts += 1
        directory = self.root / f"data-{self.starts}"
        directory.mkdir()
        owner = Owner("host", self.starts, "boot", 1, self.starts, str(directory))
        return OwnerLog(self.store, owner, lambda _: None)

    def start(self) -> Node:
        log = self.log()
        return self._begin(log, log.take(take_over=True))

    def recover(self) -> RecoveryReport:
        """The node is gone with its directory; another one takes over."""
        self.node.ledger.close()
        shutil.rmtree(self.node.path.parent)
        log = self.log()
        taken = log.take(take_over=True)
        path = self.root / f"data-{self.starts}" / "ledger.db"
        report = rebuild(path, nullcontext(), self.store, taken, log)
        self.node = self._begin(log, taken)
        return report

    def restart(self) -> None:
        """The node is killed and comes back on its own directory."""
        old = self.node
        old.ledger.close()
        taken = old.log.take(take_over=False)
        assert taken.former in (Former.OURS, Former.RELEASED)
        check = Ledger(old.path, nullcontext())
        check_history(check, taken.last, self.store.url)
        check.close()
        number = int(old.path.parent.name.removeprefix("data-"))
        self.node = Node(self.root, number, taken, old.log)
        self.node.tell()

    def _begin(self, log: OwnerLog, taken: SealedLog) -> Node:
        node = Node(self.root, self.starts, taken, log)
        node.tell()
        return node

    def build(
        self, requests: list[Request], shard: int = 0, seen: int | None = None
    ) -> tuple[CommitDraft, list[list[int]]]:
        """An object of these requests in the store, and the numbers of their records."""
        node = self.node
        node.counter += 1
        lease = LeaseId(node.incarnation, node.epoch, shard, node.counter)
        start = node.rings[shard]
        node.rings[shard] += 64 * len(requests)
        numbers: list[list[int]] = []
        batches: dict[Place, list[bytes]] = {}
        counts: dict[Place, int] = {}
        conditions: list[Condition] = []
        for position, request in enumerate(requests):
            topic = node.ledger.read(topics.find, request.topic)
            assert topic is not None
            self.names[topic.topic_id] = request.topic
            place = (topic.topic_id, request.partition)
            first = self.records
            self.records += request.count
            mine = list(range(first, self.records))
            self.sources.update(dict.fromkeys(mine, (node.incarnation, shard)))
            numbers.append(mine)
            payload = encode([Record(str(number)) for number in mine])
            batches.setdefault(place, []).append(
                encode_batch(len(mine), 1_000, payload, CODEC_RECORDS)
            )
            part = ConditionPart(request.partition, counts.get(place, 0), len(mine))
            counts[place] = counts.get(place, 0) + len(mine)
            advance = None if request.step is None else self.advance(request.step)
            asked = (request.key, request.expected_seq, advance, request.producer)
            if asked != (None, None, None, None):
                at = start + 64 * position
                conditions.append(Condition(shard, at, topic.topic_id, (part,), *asked))
            if advance is not None:
                self.steps[first] = advance
                self.copies.update(mine if advance.is_ours else ())
        extents = [
            ExtentParts(
                self.names[place[0]], place[0], place[1], CODEC_RECORDS, parts, counts[place],
                1_000, 1_000, (RingRun(shard, start, 0, counts[place]),),
            )
            for place, parts in batches.items()
        ]  # fmt: skip
        if seen is None:
            seen = node.ledger.read(commits.latest_number)
        built = l0.build(lease, 1_000 + self.records, extents, conditions, seen)
        key = l0.object_key(lease)
        locator = self.store.put(key, built.body, built.crc32c)
        draft = CommitDraft(
            lease, key, locator, len(built.body), 1_000 + self.records,
            (LeasedRange(shard, start, node.rings[shard]),), built.drafts, tuple(conditions),
        )  # fmt: skip
        return draft, numbers

    def advance(self, step: Step) -> Advance:
        """What the frame of such a request carries."""
        if step.cursor.startswith(("router/", "subscription/")):
            cursor = self.node.ledger.read(cursors.find, step.cursor)
            assert cursor is not None
            return Advance(cursor.cursor_id, 0, step.expected, step.next, True)
        place = self.node.ledger.read(cursors.place, step.cursor, 0)
        assert place is not None
        return Advance(
            place.cursor_id, 0, step.expected, step.next, False, step.cursor, place.set_change,
            place.set_seq,
        )  # fmt: skip

    def at(self, name: str) -> int | None:
        """Where a cursor is; None if there is none."""
        cursor = self.node.ledger.read(cursors.find, name)
        if cursor is None:
            return None
        there = self.node.ledger.read(cursors.positions_of, [(cursor.cursor_id, 0)])
        return there[cursor.cursor_id, 0]

    def produce(self, requests: list[Request], shard: int = 0, seen: int | None = None) -> None:
        """Requests that are acknowledged, and the offsets that their producers are told."""
        draft, numbers = self.build(requests, shard, seen)
        commit = self.node.ledger.commit(draft, draft.created_ms, lambda _: None)
        void = {verdict.position for verdict in commit.verdicts}
        start = draft.ranges[0].start
        firsts = {(run.topic_id, run.partition): run.first_offset for run in commit.runs}
        for position, (request, mine) in enumerate(zip(requests, numbers, strict=True)):
            topic = self.node.ledger.read(topics.find, request.topic)
            assert topic is not None
            place = (topic.topic_id, request.partition)
            known = self.answers.get((topic.topic_id, request.key or ""))
            if start + 64 * position in void:
                if request.key is not None and known is not None:
                    assert set(known) <= self.acknowledged.keys()
                self.refused.update(mine)
                continue
            for number in mine:
                self.give((*place, firsts[place]), number)
                firsts[place] += 1
                self.acknowledged[number] = topic.topic_id
            if request.key is not None:
                assert known is None, "a key was stored twice"
                self.answers[topic.topic_id, request.key] = mine

    def give(self, at: tuple[int, int, int], number: int) -> None:
        """An offset names a record, now and forever."""
        assert self.given.setdefault(at, number) == number, f"{at} names two records"

    def check(self) -> None:
        """All that was acknowledged is there once, at an offset that nothing else ever had."""
        ledger = self.node.ledger
        ledger.read(invariants.check)
        times: dict[int, int] = {}
        live = {topic.topic_id: topic for topic in ledger.read(topics.page)}
        for topic_id, topic in live.items():
            for partition in range(topic.config.partitions):
                last: dict[tuple[int, int], int] = {}
                for extent in ledger.read(reads.extents_from, topic_id, partition, 1, 10**6):
                    data = self.store.get(extent.locator, extent.byte_start, extent.byte_length)
                    assert crc32c(data) == extent.crc32c
                    for offset, _, record in l0.records_of(data, extent.first_offset, extent.voids):
                        number = int(record.data)
                        self.give((topic_id, partition, offset), number)
                        times[number] = times.get(number, 0) + 1
                        source = self.sources[number]
                        assert number > last.get(source, -1), "a source's order is kept"
                        last[source] = number
        assert set(times.values()) <= {1}, "a record is there twice"
        lost = [n for n, topic_id in self.acknowledged.items() if topic_id in live
                and n not in times and n not in self.copies]  # fmt: skip
        assert not lost, f"lost {lost}"
        assert not self.refused & times.keys(), "what was answered as void is stored"

        self.check_cursors(times)

    def check_cursors(self, there: Container[int]) -> None:
        """Each cursor is where the stored requests moved it, one after the other. A router's may
        also have skipped something, so its steps only may not overlap."""
        taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
        bases: dict[tuple[int, int], int] = {}
        for first, advance in self.steps.items():
            if first in there:
                setting = (advance.cursor_id, advance.set_change)
                taken.setdefault(setting, []).append((advance.expected, advance.next))
                bases[setting] = advance.set_seq
        ledger = self.node.ledger
        for cursor in ledger.read(cursors.page):
            if cursor.kind == "subscription":
                copied = [step[0] for step in taken.get((cursor.cursor_id, 0), [])]
                assert sorted(copied) == self.settled(cursor.cursor_id), "copied once, and settled"
                continue
            found = ledger.read(cursors.settings_of, [(cursor.cursor_id, 0)])
            change, seq = found.get((cursor.cursor_id, 0), (0, 0))
            steps = sorted(taken.get((cursor.cursor_id, change), []))
            end = bases.get((cursor.cursor_id, change), 0)
            for before, after in steps:
                assert before >= end, f"{cursor.name} took {before} to {after} twice"
                assert cursor.kind == "router" or before == end, f"{cursor.name} skipped {before}"
                end = after
            if steps:
                assert seq == end or (cursor.kind == "router" and seq >= end), cursor.name

    def settled(self, cursor_id: int) -> list[int]:
        """The offsets up to SETTLED_MAX of partition 0 that a subscription has finished."""
        keys = [(cursor_id, 0, offset) for offset in range(1, SETTLED_MAX + 1)]
        return sorted(
            offset for *_, offset in self.node.ledger.read(progress.finished_of, keys, {})
        )

    def close(self) -> None:
        self.node.ledger.close()
        self.store.close()
