"""The segment: who may attach, and that nothing of it is left."""

from __future__ import annotations

import mmap
import os
import resource
from contextlib import closing
from pathlib import Path

import pytest

from shards import layout as at
from shards.layout import Layout
from shards.segment import Segment, SegmentError
from tests.shards.conftest import MakeSegment
from tests.shards.peer import shape, started


def test_a_process_that_attaches_shares_the_words(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    segment.words[at.G_WINDOW_NS] = 41
    with started("attach", segment.fd, shape(segment), fds=[segment.fd]) as peer:
        assert peer.line() == "42"
    assert segment.words[at.G_WINDOW_NS] == 42


def test_words_survive_processes_that_attached_and_ended(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    for expected in ("1", "2"):
        with started("attach", segment.fd, shape(segment), fds=[segment.fd]) as peer:
            assert peer.line() == expected
            assert peer.wait() == 0


def test_a_segment_of_another_size_is_refused_with_both_sizes(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    other = Layout(2, 4096)
    with pytest.raises(
        SegmentError, match=f"{segment.layout.size_bytes} bytes.*{other.size_bytes}"
    ):
        Segment.attach(segment.fd, other)


@pytest.mark.parametrize("word", [at.G_MAGIC, at.G_VERSION])
def test_a_segment_of_another_program_or_version_is_refused(
    make_segment: MakeSegment, word: int
) -> None:
    segment = make_segment(Layout(1, 4096))
    segment.words[word] += 1
    with pytest.raises(SegmentError, match="not a segment of version 1"):
        Segment.attach(segment.fd, segment.layout)


def test_the_memory_has_no_name_that_could_remain(make_segment: MakeSegment) -> None:
    before = set(os.listdir("/dev/shm"))
    segment = make_segment(Layout(1, 4096))
    assert os.readlink(f"/proc/self/fd/{segment.fd}").endswith("(deleted)")
    assert set(os.listdir("/dev/shm")) - before == set()
    assert not os.get_inheritable(segment.fd)
    inode = os.fstat(segment.fd).st_ino
    segment.close()
    mapped = Path("/proc/self/maps").read_text()
    assert f" {inode} " not in mapped


def test_closing_while_a_ring_view_is_held_raises_nothing(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    ring = segment.ring(0)
    ring[0] = 7
    segment.close()
    assert ring[0] == 7


def test_a_segment_owns_its_descriptor_and_closes_it_once(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    fd, given = segment.fd, os.dup(segment.fd)
    attached = Segment.attach(given, segment.layout)
    attached.close()
    segment.close()
    for number in (fd, given):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
    segment.close()


def test_a_successor_continues_the_lease_ids_of_its_shard(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(2, 4096))
    segment.words[at.G_INCARNATION] = 3
    segment.words[at.G_EPOCH] = 9
    first = segment.next_lease_id(1)
    assert (first.incarnation, first.epoch, first.shard, first.counter) == (3, 9, 1, 1)
    successor = Segment.attach(os.dup(segment.fd), segment.layout)
    assert successor.next_lease_id(1).counter == 2
    assert successor.next_lease_id(0).counter == 1
    successor.close()


def test_the_first_lap_of_a_ring_costs_its_writer_no_page_faults(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(shards=2, ring_bytes=8 << 20))
    with closing(Segment.attach(os.dup(segment.fd), segment.layout)) as attached:
        attached.map_ring(1)
        ring = attached.ring(1)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for at_byte in range(0, len(ring), mmap.PAGESIZE):
            ring[at_byte] = 1
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert faults < segment.layout.ring_bytes // mmap.PAGESIZE // 4
