"""Segments after crashes and damage: a torn end never happened, a damaged middle is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.uploader.l0_samples import unhurried
from uploader.stores.file import FileStore
from uploader.stores.segment import (
    ALLOCATE_BYTES,
    SCAN_BYTES,
    WINDOW_BYTES,
    Damage,
    Frame,
    SegmentWriter,
    seal,
    walk,
)

NAME = "segment-1"


def put(writer: SegmentWriter, key: str, body: bytes) -> int:
    return writer.append(key.encode(), body, crc32c(body), 1)


class Segment:
    """A segment as a killed writer left it: five frames, the file's bytes, and where they stand."""

    def __init__(self, folder: Path, *, sealed: bool = False, sizes: tuple[int, ...] = ()) -> None:
        self.path = folder / NAME
        writer = SegmentWriter(folder, NAME)
        self.bodies = [bytes([n + 1]) * size for n, size in enumerate(sizes or (5, 300, 0, 70, 40))]
        self.positions = [put(writer, f"l0/{n}", body) for n, body in enumerate(self.bodies)]
        self.end = writer.position
        if sealed:
            writer.seal()
        else:
            os.close(writer._fd)
        self.data = self.path.read_bytes()

    def found(self, *, bodies: bool = False) -> tuple[list[str], list[Damage]]:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            items = list(walk(fd, NAME, bodies=bodies))
        finally:
            os.close(fd)
        keys = [item.key for item in items if isinstance(item, Frame)]
        return keys, [item for item in items if isinstance(item, Damage)]


ALL = [f"l0/{n}" for n in range(5)]


@pytest.mark.parametrize("sealed", [True, False])
def test_all_frames_of_a_sound_segment_are_found(tmp_path: Path, sealed: bool) -> None:
    segment = Segment(tmp_path, sealed=sealed)
    assert segment.found(bodies=True) == (ALL, [])
    assert len(segment.data) == (segment.end + 16 if sealed else ALLOCATE_BYTES)


def test_frames_larger_and_smaller_than_one_read_are_found(tmp_path: Path) -> None:
    sizes = (WINDOW_BYTES, 10, 2 * SCAN_BYTES, WINDOW_BYTES - 60, 0)
    segment = Segment(tmp_path, sizes=sizes)
    assert segment.found(bodies=True) == (ALL, [])


