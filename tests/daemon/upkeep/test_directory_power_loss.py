"""A first start on a disk that loses power: the folders that hold the ledger stay."""

from __future__ import annotations

import shutil
from pathlib import Path

from daemon.config import Config, Override, load
from daemon.upkeep.directory import take_directory
from tests.powerloss import Disk

TAKEN = "taken"


def config_of(root: Path) -> Config:
    return load(None, {}, [Override("data_dir", str(root / "var" / "headgate"))])


def test_the_data_directorys_name_is_durable_before_anything_is_answered(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    config = config_of(root)
    names = [str(Path(config.ledger_path).parent.relative_to(root)), "var/headgate"]
    disk = Disk(root)
    with disk.recording():
        take_directory(config).close()
        disk.note(TAKEN)
    for image in disk.images(seed=1):
        assert TAKEN not in image.facts or set(names) <= image.paths.keys(), image.after


def test_a_directory_that_a_killed_start_made_is_durable_too(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = Disk(root)
    with disk.recording():
        (root / "var" / "headgate").mkdir(parents=True)
    shutil.rmtree(root)
    root.mkdir()
    again = disk.after_kill(disk.moments[-1], root)
    with again.recording():
        take_directory(config_of(root)).close()
        again.note(TAKEN)
    for image in again.images(seed=1, last=True):
        assert "var/headgate" in image.paths, image.after
