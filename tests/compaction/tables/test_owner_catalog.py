"""What several threads ask is answered together; an error is of all who were in the call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from compaction.tables.owner_catalog import Grouped

THREADS = 8


def test_what_is_asked_during_a_call_is_answered_by_the_next_one() -> None:
    calls: list[list[int]] = []
    entered, go_on = threading.Event(), threading.Event()

    def doubled(items: list[int]) -> Sequence[int]:
        calls.append(items)
        if len(calls) == 1:
            entered.set()
            assert go_on.wait(60)
        return [2 * item for item in items]

    grouped: Grouped[int, int] = Grouped(doubled)
    with ThreadPoolExecutor(THREADS) as pool:
        first = pool.submit(grouped, 0)
        assert entered.wait(60)
        others = [pool.submit(grouped, item) for item in range(1, THREADS)]
        while len(grouped._waiting) < THREADS - 1:
            assert not any(each.done() for each in others)
        go_on.set()
        assert [first.result(), *(each.result() for each in others)] == [
            2 * item for item in range(THREADS)
        ]
    assert calls[0] == [0] and sorted(calls[1]) == list(range(1, THREADS)) and len(calls) == 2


def test_an_error_is_of_those_who_were_in_the_call() -> None:
    def refused(items: list[int]) -> Sequence[int]:
        if 0 in items:
            raise OSError(f"no {items}")
        return items

    grouped: Grouped[int, int] = Grouped(refused)
    with pytest.raises(OSError, match=r"no \[0\]"):
        grouped(0)
    assert grouped(1) == 1
