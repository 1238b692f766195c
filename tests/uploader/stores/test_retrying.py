"""Calls that are repeated: how often, with what result, and what ends them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from uploader.stores.base import ObjectHead, StoreBusy, StoreError, StoreRefused
from uploader.stores.counted import CountedStore
from uploader.stores.file import FileStore
from uploader.stores.retry import Budget
from uploader.stores.retrying import Retry, RetryingParts, RetryingStore, retried

BUDGET = Budget("test", 4, 0.001, 0.002)


class Failing(CountedStore):
    """Fails as often as it has errors left; a LIST after ``after`` of its objects."""

    def __init__(self, store: FileStore) -> None:
        super().__init__(store)
        self.errors: list[StoreError] = []
        self.after = 0

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop()

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        self._fail()
        return super().put(key, body, crc32c)

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        self._fail()
        return super().get(locator, start, length)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        made = super().put_if_absent(key, body)
        self._fail()
        return made

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        for count, head in enumerate(super().list(prefix, start_after)):
            if count == self.after:
                self._fail()
            yield head


class Retried:
    """A store that fails, one that repeats its calls, and the pauses between them."""

    def __init__(self, directory: Path) -> None:
        self.inner = FileStore(directory)
        for number in range(7):
            self.inner.put(f"l0/{number}", b"body", crc32c(b"body"))
        self.failing = Failing(self.inner)
        self.pauses: list[float] = []
        self.store = RetryingStore(self.failing, BUDGET, random.Random(1), self.pauses.append)

    def fails(self, count: int, error: Callable[[str], StoreError] = StoreBusy) -> None:
        self.failing.errors = [error("not now") for _ in range(count)]


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Retried]:
    made = Retried(tmp_path)
    yield made
    made.inner.close()


def test_a_call_is_repeated_until_it_succeeds(it: Retried) -> None:
    it.fails(3)
    locator = it.store.put("l0/9", b"other", crc32c(b"other"))
    it.fails(2)
    assert it.store.get(locator, 1, 2) == b"th"
    it.store.delete([locator])
    assert len(it.pauses) == 5 and all(0 <= pause < 0.002 for pause in it.pauses)


def test_the_last_error_is_raised_when_the_budget_is_spent(it: Retried) -> None:
    it.fails(9)
    with pytest.raises(StoreBusy):
        it.store.get("l0/1")
    assert len(it.failing.errors) == 5 and len(it.pauses) == 3


def test_what_cannot_help_is_not_repeated(it: Retried) -> None:
    it.fails(1, StoreRefused)
    with pytest.raises(StoreRefused):
        it.store.get("l0/1")
    assert it.pauses == []


def test_a_put_of_a_free_key_whose_answer_was_lost_finds_its_own_object(it: Retried) -> None:
    it.fails(1)
    assert not it.store.put_if_absent("entry", b"ours")
    assert it.store.get("entry") == b"ours"


def test_a_list_continues_after_its_last_key(it: Retried) -> None:
    it.failing.after = 2
    it.fails(2)
    heads = it.store.list("l0/", "l0/0")
    assert [head.key for head in heads] == [f"l0/{number}" for number in range(1, 7)]
    assert len(it.pauses) == 2 and it.failing.requests.lists == 3


def test_a_list_that_makes_progress_has_its_whole_budget_again(it: Retried) -> None:
    it.failing.after = 1
    it.fails(6)
    assert len(list(it.store.list("l0/"))) == 7
    assert len(it.pauses) == 6


def test_a_list_that_makes_no_progress_ends(it: Retried) -> None:
    it.fails(9)
    with pytest.raises(StoreBusy):
        list(it.store.list("l0/"))
    assert len(it.pauses) == 3


def test_a_wait_that_raises_ends_the_call() -> None:
    class Stopped(Exception):
        pass

    def wait(_: float) -> None:
        raise Stopped

    def call() -> None:
        raise StoreBusy("not now")

    with pytest.raises(Stopped):
        Retry(BUDGET, random.Random(1), wait)(call)


def test_a_caller_says_which_other_errors_are_repeated() -> None:
    errors = [KeyError("again"), KeyError("again"), ValueError("not this one")]

    def call() -> None:
        raise errors.pop(0)

    retry = Retry(BUDGET, random.Random(1), lambda _: None, lambda e: isinstance(e, KeyError))
    with pytest.raises(ValueError, match="not this one"):
        retry(call)
    assert errors == []


def test_parts_are_repeated_one_by_one() -> None:
    class Parts:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def _told(self, call: str) -> None:
            self.calls.append(call)
            if self.calls.count(call) < 3:
                raise StoreBusy("not now")

        def put(self, part: bytes) -> None:
            self._told(part.decode())

        def finish(self) -> None:
            self._told("end")

        def abandon(self) -> None:
            self.calls.append("abandoned")

    made = Parts()
    parts = RetryingParts(made, Retry(BUDGET, random.Random(1), lambda _: None))
    parts.put(b"one")
    parts.put(b"two")
    parts.finish()
    parts.abandon()
    assert made.calls == ["one"] * 3 + ["two"] * 3 + ["end"] * 3 + ["abandoned"]


def test_a_loop_awaits_the_same_policy() -> None:
    errors: list[StoreError] = [StoreBusy("1"), StoreBusy("2")]

    async def call() -> str:
        if errors:
            raise errors.pop()
        return "there"

    assert asyncio.run(retried(call, BUDGET, random.Random(1))) == "there"
    errors += [StoreBusy("not now")] * 9
    with pytest.raises(StoreBusy):
        asyncio.run(retried(call, BUDGET, random.Random(1)))
    assert len(errors) == 5
