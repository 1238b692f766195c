"""The disk that loses power leaves what it promises, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.powerloss import Content, Disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    root = tmp_path / "disk"
    root.mkdir()
    (root / "old").write_bytes(b"old")
    return Disk(root)


def left(disk: Disk, path: str) -> list[set[object]]:
    """What may be at the path, by the number of known facts."""
    found: list[set[object]] = [set() for _ in range(len(disk.facts) + 1)]
    for image in disk.images(seed=1):
        content = image.paths.get(path, "absent")
        found[len(image.facts)].add(content.data if isinstance(content, Content) else content)
    return found


def test_bytes_may_be_lost_until_their_file_was_synced(disk: Disk) -> None:
    with disk.recording():
        fd = os.open(disk.root / "old", os.O_RDWR)
        os.pwrite(fd, b"new", 0)
        disk.note("written")
        os.fdatasync(fd)
        disk.note("synced")
        os.close(fd)
    before, written, synced = left(disk, "old")
    assert before == {b"old", b"new"}
    assert {b"old", b"new"} == written
    assert synced == {b"new"}


def test_a_name_may_be_lost_until_its_folder_was_synced(disk: Disk) -> None:
    with disk.recording():
        fd = os.open(disk.root / "new", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"body")
        os.fsync(fd)
        disk.note("the file was synced")
        os.close(fd)
        folder = os.open(disk.root, os.O_RDONLY)
        os.fsync(folder)
        disk.note("the folder was synced")
        os.close(folder)
    _, file_synced, folder_synced = left(disk, "new")
    assert file_synced == {"absent", b"body"}
    assert folder_synced == {b"body"}


def test_a_rename_happens_as_a_whole_or_not(disk: Disk) -> None:
    with disk.recording():
        (disk.root / "old").rename(disk.root / "new")
    assert {frozenset(image.paths) for image in disk.images(seed=1)} == {
        frozenset({"old"}),
        frozenset({"new"}),
    }


def test_a_folders_content_is_lost_with_its_name(disk: Disk) -> None:
    with disk.recording():
        (disk.root / "below").mkdir()
        fd = os.open(disk.root / "below" / "new", os.O_RDWR | os.O_CREAT)
        os.fsync(fd)
        os.close(fd)
        folder = os.open(disk.root / "below", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        disk.note("synced below")
    assert {"absent", b""} == left(disk, "below/new")[1]


def test_sectors_that_were_not_synced_are_lost_one_by_one(disk: Disk) -> None:
    body = b"x" * 512 + b"y" * 512
    with disk.recording():
        fd = os.open(disk.root / "old", os.O_RDWR)
        os.pwrite(fd, body, 0)
        os.close(fd)
    found = {content for each in range(20) for content in _contents(disk, each)}
    assert {b"old", body, body[:512], b"old".ljust(512, b"\0") + body[512:]} <= found


def _contents(disk: Disk, seed: int) -> set[bytes]:
    contents = [image.paths["old"] for image in disk.images(seed)]
    return {content.data for content in contents if content is not None}


def test_what_others_write_is_not_durable_before_it_is_synced(disk: Disk) -> None:
    with disk.recording():
        (disk.root / "foreign").write_bytes(b"body")
        fd = os.open(disk.root / "foreign", os.O_RDONLY)
        (disk.root / "foreign").rename(disk.root / "new")
        disk.note("renamed")
        os.fsync(fd)
        folder = os.open(disk.root, os.O_RDONLY)
        os.fsync(folder)
        disk.note("synced")
        os.close(fd)
        os.close(folder)
    _, renamed, synced = left(disk, "new")
    assert {"absent", b"", b"body"} == renamed
    assert synced == {b"body"}


def test_after_a_kill_files_are_as_written_and_no_more_durable(disk: Disk, tmp_path: Path) -> None:
    with disk.recording():
        fd = os.open(disk.root / "old", os.O_RDWR)
        os.pwrite(fd, b"new", 0)
        os.close(fd)
    (tmp_path / "again").mkdir()
    again = disk.after_kill(disk.moments[-1], tmp_path / "again")
    assert (again.root / "old").read_bytes() == b"new"
    assert left(again, "old") == [{b"old", b"new"}]
    with again.recording():
        fd = os.open(again.root / "old", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        again.note("synced")
    assert left(again, "old")[1] == {b"new"}
