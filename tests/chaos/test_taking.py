"""A watcher's pages follow from its events, and a lost connection settles nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.history import Page, Place
from tests.chaos.taking import BadStream, Taking

T: Place = ("t", 0)
BOTH: tuple[Place, ...] = (T, ("t", 1))


def record(seq: int, **more: Any) -> dict[str, Any]:
    return {"seq": seq, "data": f"r{seq}", **more}


def taking(*places: Place, tail: bool = False) -> Taking:
    return Taking("w", places or (T,), {"t": 7}, tail=tail)


def test_records_up_to_a_position_are_one_settled_page() -> None:
    watcher = taking()
    watcher.event("record", record(1))
    watcher.event("records", {"records": [record(2), record(3)]})
    pages = watcher.position("7:0=5")
    assert pages == [Page("w", T, 0, 5, ((1, "r1"), (2, "r2"), (3, "r3")), None, "")]
    assert (watcher.positions, watcher.last_event_id) == ({T: 5}, "7:0=5")


def test_what_comes_after_the_last_position_is_not_settled() -> None:
    watcher = taking()
    watcher.position("7:0=2")
    watcher.event("record", record(3))
    assert watcher.lost() == [Page("w", T, 2, 3, ((3, "r3"),), None, "", False)]
    watcher.event("record", record(3))
    assert watcher.position("7:0=3") == [Page("w", T, 2, 3, ((3, "r3"),), None, "")]


def test_a_tombstone_is_a_page_between_records() -> None:
    watcher = taking()
    watcher.event("record", record(1))
    watcher.event("tombstone", {"partition": 0, "gap_from": 2, "gap_to": 4, "reason": "cap"})
    watcher.event("record", record(5))
    assert watcher.position("7:0=5") == [
        Page("w", T, 0, 1, ((1, "r1"),), None, ""),
        Page("w", T, 1, 4, (), (2, 4), "cap"),
        Page("w", T, 4, 5, ((5, "r5"),), None, ""),
    ]


def test_a_position_settles_each_partition_that_moved() -> None:
    watcher = taking(*BOTH)
    watcher.event("record", record(1, partition=1))
    assert watcher.position("7:0=0,1=1") == [Page("w", BOTH[1], 0, 1, ((1, "r1"),), None, "")]
    with pytest.raises(BadStream):
        watcher.event("record", record(2))


def test_a_tail_begins_at_its_first_position() -> None:
    watcher = taking(tail=True)
    assert watcher.position("7:0=9") == []
    watcher.event("record", record(10))
    assert watcher.position("7:0=10") == [Page("w", T, 9, 10, ((10, "r10"),), None, "")]


@pytest.mark.parametrize("text", ["", "7:0", "7:0=1,2=1", "8:0=1", "7:1=1", "7:0=x"])
def test_a_position_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(BadStream):
        taking().position(text)
