"""Random histories of a ledger with its lake; and what recoveries make of them."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from ledger import commits as ledger_commits
from ledger import cursors, epochs, reads
from ledger.checks import invariants
from ledger.errors import DraftInvalid
from ledger.lake import lake_files
from ledger.lake.types import TableSwitch
from ledger.ledger import Ledger
from ledger.log import recovery
from ledger.log.backup import Mark
from ledger.types import Commit, CommitDraft
from tests.ledger.lake_machine import LakeMachine, Table
from tests.ledger.model import Record
from tests.ledger.requests import Request
from tests.ledger.test_backup import unsynced
from tests.ledger.test_model import LIMITS, NAMES, RequestShape
from tests.long import examples


class RecoveringMachine(LakeMachine):
    """Loses its ledger now and then: the log's entries and the objects in the bucket are left.

    Tables may be ahead of the recovered ledger, by switches that no entry told. Requests are
    plain ones and changes of topics are told immediately, so that what becomes of unlisted objects
    is known.
    """

    recoveries = 0

    def opened(self) -> Ledger:
        if not self.recoveries:
            return super().opened()
        return unsynced(Ledger(self.path, nullcontext(), dedupe_limits=LIMITS))

    @property
    def path(self) -> Path:
        return Path(self.directory.name) / f"recovered-{self.recoveries}.db"

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        super().create(name, partitions)
        self.tell()

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        super().delete(name)
        self.tell()

    @rule(name=st.sampled_from(NAMES), more=st.integers(0, 1))
    def grow(self, name: str, more: int) -> None:
        super().grow(name, more)
        self.tell()

    def request(self, shape: RequestShape, shard: int) -> Request:
        plain = RequestShape(shape.topic, shape.partitions, shape.count, None, None)
        return super().request(plain, shard)

    def snapshot(self, more_meanwhile: bool) -> None:
        """No step of its own here: there is one line of entries, and recoveries follow it."""

    @rule()
    def recover(self) -> None:
        (chain,) = self.chains
        told = chain.told
        self.ledger.close()
        self.recoveries += 1
        self.ledger = ledger = chain.applied(self.path, 1)
        assert ledger.read(ledger_commits.latest_number) == told.commit_number
        ledger.read(invariants.check)
        self.told_heads = {
            (topic_id, state.partition): state.head_seq
            for topic_id in self.config
            for state in ledger.read(reads.partition_states, topic_id)
        }
        unlisted = [draft for draft, commit in self.history if commit.number > told.commit_number]
        counts = Counter[tuple[int, int]]()
        for draft in unlisted:
            for extent in draft.extents:
                counts[extent.topic_id, extent.partition] += extent.record_count
        self.lose(ledger, counts)
        self.lose_cursors(ledger)
        ledger.write(recovery.prepare, Mark(), [], dict(counts), 0, self.epoch)
        commits: list[Commit | DraftInvalid] = []
        ledger.write(recovery.take, unlisted, commits.append, ledger.dedupe_limits)
        del self.history[told.commit_number :]
        for draft, commit in zip(unlisted, commits, strict=True):
            assert not isinstance(commit, DraftInvalid)
            self.history.append((draft, commit))
            self.model_takes(draft)
        # What was collected and whose entry is lost is not lost: it is collected again.
        self.named, self.named_files = [], []
        ledger.write(epochs.begin_incarnation, self.now_ms)
        for table in self.tables.values():
            self.look_at(table)

    def look_at(self, table: Table) -> None:
        """What the next run's reconcile finds: all that the table has and the ledger has not."""
        states = self.ledger.read(reads.partition_states, table.topic_id)
        for partition, seq in table.watermarks.items():
            assert seq <= self.told_heads[table.topic_id, partition]
            assert seq < states[partition].next_seq
        there = [file.path for file in self.ledger.read(lake_files.of_topic, table.topic_id)]
        table.untold = [
            TableSwitch(
                table.topic_id, f"t{table.topic_id}", "found.json", table.watermarks,
                tuple(self.files[path][0] for path in table.live),
                tuple(path for path in there if path not in table.live), tuple(table.holes),
            )
        ]  # fmt: skip

    def lose(self, ledger: Ledger, counts: Counter[tuple[int, int]]) -> None:
        """The model as of the last entry, with gaps for what may have been given since."""
        for (topic_id, partition), records in self.model.partitions.items():
            state = ledger.read(reads.heads, [topic_id])[1][topic_id, partition]
            del records[state.head_seq :]
            if topic_id not in self.model.deleted:
                records += [None] * counts[topic_id, partition]

    def lose_cursors(self, ledger: Ledger) -> None:
        """The model's cursors as of the last entry; nothing that is taken moves them."""
        self.cursor_ids = {each.name: each.cursor_id for each in ledger.read(cursors.page)}
        self.model.cursors = {
            cursor_id: {p.partition: p.seq for p in ledger.read(cursors.positions, cursor_id)}
            for cursor_id in self.cursor_ids.values()
        }
        with ledger.reading() as tx:
            self.cursors_seen = tx.execute("SELECT last_cursor_id FROM state").fetchone()[0]

    def model_takes(self, draft: CommitDraft) -> None:
        for extent in draft.extents:
            key = (extent.topic_id, extent.partition)
            there: list[Record] = self.objects[draft.locator, *key]
            if extent.topic_id not in self.model.deleted:
                self.model.partitions[key] += there

    @property
    def epoch(self) -> int:
        return max((draft.lease_id.epoch for draft, _ in self.history), default=1)


TestLakeOfHistories = LakeMachine.TestCase
TestLakeOfHistories.settings = settings(
    max_examples=examples(50, fast=4), stateful_step_count=40, deadline=None
)
TestLakeAfterRecoveries = RecoveringMachine.TestCase
TestLakeAfterRecoveries.settings = settings(
    max_examples=examples(50, fast=4), stateful_step_count=40, deadline=None
)