@unhurried
@given(data=st.data())
def test_a_torn_last_frame_does_not_count(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    segment = Segment(tmp_path_factory.mktemp("torn"))
    last = segment.positions[-1]
    cut = data.draw(st.integers(last, segment.end - 1), "bytes that reached the disk")
    holes = data.draw(st.lists(st.integers(last, segment.end - 1)), "bytes that did not")
    tail = bytearray(segment.data[:cut])
    if data.draw(st.booleans(), "the file was allocated ahead"):
        tail.extend(bytes(len(segment.data) - cut))
    for hole in holes:
        tail[hole : hole + 1] = bytes(len(tail[hole : hole + 1]))
    whole = bytes(tail[last : segment.end]) == segment.data[last : segment.end]
    segment.path.write_bytes(tail)
    for bodies in (True, False):
        keys, damage = segment.found(bodies=bodies)
        assert keys == (ALL if whole else ALL[:-1])
        assert all(each.tail for each in damage)


@unhurried
@given(data=st.data())
def test_damage_in_the_middle_is_named_and_the_frames_after_it_are_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    segment = Segment(tmp_path_factory.mktemp("damaged"), sealed=data.draw(st.booleans()))
    number = data.draw(st.integers(0, 3))
    start, end = segment.positions[number], segment.positions[number + 1]
    used = start + 40 + 4 + len(segment.bodies[number])
    # The state word apart: it is outside the checksum, for a delete overwrites it.
    at = data.draw(st.integers(start, used - 1).filter(lambda at: not start + 4 <= at < start + 8))
    changed = bytearray(segment.data)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    segment.path.write_bytes(changed)
    keys, damage = segment.found(bodies=True)
    assert keys == [key for key in ALL if key != f"l0/{number}"]
    assert [(each.position, each.tail) for each in damage] == [(start, False)]
    assert end > at


def test_a_sealed_segment_has_no_torn_end_only_a_damaged_one(tmp_path: Path) -> None:
    segment = Segment(tmp_path, sealed=True)
    changed = bytearray(segment.data)
    changed[segment.positions[-1] + 20] ^= 1
    segment.path.write_bytes(changed)
    keys, damage = segment.found()
    assert keys == ALL[:-1]
    assert [(each.position, each.tail) for each in damage] == [(segment.positions[-1], False)]


def test_a_frame_inside_a_body_does_not_count(tmp_path: Path) -> None:
    inner = Segment(tmp_path, sizes=(50, 50, 50, 50, 50))
    stolen = inner.data[: inner.end]
    inner.path.unlink()
    writer = SegmentWriter(tmp_path, NAME)
    put(writer, "l0/outer", stolen)
    put(writer, "l0/next", b"x")
    writer.seal()
    data = bytearray(inner.path.read_bytes())
    data[0:4] = b"none"
    inner.path.write_bytes(data)
    keys, damage = inner.found()
    assert keys == ["l0/next"]
    assert [each.position for each in damage] == [0]


def test_a_segment_that_is_removed_while_it_is_walked_is_not_damaged(tmp_path: Path) -> None:
    segment = Segment(tmp_path, sealed=True, sizes=(WINDOW_BYTES,) * 5)
    with segment.path.open("rb") as file:
        items = walk(file.fileno(), NAME)
        assert isinstance(next(items), Frame)
        segment.path.unlink()
        os.truncate(f"/proc/self/fd/{file.fileno()}", 0)
        assert [item for item in items if isinstance(item, Damage)] == []


def test_a_segment_under_another_name_holds_no_frames(tmp_path: Path) -> None:
    segment = Segment(tmp_path, sealed=True)
    with segment.path.open("rb") as file:
        items = list(walk(file.fileno(), "segment-2"))
    assert not any(isinstance(item, Frame) for item in items)


def test_the_store_lists_what_damage_left_and_names_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    locators = [store.put(f"l0/{n}", b"x" * 50, crc32c(b"x" * 50)) for n in range(3)]
    store.close()
    segment, position, _ = locators[1].split(":")
    path = tmp_path / "segments" / segment
    with path.open("r+b") as file:
        file.seek(int(position) + 60)
        file.write(b"y")
    (named,) = store.damage()
    assert (named.segment, named.position) == (segment, int(position))
    assert "l0/1 has CRC32C" in named.reason
    assert [head.key for head in store.list("")] == ["l0/0", "l0/1", "l0/2"]


def test_a_damaged_segment_is_kept_even_if_nothing_else_in_it_lives(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    locators = [store.put(f"l0/{n}", b"x" * 50, crc32c(b"x" * 50)) for n in range(3)]
    store.close()
    segment, position, _ = locators[1].split(":")
    path = tmp_path / "segments" / segment
    with path.open("r+b") as file:
        file.seek(int(position))
        file.write(b"none")
    store.delete([locators[0], locators[2]])
    store.check()
    assert path.exists()


def test_check_leaves_a_torn_end_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    folder.mkdir()
    segment = Segment(folder)
    torn = segment.data[: segment.end - 8]
    segment.path.write_bytes(torn)
    store = FileStore(tmp_path)
    store.check()
    assert segment.path.read_bytes() == torn
    assert [head.key for head in store.list("")] == ALL[:-1]
    assert store.damage() == ()


def test_an_incomplete_seal_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "segments"
    folder.mkdir()
    segment = Segment(folder, sealed=True)
    segment.path.write_bytes(segment.data[:-16])
    store = FileStore(tmp_path)
    store.check()
    assert segment.path.read_bytes() == segment.data
    with segment.path.open("r+b") as file:
        seal(file.fileno(), NAME, segment.end)
    assert segment.path.read_bytes() == segment.data


WRITER = """
import os, sys, threading
from crc32c import crc32c
from uploader.stores.file import FileStore
store = FileStore(sys.argv[1], segment_bytes=2_000_000)
def work(thread):
    number = 0
    while True:
        body = bytes([thread]) + os.urandom(sys_sizes[number % len(sys_sizes)])
        locator = store.put(f"l0/{thread}-{number}", body, crc32c(body))
        os.write(1, f"{locator} {crc32c(body)}\\n".encode())
        number += 1
sys_sizes = (100, 70_000, 300_000, 8)
for thread in range(3):
    threading.Thread(target=work, args=(thread,)).start()
"""


def test_a_writer_killed_in_the_middle_of_puts_leaves_only_whole_objects(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    for kill_behind in (1, 7, 40):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(kill_behind)]
        writer.kill()
        lines += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        for line in lines:
            locator, checksum = line.decode().split()
            acknowledged[locator] = int(checksum)
    for tidy in (False, True):
        store = FileStore(tmp_path)
        if tidy:
            store.check()
        listed = {head.locator for head in store.list("")}
        assert acknowledged.keys() <= listed
        # At most one a thread was durable when the kill took its acknowledgement away.
        assert len(listed) <= len(acknowledged) + 9
        assert store.damage() == ()
        assert acknowledged == {each: crc32c(store.get(each)) for each in acknowledged}
        store.close()
