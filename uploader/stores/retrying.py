"""Calls that are repeated within a budget (uploader/stores/retry.py).

``RetryingStore`` stands in front of any store, so its callers need no loop; ``Retry`` and
``retried`` are for other calls. The error of the last attempt is raised.

``sleep_s`` waits between two attempts. Where a wait must be cut short, it raises: that ends the
call. Loops that do more than wait, such as the commit pipeline, use the policy themselves
(docs/decisions/0002).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from uploader.stores.base import ObjectHead, ObjectStore, PartedPut, StoreError
from uploader.stores.retry import Budget, delay_s

T = TypeVar("T")


def store_may_recover(error: Exception) -> bool:
    """Whether a call of a store that failed may succeed later."""
    return isinstance(error, StoreError) and error.retryable


class Retry:
    """Repeats a blocking call while that can help."""

    def __init__(
        self,
        budget: Budget,
        rng: random.Random,
        sleep_s: Callable[[float], object],
        may_help: Callable[[Exception], bool] = store_may_recover,
    ) -> None:
        self._budget = budget
        self._rng = rng
        self._sleep_s = sleep_s
        self._may_help = may_help

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's result. Raises its last error."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return call()
            except Exception as error:
                if not self.waits(error, attempt):
                    raise

    def waits(self, error: Exception, attempt: int) -> bool:
        """Waits after a failed attempt; False, immediately, when that cannot help."""
        if not self._may_help(error) or self._budget.is_spent(attempt):
            return False
        self._sleep_s(delay_s(attempt, self._rng, self._budget))
        return True


async def retried(call: Callable[[], Awaitable[T]], budget: Budget, rng: random.Random) -> T:
    """As ``Retry``, for a call of a store that an event loop awaits."""
    attempt = 0
    while True:
        attempt += 1
        try:
            return await call()
        except StoreError as error:
            if not error.retryable or budget.is_spent(attempt):
                raise
        await asyncio.sleep(delay_s(attempt, rng, budget))


class RetryingStore:
    """An ObjectStore whose calls are repeated. Used from any thread, as the store is."""

    def __init__(
        self,
        store: ObjectStore,
        budget: Budget,
        rng: random.Random,
        sleep_s: Callable[[float], object],
    ) -> None:
        self.url = store.url
        self._store = store
        self._retry = Retry(budget, rng, sleep_s)

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """As ObjectStore.put."""
        return self._retry(lambda: self._store.put(key, body, crc32c))

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """As ObjectStore.get."""
        return self._retry(lambda: self._store.get(locator, start, length))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """As ObjectStore.list; continues after the last key that it gave.

        If a key has several equal frames, some may be left out when the store fails there.
        """
        attempt = 0
        while True:
            try:
                for head in self._store.list(prefix, start_after):
                    attempt = 0
                    yield head
                    start_after = head.key
            except StoreError as error:
                attempt += 1
                if not self._retry.waits(error, attempt):
                    raise
            else:
                return

    def delete(self, locators: Sequence[str]) -> None:
        """As ObjectStore.delete."""
        self._retry(lambda: self._store.delete(locators))

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """As ObjectStore.put_if_absent. False may mean that an earlier attempt of this call took
        the key: its answer was lost. Callers who care read what is there."""
        return self._retry(lambda: self._store.put_if_absent(key, body))

    def check(self) -> None:
        """As ObjectStore.check."""
        self._retry(self._store.check)

    def reconnect(self) -> None:
        """As ObjectStore.reconnect."""
        self._store.reconnect()

    def close(self) -> None:
        """As ObjectStore.close."""
        self._store.close()


class RetryingParts:
    """A PartedPut whose parts and end are repeated."""

    def __init__(self, parts: PartedPut, retry: Retry) -> None:
        self._parts = parts
        self._retry = retry

    def put(self, part: bytes) -> None:
        """As PartedPut.put."""
        self._retry(partial(self._parts.put, part))

    def finish(self) -> None:
        """As PartedPut.finish."""
        self._retry(self._parts.finish)

    def abandon(self) -> None:
        """As PartedPut.abandon, once: a start removes what is left."""
        self._parts.abandon()
