"""A store that counts its requests.

Every attempt counts, whether it succeeds or not, so a RetryingStore stands in front of this one.
Not counted are the HEADs that S3Store sends when a PUT finds its key taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from msgspec import Struct

from uploader.stores.base import ObjectHead, ObjectStore, PartedPut, PartedStore
from uploader.stores.prices import Prices

LIST_PAGE = 1_000  # objects in one LIST request
DELETE_BATCH = 1_000  # objects in one DELETE request


class Requests(Struct):
    """The requests of a command or a process. DELETE is free."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    put_bytes: int = 0
    get_bytes: int = 0

    def usd(self, prices: Prices) -> float:
        """What the store charges for them."""
        cost = prices.usd(self.puts, self.gets, self.lists, self.put_bytes, self.get_bytes)
        return round(cost, 9)


class CountedStore:
    """An ObjectStore in front of another. Used from any thread, as the store is."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.url = store.url
        self.requests = Requests()
        self._mutex = threading.Lock()  # the counts

    def count(
        self, *, puts: int = 0, gets: int = 0, lists: int = 0, deletes: int = 0,
        put_bytes: int = 0, get_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Adds to the counts."""
        requests = self.requests
        with self._mutex:
            requests.puts += puts
            requests.gets += gets
            requests.lists += lists
            requests.deletes += deletes
            requests.put_bytes += put_bytes
            requests.get_bytes += get_bytes

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """As ObjectStore.put."""
        self.count(puts=1, put_bytes=len(body))
        return self._store.put(key, body, crc32c)

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """As ObjectStore.get."""
        self.count(gets=1)
        data = self._store.get(locator, start, length)
        self.count(get_bytes=len(data))
        return data

    def reconnect(self) -> None:
        """As ObjectStore.reconnect."""
        self._store.reconnect()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """As ObjectStore.list; one request for each page that is begun."""
        self.count(lists=1)
        for number, head in enumerate(self._store.list(prefix, start_after)):
            if number and number % LIST_PAGE == 0:
                self.count(lists=1)
            yield head

    def delete(self, locators: Sequence[str]) -> None:
        """As ObjectStore.delete."""
        self.count(deletes=-(-len(locators) // DELETE_BATCH))
        self._store.delete(locators)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """As ObjectStore.put_if_absent."""
        self.count(puts=1, put_bytes=len(body))
        return self._store.put_if_absent(key, body)

    def check(self) -> None:
        """As ObjectStore.check: a LIST, two PUTs of a probe, and a GET. The probes that race on S3
        are not counted: they cost $0.0001 a start."""
        self.count(puts=2, gets=1, lists=1)
        self._store.check()

    def close(self) -> None:
        """As ObjectStore.close."""
        self._store.close()


class CountedPartedStore(CountedStore):
    """The same for a PartedStore. Beginning and finishing an object in parts are PUTs too."""

    def __init__(self, store: PartedStore) -> None:
        super().__init__(store)
        self._parted = store

    def put_in_parts(self, key: str) -> PartedPut:
        """As PartedStore.put_in_parts."""
        return _CountedParts(self, self._parted.put_in_parts(key))

    def discard_unfinished(self, prefix: str) -> int:
        """As PartedStore.discard_unfinished; S3 lists what is unfinished."""
        self.count(lists=1)
        return self._parted.discard_unfinished(prefix)


class _CountedParts:
    """A PartedPut that counts."""

    def __init__(self, store: CountedPartedStore, parts: PartedPut) -> None:
        self._store = store
        self._parts = parts
        self._begun = False

    def put(self, part: bytes) -> None:
        """As PartedPut.put; with the first part the object is begun."""
        self._store.count(puts=1 if self._begun else 2, put_bytes=len(part))
        self._begun = True
        self._parts.put(part)

    def finish(self) -> None:
        """As PartedPut.finish."""
        self._store.count(puts=1)
        self._parts.finish()

    def abandon(self) -> None:
        """As PartedPut.abandon."""
        self._store.count(deletes=1)
        self._parts.abandon()
