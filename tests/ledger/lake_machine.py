"""Random histories of a ledger with a lake, an owner's log, retention and a collection.

The bucket is plain Python: objects as lists of records, tables as what they hold by offset. Steps
are those that a daemon and a compaction take, one at a time, and either may stop between any two:
a run that died has committed to its tables and not switched.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from msgspec import Struct
from msgspec.structs import replace

from ledger import commits, epochs, reads, topics
from ledger.checks import invariants, soundness
from ledger.errors import DraftInvalid
from ledger.lake import lake_files, lake_tables, runs
from ledger.lake.types import Hole, LakeRange, NewFile, PlannedObject, TableSwitch
from ledger.space import deletions, marking, retention, unreferenced
from ledger.types import CommitDraft, Extent, PartitionState
from tests.ledger.lakes import plan_all, switches_of
from tests.ledger.model import Record
from tests.ledger.requests import Request
from tests.ledger.test_backup import BackupMachine
from tests.ledger.test_model import NAMES, RequestShape
from tests.ledger.upkeep import evict_all

Offset = tuple[int, int, int]
"""(topic id, partition, offset)"""
MEANWHILE_MS = 100  # between a run that died and the next


class Table(Struct):
    """A topic's table in the catalog, and what the ledger was not told of it yet."""

    topic_id: int
    live: list[str] = []
    dropped: list[str] = []
    watermarks: dict[int, int] = {}
    holes: list[Hole] = []
    untold: list[TableSwitch] = []


