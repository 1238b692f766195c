"""Where the fence stands: before a publication, and before what it made true is read.

The fence is where a test acts: what a machine that reorders may do between two accesses happens
there. On x86-64 there is none, so each test gives the modules one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ledger.types import LeasedRange, LeaseId
from shards import alarms, barrier, commitlog, frame, leases, ring, rows
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.commitlog import CommitLog
from shards.frame import Part
from shards.layout import Layout
from shards.leases import LIVE, ORPHAN, Lease, LeaseTable
from shards.ring import Link, RingReader, RingWriter
from shards.segment import Segment
from tests.shards.peer import ROOT, commit_of
from uploader.groups import buddy
from uploader.groups.buddy import BuddyMap, Group

LAYOUT = Layout(2, 4096, commit_slots=4, commit_log_bytes=4096, commit_bytes_max=1024)


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(LAYOUT)
    yield made
    made.close()


class Fences:
    """The fences of one module; each does the next thing that it was given, and sees a state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self.seen: list[object] = []
        self.look: Callable[[], object] = lambda: None
        self.acts: list[Callable[[], object]] = []
        name = "fence" if hasattr(module, "fence") else "keep_order"
        monkeypatch.setattr(module, name, self._fence)

    def _fence(self) -> None:
        self.seen.append(self.look())
        if self.acts:
            self.acts.pop(0)()


def test_x86_64_needs_no_fence_aarch64_has_one_and_others_are_unknown() -> None:
    assert barrier.fence_for("x86_64") is None
    for machine in ("aarch64", "riscv64"):
        fence = barrier.fence_for(machine)
        assert fence is not None
        fence()
    assert barrier.SUPPORTED == ("x86_64", "aarch64")


def test_the_daemon_does_not_start_on_an_unknown_machine(tmp_path: Path) -> None:
    data = tmp_path / "data"
    program = "import platform; platform.machine = lambda: 'riscv64'; import cli; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--data", str(data)], cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this machine is riscv64; headgate runs on x86_64 and aarch64" in done.stderr
    assert not data.exists()


