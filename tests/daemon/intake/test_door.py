"""When new requests are refused: a failing store, a disk without room; and what they are told."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from daemon.alarms import Trouble
from daemon.api.errors import ApiError
from daemon.config import Override, load
from daemon.http.head import parse_head
from daemon.http.limits import HttpLimits
from daemon.intake.door import SPARE_BYTES, Disk, Door, Room, Shut, disks_of, room_of
from daemon.intake.formats import BodyLimits
from daemon.intake.pending import Answers
from daemon.intake.producer import Producer
from daemon.intake.topic_cache import Catalog
from shards import layout as at
from shards.layout import Layout
from shards.ring import RingWriter
from shards.segment import Segment

MIB = 1 << 20
GIB = 1 << 30
FAILING = Trouble("store_failing", 2_000, 3, "store failing for 2 s: 503", False)
OTHER = Trouble("foreign_object", 2_000, 1, "", True)
LEDGER = Disk(Shut.LEDGER_DISK, "the ledger's disk", Path("/data/ledger"), False)
STORE = Disk(Shut.STORE_DISK, "the store's disk", Path("/data/store"), True)


class Disks:
    """File systems of a size, with what is free of them."""

    def __init__(self, total_bytes: int = 100 * GIB) -> None:
        self.total_bytes = total_bytes
        self.free = {LEDGER.path: total_bytes, STORE.path: total_bytes}
        self.door = Door([LEDGER, STORE], lambda path: Room(self.free[path], total_bytes))


def test_the_door_is_shut_while_the_store_fails_and_for_no_other_alarm() -> None:
    door = Disks().door
    assert door.look([OTHER], 0) == 0
    assert door.look([OTHER, FAILING], 0) == Shut.STORE_FAILING
    assert door.look([OTHER], 0) == 0


def test_a_disk_without_spare_room_shuts_the_door_and_twice_the_spare_opens_it() -> None:
    disks = Disks()
    for disk in (LEDGER, STORE):
        disks.free[disk.path] = SPARE_BYTES
        assert disks.door.look([], 0) == 0
        disks.free[disk.path] = SPARE_BYTES - 1
        assert disks.door.look([], 0) == disk.why
        assert f"{disk.name} ({disk.path}) has 65535 KiB free" in disks.door.short
        disks.free[disk.path] = 2 * SPARE_BYTES - 1
        assert disks.door.look([], 0) == disk.why
        disks.free[disk.path] = 2 * SPARE_BYTES
        assert disks.door.look([], 0) == 0
        assert disks.door.short == ""


def test_what_is_accepted_and_not_stored_must_still_fit_where_objects_go() -> None:
    disks = Disks()
    disks.free[LEDGER.path] = disks.free[STORE.path] = SPARE_BYTES + 10 * MIB
    assert disks.door.look([], 10 * MIB) == 0
    assert disks.door.look([], 10 * MIB + 1) == Shut.STORE_DISK


def test_of_a_small_disk_a_twentieth_is_spare() -> None:
    disks = Disks(24 * MIB)
    disks.free[STORE.path] = 24 * MIB // 20
    assert disks.door.look([], 0) == 0
    disks.free[STORE.path] -= 1
    assert disks.door.look([], 0) == Shut.STORE_DISK


def test_a_disk_that_cannot_be_asked_refuses_nobody() -> None:
    assert Door([LEDGER], lambda _: None).look([], 0) == 0


def test_the_ledgers_disk_is_looked_at_and_the_embedded_stores(tmp_path: Path) -> None:
    embedded = load(None, {}, [Override("data_dir", str(tmp_path / "a b"))])
    assert [(disk.why, disk.path) for disk in disks_of(embedded)] == [
        (Shut.LEDGER_DISK, tmp_path / "a b" / "ledger"),
        (Shut.STORE_DISK, tmp_path / "a b" / "store"),
    ]
    bucket = load(None, {}, [Override("store_url", "s3://bucket/prefix")])
    assert [disk.why for disk in disks_of(bucket)] == [Shut.LEDGER_DISK]


def test_the_room_is_that_of_the_file_system_also_where_nothing_is_made_yet(
    tmp_path: Path,
) -> None:
    here, later = room_of(tmp_path), room_of(tmp_path / "not" / "yet")
    assert here is not None and later is not None
    assert 0 < here.free_bytes <= here.total_bytes == later.total_bytes


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(1, 65536))
    yield made
    made.close()
    os.close(made.fd)


@pytest.mark.parametrize(
    ("word", "value", "code", "close"),
    [
        (at.G_DOOR, Shut.STORE_FAILING, "store_failing", False),
        (at.G_DOOR, Shut.STORE_FAILING | Shut.STORE_DISK, "store_failing", False),
        (at.G_DOOR, Shut.LEDGER_DISK, "disk_full", False),
        (at.G_DOOR, Shut.STORE_DISK, "disk_full", False),
        (at.G_DRAINING, 1, "shutting_down", True),
        (at.G_SUPERSEDED, 1, "superseded", True),
    ],
)
def test_a_shut_door_refuses_before_the_body_is_taken_in_and_says_why_and_when_to_come_back(
    segment: Segment, word: int, value: int, code: str, close: bool
) -> None:
    producer = Producer(
        segment, 0, cast(Catalog, None), RingWriter(segment, 0), Answers(segment, 0), BodyLimits(),
        lambda: None, random.Random(1), 20_000,
    )  # fmt: skip
    head = parse_head(b"POST /v0/topics/t HTTP/1.1\r\nHost: h\r\n\r\n", HttpLimits())
    producer.release(producer.admit(head, 100))
    segment.words[word] = value
    producer.look_at_gate()
    waits = set()
    for _ in range(50):
        with pytest.raises(ApiError) as refused:
            producer.admit(head, 100)
        error = refused.value
        assert (error.status, error.code, error.close) == (503, code, close)
        assert "nothing of this request was stored" in error.message
        assert error.retry_after_s is not None
        assert error.detail == {"retry_after_ms": 1000 * error.retry_after_s}
        waits.add(error.retry_after_s)
    assert len(waits) > 1 and min(waits) >= 1  # they do not come back together
    segment.words[word] = 0
    producer.look_at_gate()
    producer.release(producer.admit(head, 100))
