"""What must hold after every step, seen from outside all caches.

The oracle sees the raw words, the ledger and the store. It is told what was published and what
was acknowledged. The ``truth`` of a shard is the highest end of a lease that is not done, or its
``committed`` word; ``pulled`` may differ from it only while a mark is in the group's slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ledger import commits
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.tx import ReadTx
from ledger.types import Commit, CommitDraft
from shards import layout as at
from shards.frame import batch_payload, batches
from shards.leases import DONE, LIVE, ORPHAN, LeaseTable
from shards.segment import Segment
from tests.sim.cursors import CursorTruth
from tests.sim.schedule import LockTable, S, Schedule, Violation, require
from tests.sim.store import Store
from uploader.groups.puller import GroupTable
from uploader.l0 import object_key
from uploader.l0.reader import read_extent, read_footer
from uploader.ownership.ownership import sent_of

GAP_MAX_NS = 2 * S
OWNED_MAX_NS = 15 * S  # docs/protocol.md 5; not taken from the code, which may be what is wrong


class Oracle:
    """Everything that is known about one machine."""

    def __init__(
        self,
        segment: Segment,
        ledger: Ledger,
        store: Store,
        schedule: Schedule,
        log: Callable[[str], None],
    ) -> None:
        self._words = segment.words
        self._layout = layout = segment.layout
        self._ledger = ledger
        self._store = store
        self._schedule = schedule
        self._log = log
        self._groups = GroupTable(segment)
        self._leases = LeaseTable(segment.words, layout)
        self._bases = [layout.shard(shard) for shard in range(layout.shards)]
        self._last_words = [0] * layout.shards
        # Requests that are published and not committed: (position, end, number), in ring order.
        self._published: list[deque[tuple[int, int, int]]] = [deque() for _ in self._bases]
        self._void: set[int] = set()  # numbers of requests that were taken back
        self.voids = 0
        self._committed = [0] * layout.shards  # by the ledger
        self._numbers = 0  # of commits that are taken in
        self._recent: dict[int, Commit] = {}
        self._keys: dict[int, tuple[int, str]] = {}
        self._first_of_key: dict[tuple[int, str], int] = {}
        self._heads: dict[tuple[int, int], int] = {}
        self._appends: dict[int, tuple[int | None, int]] = {}  # expectation and records by number
        self._append_head = 0
        self._keyed: set[int] = set()
        self.cursors = CursorTruth()
        self._shard_of: dict[int, int] = {}
        self.stored: dict[int, bool] = {}  # by number, of what is committed
        self.evicted: set[int] = set()  # numbers, in some partition
        self._log_end = 0
        self._asked = False
        self.acknowledgements = 0

    # Told by the machine

    def published(self, shard: int, position: int, end: int, number: int) -> None:
        """A request's head was stored."""
        self._published[shard].append((position, end, number))
        self._shard_of[number] = shard

    def voided(self, shard: int, positions: Sequence[int]) -> None:
        """Requests are withdrawn: their producers are told that they will never be stored."""
        numbers = {position: number for position, _, number in self._published[shard]}
        require(numbers.keys() >= set(positions), "what is committed is not taken back", positions)
        self._void |= {numbers[position] for position in positions}
        self.voids += len(positions)

    def keyed(self, number: int, topic_id: int, key: str) -> None:
        """A request has an idempotency key."""
        self._keys[number] = (topic_id, key)
        self._keyed.add(number)

    def appended(self, number: int, expected: int | None, count: int) -> None:
        """A request of ``count`` records is for the topic of appends."""
        self._appends[number] = (expected, count)

    def head(self, topic_id: int, partition: int = 0) -> int:
        """The head after the last commit."""
        return self._heads.get((topic_id, partition), 0)

    def before_commit(self, draft: CommitDraft) -> None:
        """The ledger is asked to commit, with everything that must come before."""
        task = self._schedule.current
        assert task is not None
        self._asked = True
        require(draft.locator in self._store.kept, "the object is durable first", draft.locator)
        confirmed_ns = self._store.confirmed_ns[draft.locator]
        require(
            task.looked_ns >= confirmed_ns,
            "ownership is checked after the PUT", draft.key, task.looked_ns, confirmed_ns,
        )  # fmt: skip
        age_ns = task.looked_ns - self._words[at.G_OWNED_SENT_NS]
        require(age_ns <= OWNED_MAX_NS, "nothing is committed when ownership is old", age_ns)
        sent = sent_of(self._words)
        gap_ns = task.looked_wall_ns - task.looked_ns - (sent.wall_ns - sent.boot_ns)
        require(
            abs(gap_ns) <= GAP_MAX_NS or self._words[at.G_OWNED_SENT_NS] > task.looked_ns,
            "nothing is committed after a gap in time before an entry", gap_ns,
        )  # fmt: skip

    def acknowledged(self, number: int, shard: int, position: int, commit: Commit) -> None:
        """A producer got its answer."""
        self._take_in()
        require(commit.number <= self._numbers, "acknowledged, not committed", number, commit)
        known = self._recent.get(commit.number)
        if known is not None:
            require(known.lease_id == commit.lease_id, "the log is the ledger's", known, commit)
            require(known.ranges == commit.ranges, "the log is the ledger's", known, commit)
        require(position < self._committed[shard], "acknowledged, not committed", number, shard)
        require(number not in self._void, "acknowledged and taken back", number, shard)
        self.acknowledgements += 1

    # Looked at after every step

    def check(self, lock_table: LockTable) -> None:
        """Raises Violation, or AssertionError by the code's own checks."""
        words, bases = self._words, self._bases
        if self._asked or words[at.G_COMMITS] != self._numbers:
            self._take_in()
        require(
            words[at.G_COMMITS] <= self._numbers,
            "the log is not ahead of the ledger", words[at.G_COMMITS], self._numbers,
        )  # fmt: skip
        require(words[at.G_COMMITS] >= self._log_end, "the log never falls", self._log_end)
        self._log_end = words[at.G_COMMITS]
        self._groups.map.check_invariants()
        committed = [words[base + at.S_COMMITTED] for base in bases]
        try:
            self._leases.check_invariants(committed)
        except AssertionError as error:
            raise Violation(f"leases tile what is not committed: {error}") from error
        truth = list(committed)
        for lease in self._leases.in_state(LIVE, ORPHAN):
            for leased in lease.ranges:
                truth[leased.shard] = max(truth[leased.shard], leased.end)
        for lease in self._leases.in_state(DONE):
            for leased in lease.ranges:
                require(
                    leased.end <= committed[leased.shard],
                    "a lease is done after its committed words", lease, committed,
                )  # fmt: skip
        for group in self._groups.map.groups():
            marked = self._groups.word(group.group, at.P_MARK)
            for shard in self._groups.map.members(group):
                self._check_ring(shard, committed[shard], truth[shard], bool(marked))
        self._last_words = committed

    def _check_ring(self, shard: int, committed: int, truth: int, marked: bool) -> None:
        words, base = self._words, self._bases[shard]
        pulled, head = words[base + at.S_PULLED], words[base + at.S_HEAD]
        reserved = words[base + at.S_RESERVED]
        require(
            committed <= truth <= head <= reserved <= committed + self._layout.ring_bytes,
            "committed <= leased <= head <= reserved <= committed + capacity",
            shard, committed, truth, head, reserved,
        )  # fmt: skip
        require(pulled <= head, "pulled <= head", shard, pulled, head)
        require(
            marked or pulled == truth,
            "without a mark, pulled is the leased end", shard, pulled, truth, committed,
        )  # fmt: skip
        require(
            committed >= self._last_words[shard],
            "committed never falls", shard, committed, self._last_words[shard],
        )  # fmt: skip
        passed = [each for each in self._published[shard] if each[0] < committed]
        require(
            all(end <= committed and number in self._void for _, end, number in passed),
            "committed is moved after the ledger, or voids", shard, committed, passed,
        )  # fmt: skip

    def _take_in(self) -> None:
        """Takes in what the ledger has committed since."""
        self._asked = False
        before = self._numbers
        for number in range(self._numbers + 1, self._ledger.read(commits.latest_number) + 1):
            self._committed_now(self._ledger.read(commits.by_number, number))
            self._numbers = number
        if self._numbers > before:
            self.cursors.check(self._ledger)

    def _committed_now(self, commit: Commit) -> None:
        self._log(f"commit {commit.number} {commit.lease_id} {commit.ranges}")
        self._recent[commit.number] = commit
        self._recent.pop(commit.number - 1_000, None)
        numbers: list[int] = []
        void = {(verdict.shard, verdict.position) for verdict in commit.verdicts}
        for leased in commit.ranges:
            waiting = self._published[leased.shard]
            end = self._committed[leased.shard]
            while waiting and waiting[0][0] < leased.end:
                position, end, number = waiting.popleft()
                require(end <= leased.end, "a request is whole", position, end, leased)
                if number in self._void:
                    self._void.remove(number)
                    continue
                require(
                    position >= leased.start,
                    "commits of a source are in ring order, each request in one", commit, number,
                )  # fmt: skip
                numbers.append(number)
                self.stored[number] = (leased.shard, position) not in void
            require(end == leased.end, "a commit ends with a request", end, leased)
            self._committed[leased.shard] = end
        self._check_object(commit, numbers)
        self._check_keys(commit, numbers)
        self._check_appends(commit, numbers)
        self.cursors.committed(commit, numbers, self.stored)
        for head in commit.heads:
            key = (head.topic_id, head.partition)
            before = self._heads.get(key, 0)
            require(head.head_seq >= before, "offsets only rise", commit, before)
            self._heads[key] = head.head_seq

    def _check_object(self, commit: Commit, numbers: list[int]) -> None:
        """The committed object holds exactly the requests that were published in its ranges."""
        body = self._store.kept[object_key(commit.lease_id)][1]
        found: set[int] = set()
        for extent in read_footer(body).extents:
            data = read_extent(body, extent)
            for head in batches(data):
                found.add(int.from_bytes(batch_payload(data, head)[:8], "big"))
        require(found == set(numbers), "the object holds the requests", commit, found, numbers)

    def _check_keys(self, commit: Commit, numbers: list[int]) -> None:
        deduped = sum(verdict.kind == "deduped" for verdict in commit.verdicts)
        repeats = 0
        for number in numbers:
            key = self._keys.pop(number, None)
            if key is None:
                continue
            if key in self._first_of_key:
                repeats += 1
            self._first_of_key.setdefault(key, number)
        require(deduped == repeats, "a repeated key is void, a first one is not", commit, repeats)

    def _check_appends(self, commit: Commit, numbers: list[int]) -> None:
        for number in numbers:
            if number not in self._appends:
                continue
            expected, count = self._appends[number]
            head = self._append_head
            require(
                self.stored[number] == (expected in (None, head)),
                "an append is stored when its expectation holds", number, expected, head, commit,
            )  # fmt: skip
            self._append_head += count if self.stored[number] else 0

    # Told by a recovery

    def check_order(self, numbers: Iterable[int]) -> None:
        """``numbers`` are a partition's requests, by their offsets."""
        last: dict[int, int] = {}
        for number in numbers:
            shard = self._shard_of[number]
            require(
                number > last.get(shard, 0), "a recovery keeps the order of each ring",
                shard, last.get(shard, 0), number,
            )  # fmt: skip
            last[shard] = number

    def check_recovered(self, ledger: Ledger, found: set[int], told: ReadTx) -> None:
        """``found`` are the requests that are stored in the recovered ledger."""
        self._take_in()
        self.cursors.check_recovered(ledger, found, told)
        listed_to = commits.latest_number(told)
        for number, stored in self.stored.items():
            if self.cursors.is_exempt(number, listed_to):
                continue
            if number not in self._keyed and number not in self.evicted:
                require(
                    (number in found) == stored,
                    "a recovery decides what was decided",
                    number, stored, self._appends.get(number),
                )  # fmt: skip
        met = [self._appends[n][0] for n in found if n in self._appends]
        expected = [seq for seq in met if seq is not None]
        require(len(expected) == len(set(expected)), "an expectation is met once", sorted(expected))

    # At rest

    def all_committed(self, held_back: int | None) -> bool:
        """Whether nothing that was published is uncommitted, and no lease is held.

        What a shard took back and died before it passed it waits for its successor.
        """
        words = self._words
        for shard, base in enumerate(self._bases):
            if words[base + at.S_HEAD] != words[base + at.S_COMMITTED]:
                left = self._published[shard]
                if shard != held_back or not all(number in self._void for _, _, number in left):
                    return False
        return not any(self._leases.in_state(LIVE, ORPHAN))

    def check_rest(self) -> None:
        """When all is quiet: every request in exactly one commit; the ledger's own rules."""
        self._take_in()
        left = [number for waiting in self._published for _, _, number in waiting]
        require(self._void >= set(left), "each request is in a commit, or void", left)
        require(self._words[at.G_COMMITS] == self._numbers, "the log is whole", self._numbers)
        self._ledger.read(invariants.check)
