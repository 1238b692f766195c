"""When new requests are refused: a failing store, a full disk."""

from __future__ import annotations

from pathlib import Path

from daemon.config import Override, load
from daemon.governor.gate import Band, Gate
from daemon.governor.producers_gate import (
    SPARE_BYTES,
    ClosedBy,
    Disk,
    DiskSpace,
    ProducersGate,
    disks_of,
    space_of,
)
from daemon.schemas.api import AlarmStatus

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
        self.told: list[str] = []
        self.accepted_ns: list[int] = []
        memory = Gate(Band(), lambda: self.told.append("pause"), lambda: self.told.append("resume"))
        self.gate = ProducersGate(
            [LEDGER, STORE], memory, self.accepted_ns.append,
            lambda path: DiskSpace(self.free[path], total_bytes),
        )  # fmt: skip

    def look(
        self,
        *alarms: AlarmStatus,
        pending_bytes: int = 0,
        memory: float = 0.0,
        now_ns: int = 0,
    ) -> ClosedBy:
        return self.gate.look(alarms, pending_bytes, memory, now_ns)


def test_the_gate_is_closed_while_the_store_fails_and_for_no_other_alarm() -> None:
    disks = Disks()
    assert disks.look(OTHER) == 0
    assert disks.look(OTHER, FAILING) == ClosedBy.STORE_FAILING
    assert disks.look(OTHER) == 0


def test_a_disk_without_spare_room_closes_the_gate_and_twice_the_spare_opens_it() -> None:
    disks = Disks()
    for disk in (LEDGER, STORE):
        disks.free[disk.path] = SPARE_BYTES
        assert disks.look() == 0
        disks.free[disk.path] = SPARE_BYTES - 1
        assert disks.look() == disk.why
        assert f"{disk.name} ({disk.path}) has 65535 KiB free" in disks.gate.short
        disks.free[disk.path] = 2 * SPARE_BYTES - 1
        assert disks.look() == disk.why
        disks.free[disk.path] = 2 * SPARE_BYTES
        assert disks.look() == 0
        assert disks.gate.short == ""


def test_what_is_accepted_and_not_stored_must_still_fit_where_objects_go() -> None:
    disks = Disks()
    disks.free[LEDGER.path] = disks.free[STORE.path] = SPARE_BYTES + 10 * MIB
    assert disks.look(pending_bytes=10 * MIB) == 0
    assert disks.look(pending_bytes=10 * MIB + 1) == ClosedBy.STORE_DISK


def test_of_a_small_disk_a_twentieth_is_spare() -> None:
    disks = Disks(24 * MIB)
    disks.free[STORE.path] = 24 * MIB // 20
    assert disks.look() == 0
    disks.free[STORE.path] -= 1
    assert disks.look() == ClosedBy.STORE_DISK


def test_a_disk_that_cannot_be_asked_refuses_nobody() -> None:
    memory = Gate(Band(), lambda: None, lambda: None)
    gate = ProducersGate([LEDGER], memory, lambda _: None, lambda _: None)
    assert gate.look([], 0, 0.0, 0) == 0


def test_memory_closes_the_gate_once_and_opens_it_well_below() -> None:
    disks = Disks()
    closed = [disks.look(memory=memory) for memory in (0.8, 0.81, 0.9, 0.66, 0.65, 0.64, 0.8)]
    assert closed == [0, *[ClosedBy.MEMORY] * 4, 0, 0]
    assert disks.told == ["pause", "resume"]


def test_memory_that_requests_do_not_hold_does_not_refuse_them_for_good() -> None:
    disks = Disks()
    assert disks.look(memory=0.9, pending_bytes=1)
    ticks = [disks.look(memory=0.7, now_ns=tick * 1_000_000_000) for tick in range(11)]
    assert ticks == [ClosedBy.MEMORY] * 10 + [0]
    assert not disks.accepted_ns


def test_memory_that_stays_above_with_nothing_to_store_is_accepted() -> None:
    disks = Disks()
    second_ns = 1_000_000_000
    assert disks.look(memory=0.9, pending_bytes=1)
    for tick in range(10):
        disks.look(memory=0.9, now_ns=tick * second_ns)
    assert not disks.accepted_ns, "it may be given back yet"
    assert disks.look(memory=0.9, now_ns=10 * second_ns) == ClosedBy.MEMORY
    assert disks.accepted_ns == [10 * second_ns]
    assert disks.look(memory=0.0, now_ns=11 * second_ns) == 0
    disks.look(memory=0.5, now_ns=30 * second_ns)
    assert disks.accepted_ns == [10 * second_ns], "an open gate waits for nothing"


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