def test_a_request_is_written_between_reserved_and_head(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RingWriter(segment, 0)
    base = segment.layout.shard(0)
    part = Part(1, 0, 1, b"payload!", 1, 1)
    for parts in ([part], [part, part]):
        fences = Fences(monkeypatch, ring)

        def look(start: int = writer.head) -> object:
            reserved, head = segment.words[base + at.S_RESERVED], segment.words[base + at.S_HEAD]
            return reserved > start, b"payload!" in bytes(segment.ring(0)[start:]), head > start

        fences.look = look
        writer.append(1, 1, b"", parts)
        assert fences.seen == [(True, False, False), (True, True, False)]


@pytest.mark.parametrize("of_chain", [False, True], ids=["ring", "chain"])
def test_a_reader_takes_no_byte_before_it_has_seen_head_or_what_names_it(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, of_chain: bool
) -> None:
    writer, reader = RingWriter(segment, 0), RingReader(segment, 0)
    position = writer.append(1, 1, b"", [Part(1, 0, 1, b"payload!", 1, 1)])
    late = bytes(segment.ring(0)[: writer.head])
    segment.ring(0)[: writer.head] = bytes(writer.head)
    fences = Fences(monkeypatch, ring)
    fences.acts = [lambda: segment.ring(0).__setitem__(slice(0, len(late)), late)]
    if of_chain:
        assert reader.chain(1, 0, position, position + frame.HEADER_BYTES, 1) is not None
    else:
        assert [found.position for found in reader.requests(0, reader.head)] == [position]


def test_a_read_of_the_tail_checks_reserved_after_its_copy(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = RingWriter(segment, 0), RingReader(segment, 0)
    position = writer.append(1, 1, b"", [Part(1, 0, 1, b"payload!", 1, 1)])
    (request,) = reader.requests(0, reader.head)
    fences = Fences(monkeypatch, ring)
    reserved_at = segment.layout.shard(0) + at.S_RESERVED
    fences.acts = [lambda: segment.words.__setitem__(reserved_at, position + 4097)]
    _, _, count, offset, length, _, _ = request.batches[0]
    assert reader.copy([Link(position, offset, length, count)]) is None


def test_a_commit_is_written_between_the_end_before_it_and_its_own(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog(segment)
    fences = Fences(monkeypatch, commitlog)
    slot, start = LAYOUT.commit_slot(1), LAYOUT.commit_log

    def look() -> tuple[bytes, list[int], bool, int]:
        words = segment.words
        entry = bytes(segment.data[start : start + 1024])
        return entry, list(words[slot : slot + 4]), bool(words[at.G_COMMITS_RESERVED]), log.end

    fences.look = look
    log.publish(commit_of(1), 7)
    entry, place, _, _ = look()
    assert place[:2] == [1, 0] and place[3] == 7
    assert fences.seen == [(bytes(1024), [0, 0, 0, 0], True, 0), (entry, place, True, 0)]


def test_a_reader_of_the_commit_log_checks_the_end_before_and_after_its_copy(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog(segment)
    log.publish(commit_of(1))
    start, end = LAYOUT.commit_slot(1) * at.WORD_BYTES, LAYOUT.commit_log + 1024
    late = bytes(segment.data[start:end])
    segment.data[start:end] = bytes(len(late))
    fences = Fences(monkeypatch, commitlog)
    fences.acts = [lambda: segment.data.__setitem__(slice(start, end), late)]
    assert log.read(1) == commit_of(1)
    words, capacity = segment.words, LAYOUT.commit_log_bytes
    fences.acts = [lambda: None, lambda: words.__setitem__(at.G_COMMITS_RESERVED, capacity + 1)]
    assert log.read(1) is None
    words[at.G_COMMITS_RESERVED] = capacity
    assert log.read(1) == commit_of(1)
    fences.acts = [lambda: None, lambda: words.__setitem__(at.G_COMMITS, 4)]
    assert log.read(1) is None


def test_a_lease_becomes_live_after_its_words_and_its_sources_follow_its_id(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LeaseTable(segment.words, LAYOUT)
    base = LAYOUT.lease(1, 0)
    fences = Fences(monkeypatch, leases)
    words = segment.words
    fences.look = lambda: (
        words[base + at.L_COUNTER], words[base + at.L_RANGES + 2], words[base]
    )  # fmt: skip
    lease = table.fill(1, 0, LeaseId(1, 1, 1, 9), 5, [LeasedRange(0, 0, 8)])
    assert fences.seen == [(9, 0, 0), (9, 8, 0)]
    fences.seen.clear()
    table.finish(lease)
    assert fences.seen == [(9, 8, LIVE)]


def test_a_lease_changes_its_holder_in_order(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LeaseTable(segment.words, LAYOUT)
    base, words = LAYOUT.lease(1, 0), segment.words
    lease = table.fill(1, 0, LeaseId(3, 1, 1, 9), 5, [LeasedRange(0, 0, 8)])
    fences = Fences(monkeypatch, leases)
    words[base] = ORPHAN
    fences.look = lambda: (words[base + at.L_HOLDER], words[base])
    assert table.adopt(lease, 0) == lease._replace(holder=0)
    assert fences.seen == [(0, ORPHAN)]


def test_committed_is_read_after_the_leased_ends(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences = Fences(monkeypatch, leases)
    assert LeaseTable(segment.words, LAYOUT).leased_ends() == [0, 0]
    assert len(fences.seen) == 1


def test_the_words_of_a_lease_are_read_after_its_state(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LeaseTable(segment.words, LAYOUT)
    table.fill(1, 0, LeaseId(1, 1, 1, 9), 5, [LeasedRange(0, 0, 8)])
    end_at = LAYOUT.lease(1, 0) + at.L_RANGES + 2
    segment.words[end_at] = 0
    fences = Fences(monkeypatch, leases)
    fences.acts = [lambda: None, lambda: segment.words.__setitem__(end_at, 8)]
    (lease,) = table.in_state(LIVE)
    assert lease.ranges == (LeasedRange(0, 0, 8),)
    # And looks at the counter again after them.
    new: list[Lease] = []

    def replace() -> None:
        table.finish(lease)
        table.free_done(1)
        new.append(table.fill(1, 0, LeaseId(1, 1, 1, 10), 5, [LeasedRange(0, 8, 16)]))

    fences.acts = [lambda: None, lambda: None, replace]
    assert list(table.in_state(LIVE)) == new
    assert len(new) == 1


def test_the_upper_half_of_a_split_is_there_before_the_lower_one_shrinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [0] * 4
    groups = BuddyMap(sizes, 4)
    groups.start()
    fences = Fences(monkeypatch, buddy)
    fences.look = lambda: list(sizes)
    groups.split(Group(0, 4))
    assert fences.seen == [[4, 0, 2, 0]]
    # Who saw the lower one shrink looks for the upper one after that.
    sizes[2] = 0
    fences.acts = [lambda: sizes.__setitem__(2, 2)]
    assert groups.group_of(3) == Group(2, 2)


def test_an_alarms_row_is_written_and_read_between_two_versions(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = AlarmBoard(segment, 0)
    row = LAYOUT.alarm(0, AlarmKind.STORE_FAILING)
    words = segment.words
    fences = Fences(monkeypatch, rows)
    fences.look = lambda: (words[row + at.A_VERSION] & 1, words[row + at.A_COUNT])
    board.raise_(AlarmKind.STORE_FAILING, "first", 5)
    assert fences.seen == [(1, 0), (1, 1)]
    fences.acts = [lambda: None, lambda: board.raise_(AlarmKind.STORE_FAILING, "second", 6)]
    (alarm,) = alarms.raised(segment)
    assert (alarm.text, alarm.count) == ("second", 2)
    fences.seen.clear()
    board.clear(AlarmKind.STORE_FAILING)
    assert fences.seen == [(1, 2), (1, 0)]


def test_rings_and_leases_work_with_the_fence_of_aarch64(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ring, barrier):
        monkeypatch.setattr(module, "fence", barrier.fence_for("aarch64"))
    writer, reader = RingWriter(segment, 0), RingReader(segment, 0)
    position = writer.append(1, 1, b"", [Part(1, 0, 1, b"payload!", 1, 1)])
    (request,) = reader.requests(0, reader.head)
    _, _, count, offset, length, _, _ = request.batches[0]
    link = Link(position, offset, length, count)
    copies = reader.copy([link])
    assert copies is not None and copies[0][1] == b"payload!"
    first = reader.part_position(position, request.batches[0])
    assert reader.chain(1, 0, position, first, count) == [link]
    log = CommitLog(segment)
    log.publish(commit_of(1))
    assert log.read(1) == commit_of(1)
    table = LeaseTable(segment.words, LAYOUT)
    lease = table.fill(0, 0, LeaseId(1, 1, 0, 1), 5, [LeasedRange(0, 0, writer.head)])
    assert list(table.in_state(LIVE)) == [lease]
    assert table.leased_ends() == [writer.head, 0]
