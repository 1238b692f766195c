"""When new requests are refused: a failing store, a full disk."""

from __future__ import annotations

from pathlib import Path

from daemon.api.schemas import AlarmStatus
from daemon.config import Override, load
from daemon.governor.producers_gate import (
    SPARE_BYTES,
    ClosedBy,
    Disk,
    DiskSpace,
    Gate,
    disks_of,
    space_of,
)

MIB = 1 << 20
GIB = 1 << 30
FAILING = AlarmStatus("store_failing", 2_000, 3, "store failing for 2 s: 503", False)
OTHER = AlarmStatus("foreign_object", 2_000, 1, "", True)
LEDGER = Disk(ClosedBy.LEDGER_DISK, "the ledger's disk", Path("/data/ledger"), False)
STORE = Disk(ClosedBy.STORE_DISK, "the store's disk", Path("/data/store"), True)


class Disks:
    """File systems of a size, with what is free of them."""

    def __init__(self, total_bytes: int = 100 * GIB) -> None:
        self.total_bytes = total_bytes
        self.free = {LEDGER.path: total_bytes, STORE.path: total_bytes}
        self.gate = Gate([LEDGER, STORE], lambda path: DiskSpace(self.free[path], total_bytes))


def test_the_door_is_shut_while_the_store_fails_and_for_no_other_alarm() -> None:
    gate = Disks().gate
    assert gate.look([OTHER], 0) == 0
    assert gate.look([OTHER, FAILING], 0) == ClosedBy.STORE_FAILING
    assert gate.look([OTHER], 0) == 0


def test_a_disk_without_spare_room_shuts_the_door_and_twice_the_spare_opens_it() -> None:
    disks = Disks()
    for disk in (LEDGER, STORE):
        disks.free[disk.path] = SPARE_BYTES
        assert disks.gate.look([], 0) == 0
        disks.free[disk.path] = SPARE_BYTES - 1
        assert disks.gate.look([], 0) == disk.why
        assert f"{disk.name} ({disk.path}) has 65535 KiB free" in disks.gate.short
        disks.free[disk.path] = 2 * SPARE_BYTES - 1
        assert disks.gate.look([], 0) == disk.why
        disks.free[disk.path] = 2 * SPARE_BYTES
        assert disks.gate.look([], 0) == 0
        assert disks.gate.short == ""


def test_what_is_accepted_and_not_stored_must_still_fit_where_objects_go() -> None:
    disks = Disks()
    disks.free[LEDGER.path] = disks.free[STORE.path] = SPARE_BYTES + 10 * MIB
    assert disks.gate.look([], 10 * MIB) == 0
    assert disks.gate.look([], 10 * MIB + 1) == ClosedBy.STORE_DISK


def test_of_a_small_disk_a_twentieth_is_spare() -> None:
    disks = Disks(24 * MIB)
    disks.free[STORE.path] = 24 * MIB // 20
    assert disks.gate.look([], 0) == 0
    disks.free[STORE.path] -= 1
    assert disks.gate.look([], 0) == ClosedBy.STORE_DISK


def test_a_disk_that_cannot_be_asked_refuses_nobody() -> None:
    assert Gate([LEDGER], lambda _: None).look([], 0) == 0


def test_the_ledgers_disk_is_looked_at_and_the_embedded_stores(tmp_path: Path) -> None:
    embedded = load(None, {}, [Override("data_dir", str(tmp_path / "a b"))])
    assert [(disk.why, disk.path) for disk in disks_of(embedded)] == [
        (ClosedBy.LEDGER_DISK, tmp_path / "a b" / "ledger"),
        (ClosedBy.STORE_DISK, tmp_path / "a b" / "store"),
    ]
    bucket = load(None, {}, [Override("store_url", "s3://bucket/prefix")])
    assert [disk.why for disk in disks_of(bucket)] == [ClosedBy.LEDGER_DISK]


def test_the_room_is_that_of_the_file_system_also_where_nothing_is_made_yet(
    tmp_path: Path,
) -> None:
    here, later = space_of(tmp_path), space_of(tmp_path / "not" / "yet")
    assert here is not None and later is not None
    assert 0 < here.free_bytes <= here.total_bytes == later.total_bytes
