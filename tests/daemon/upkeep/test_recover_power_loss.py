"""A recovery on a disk that loses power: the ledger that is in place is a whole one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from daemon.upkeep.recover import rebuild
from ledger import commits, topics
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.types import TopicConfig
from tests.daemon.upkeep.recovery_world import Request, World
from tests.powerloss import Disk, Image

REBUILT = "rebuilt"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where an fsync takes no time."""
    with TemporaryDirectory(prefix="headgate-power-", dir="/dev/shm") as parent:
        yield Path(parent)


@pytest.mark.parametrize(
    ("imaged", "log_only"),
    [(False, True), (True, False)],
    ids=["entries, and a ledger's log only", "image, and a ledger"],
)
def test_no_loss_of_power_leaves_half_a_ledger_in_place(
    folder: Path, imaged: bool, log_only: bool
) -> None:
    (folder / "world").mkdir()
    world = World(folder / "world")
    world.node.ledger.write(topics.create, "a", TopicConfig(), 1)
    for _ in range(3):
        world.produce([Request("a", 0, 2)])
    world.node.tell()
    if imaged:
        world.node.put_image(world.store)
        world.node.tell()
    world.produce([Request("a", 0, 1)])
    # As a kill leaves it: the last commits are in its log only.
    shutil.copytree(world.node.path.parent, folder / "data")
    log = world.log()
    taken = log.take(take_over=True)
    path = folder / "data" / world.node.path.name
    formerly = [state(folder / "data", path.name, folder / "before")]
    assert formerly[0][1] == 4
    if log_only:  # a recovery was cut off between its renames
        path.unlink()
        formerly = []
    disk = Disk(folder / "data")
    with disk.recording():
        rebuild(path, nullcontext(), world.store, taken, log)
        disk.note(REBUILT)
    with closing(Ledger(path, nullcontext())) as ledger:
        rebuilt = (ledger.read(backup.mark).history, ledger.read(commits.latest_number))
    assert rebuilt[1] == 4
    images = 0
    for image in disk.images(seed=1):
        judge(image, folder / str(images), path.name, formerly, rebuilt)
        with closing(Ledger(folder / str(images) / path.name, nullcontext())):
            pass  # a start that refuses what it finds, before `headgate recover`
        again = rebuild(folder / str(images) / path.name, nullcontext(), world.store, taken, log)
        assert again.sound
        assert state(folder / str(images), path.name, folder / f"{images}-again")[1] == 4
        images += 1
    assert images > 10
    world.close()


def judge(
    image: Image, folder: Path, name: str, formerly: list[tuple[str, int]],
    rebuilt: tuple[str, int],
) -> None:  # fmt: skip
    """The ledger that is in place is the former or the new one, whole; in the end, the new one."""
    folder.mkdir()
    image.build(folder)
    if name not in image.paths:
        assert REBUILT not in image.facts, f"after {image.after}: no ledger is in place"
        return
    found = state(folder, name, folder.with_name(f"{folder.name}-looked-at"))
    allowed = [rebuilt] if REBUILT in image.facts else [*formerly, rebuilt]
    assert found in allowed, f"after {image.after}: another ledger is in place"


def state(folder: Path, name: str, copy: Path) -> tuple[str, int]:
    """History and last commit of the ledger, once it was checked; of a copy, for looking at a
    database changes it."""
    shutil.copytree(folder, copy)
    with closing(Ledger(copy / name, nullcontext(), must_exist=True)) as ledger:
        ledger.read(invariants.check)
        return ledger.read(backup.mark).history, ledger.read(commits.latest_number)