class LakeMachine(BackupMachine):
    """Compares what readers would meet with what was committed, after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0
        self.tables: dict[int, Table] = {}
        self.files: dict[str, tuple[NewFile, dict[Offset, Record]]] = {}
        self.store: set[str] = set()  # keys of objects
        self.named: list[str] = []
        self.named_files: list[str] = []
        self.collected: set[str] = set()

    def leave(self, key: tuple[int, int]) -> None:
        """Its records were collected; after a recovery its row may be there again, and go again."""
        self.model.partitions.pop(key, None)

    @initialize()
    def start(self) -> None:
        super().start()
        self.create(NAMES[1], 1)
        self.commit_several([[(0, 2)], [(1, 3), (0, 1)], [(1, 1)]])

    def wait(self, passed_ms: int) -> None:
        """No step of its own here: time passes with runs."""

    @rule(
        some=st.lists(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=3),
            min_size=2, max_size=6,
        )
    )  # fmt: skip
    def commit_several(self, some: list[list[tuple[int, int]]]) -> None:
        """Objects of unconditional requests, so that histories are long."""
        for parts in some:
            self.commit([[RequestShape(at, (0, 1), count, None, None) for at, count in parts]])

    # Steps of a compaction

    @rule(
        bad=st.sampled_from([0, 0, 0, 1, 2]), days=st.integers(1, 2), dies=st.booleans(),
        part=st.integers(1, 3), only=st.booleans(),
    )  # fmt: skip
    def compact(self, bad: int, days: int, dies: bool, part: int, only: bool) -> None:
        self.begin_run()
        head = self.ledger.read(commits.latest_number)
        topic_ids = frozenset({max(self.live.values())}) if only and self.live else None
        planned = plan_all(self.ledger, head, 2, topic_ids)
        planned = planned[: (len(planned) + part - 1) // part]
        self.tell()  # covers the head, and what was evicted before the plan
        bad_keys = {item.key for item in planned if bad and item.commit_number % bad == 0}
        for switch in switches_of(planned, self.run, bad_keys, days):
            self.commit_to_table(switch, planned, days)
        self.finish(dies)

    @rule(topic=st.integers(0, 5), dies=st.booleans())
    def rewrite(self, topic: int, dies: bool) -> None:
        self.begin_run()
        found = [topic_id for topic_id, table in self.tables.items() if len(table.live) > 1]
        if found:
            topic_id = found[topic % len(found)]
            small = self.tables[topic_id].live[:3]
            rows: dict[Offset, Record] = {}
            for path in small:
                rows |= self.files[path][1]
            path = f"file:///lake/{self.run}-joined.parquet"
            file = NewFile(path, 7, len(rows), self.ranges_of(small, rows))
            self.files[path] = (file, rows)
            table = self.tables[topic_id]
            table.live = [*table.live[len(small) :], path]
            table.dropped += small
            table.untold.append(
                TableSwitch(topic_id, f"t{topic_id}", f"{self.run}.json", {}, (file,), tuple(small))
            )
        self.finish(dies)

    def begin_run(self) -> None:
        """The next run; it makes up for what one that died has not switched."""
        self.runs += 1
        self.run = f"run-{self.runs}"
        former = self.ledger.read(runs.unfinished)
        if former is not None:
            self.ledger.write(runs.end, former[0], self.now_ms)
        self.ledger.write(runs.begin, self.run, "test", self.now_ms)
        self.switch()

    def finish(self, dies: bool) -> None:
        if dies:
            self.now_ms += MEANWHILE_MS
        else:
            self.switch()
            self.ledger.write(runs.end, self.run, self.now_ms)

    def switch(self) -> None:
        untold = [switch for table in self.tables.values() for switch in table.untold]
        for _ in range(2):
            self.ledger.write(lake_tables.switch, self.run, untold, self.now_ms)
        for table in self.tables.values():
            table.untold = []

    def commit_to_table(self, switch: TableSwitch, planned: list[PlannedObject], days: int) -> None:
        table = self.tables.setdefault(switch.topic_id, Table(switch.topic_id))
        table.watermarks |= switch.watermarks
        table.holes += switch.holes
        table.untold.append(switch)
        holes = {
            (hole.partition, offset)
            for hole in switch.holes
            for offset in range(hole.first_offset, hole.last_offset + 1)
        }
        rows = {
            (switch.topic_id, extent.partition, offset): record
            for item in planned
            for extent in item.extents
            if extent.topic_id == switch.topic_id
            for offset, record in self.records_of(item.locator, extent)
            if (extent.partition, offset) not in holes
        }
        for file in switch.added:
            day = int(file.path.removesuffix(".parquet").rpartition("-")[2])
            kept = {place: record for place, record in rows.items() if place[2] % days == day}
            self.files[file.path] = (file, kept)
            table.live.append(file.path)

    def records_of(self, locator: str, extent: Extent) -> list[tuple[int, Record]]:
        """Offsets with their records, as a reader of the object finds them."""
        void = {at for start, count in extent.voids for at in range(start, start + count)}
        there = self.objects[locator, extent.topic_id, extent.partition]
        live = [record for at, record in enumerate(there) if at not in void]
        assert len(live) == extent.last_offset - extent.first_offset + 1
        return list(enumerate(live, extent.first_offset))

    def ranges_of(self, paths: list[str], rows: dict[Offset, Record]) -> tuple[LakeRange, ...]:
        found: dict[int, LakeRange] = {}
        for one in [one for path in paths for one in self.files[path][0].ranges]:
            there = found.get(one.partition)
            if there is not None:
                one = LakeRange(
                    one.partition, min(one.first_offset, there.first_offset),
                    max(one.last_offset, there.last_offset), one.rows + there.rows,
                    one.bytes + there.bytes,
                    min(one.first_timestamp_ms, there.first_timestamp_ms),
                    max(one.last_timestamp_ms, there.last_timestamp_ms),
                )  # fmt: skip
            found[one.partition] = one
        assert sum(one.rows for one in found.values()) == len(rows)
        return tuple(found.values())

    # Retention and collection

    @rule(name=st.sampled_from(NAMES), partition=st.integers(0, 2), share=st.integers(0, 10))
    def trim(self, name: str, partition: int, share: int) -> None:
        if name in self.live:
            topic_id = self.live[name]
            partition %= self.config[topic_id].partitions
            head = self.model.head(topic_id, partition)
            state = retention.trim(self.ledger, name, partition, 1 + share * head // 10)
            assert state.earliest_seq >= 1 + share * head // 10

    @rule(name=st.sampled_from(NAMES), records=st.integers(1, 8))
    def evict(self, name: str, records: int) -> None:
        if name in self.live:
            config = self.config[self.live[name]]
            self.ledger.write(topics.alter, name, replace(config, cap_records=records))
            evict_all(self.ledger, self.now_ms)
            self.ledger.write(topics.alter, name, config)
            for state in self.ledger.read(reads.partition_states, self.live[name]):
                assert state.count <= records

    @rule(finishes=st.booleans())
    def collect(self, finishes: bool) -> None:
        while marking.mark_unreferenced(self.ledger, self.now_ms):
            pass
        marking.mark_void(self.ledger, self.now_ms)
        self.ledger.write(epochs.raise_floor, self.ledger.write(epochs.advance))
        latest = self.ledger.read(commits.latest_number)
        rule = self.ledger.read(deletions.policy, self.now_ms, 0, latest)
        found = self.ledger.write(
            unreferenced.name, rule, self.ledger.read(unreferenced.page, rule, (-1, 0))
        )
        self.named += [one.key for one in found]
        dropped = [
            file.path
            for topic_id in range(1, 100)
            for file in self.ledger.read(lake_files.of_topic, topic_id, with_dropped=True)
            if file.dropped_ms is not None and rule.releases(file.dropped_ms)
        ]
        self.ledger.write(lake_files.name, dropped)
        self.named_files += dropped
        self.tell()
        self.collected.update(self.named)
        self.store.difference_update(self.named)
        for path in self.named_files:
            self.files.pop(path, None)
        if finishes:
            self.forget()

    def forget(self) -> None:
        self.ledger.write(unreferenced.forget, self.named, "m")
        self.ledger.write(lake_files.forget, self.named_files)
        self.named, self.named_files = [], []

    # What the bucket and readers have

    def keep_object(self, draft: CommitDraft, requests: list[Request]) -> None:
        super().keep_object(draft, requests)
        self.store.add(draft.key)

    @rule(which=st.integers(0, 10**6))
    def repeat(self, which: int) -> None:
        if not self.history or self.history[which % len(self.history)][0].key in self.store:
            super().repeat(which)
            return
        # Its rows are gone, but no upload that comes late can commit it again.
        draft, _ = self.history[which % len(self.history)]
        if self.ledger.read(reads.object_by_key, draft.key) is None:
            with pytest.raises(DraftInvalid):
                self.ledger.commit(draft, self.now_ms, lambda _: None)

    @invariant()
    def readers_get_each_record_at_its_offset(self) -> None:
        """L1 up to ``compacted_seq``, L0 after it; holes and gaps are the rest, nothing twice."""
        planned = self.planned()
        for topic_id in self.live.values():
            for state in self.ledger.read(reads.partition_states, topic_id):
                self.check_partition(topic_id, state, planned)

    def planned(self) -> dict[Offset, Record]:
        rows: dict[Offset, Record] = {}
        for item in plan_all(self.ledger, page=3):
            assert item.key in self.store
            for one in item.extents:
                for offset, record in self.records_of(item.locator, one):
                    assert (one.topic_id, one.partition, offset) not in rows
                    rows[one.topic_id, one.partition, offset] = record
        return rows

    def check_partition(
        self, topic_id: int, state: PartitionState, planned: dict[Offset, Record]
    ) -> None:
        key = (topic_id, state.partition)
        records = self.model.partitions[key]
        assert state.head_seq == len(records)
        in_l1: dict[Offset, Record] = {}
        for one in self.ledger.read(lake_files.ranges_from, *key, state.earliest_seq, 10**6):
            rows = self.files[one.path][1]
            within = range(one.range.first_offset, one.range.last_offset + 1)
            there = {at: rows[at] for o in within if (at := (*key, o)) in rows}
            assert len(there) == one.range.rows
            assert not in_l1.keys() & there.keys()
            in_l1 |= there
        holes = [
            hole
            for hole in self.ledger.read(lake_tables.holes, topic_id)
            if hole.partition == key[1]
        ]
        assert all(
            hole.key in self.store for hole in holes if hole.last_offset >= state.earliest_seq
        )
        for offset in range(state.earliest_seq, state.next_seq):
            at = (*key, offset)
            record = records[offset - 1]
            if record is None:
                assert at not in in_l1 and at not in planned
            elif any(hole.first_offset <= offset <= hole.last_offset for hole in holes):
                assert offset <= state.compacted_seq
                assert at not in in_l1 and at not in planned
            elif offset <= state.compacted_seq:
                assert in_l1[at] == record and at not in planned
            else:
                assert planned[at] == record and at not in in_l1

    @invariant()
    def the_ledger_agrees_with_itself(self) -> None:
        self.ledger.read(invariants.check)
        assert self.ledger.read(soundness.problems, 9) == []
        for draft, commit in self.history:
            if self.ledger.read(reads.object_by_key, draft.key) is None:
                assert draft.key in self.collected
            else:
                assert self.ledger.read(commits.by_lease, draft.lease_id) == commit
                assert self.ledger.read(commits.by_number, commit.number) == commit

    def teardown(self) -> None:
        self.tell()
        self.forget()
        super().teardown()
