"""A store that counts its requests, and what S3 charges for them.

Prices are those of S3 Standard in us-east-1; the embedded store costs nothing. Every attempt
counts, whether it succeeds or not, so a RetryingStore stands in front of this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from uploader.stores.base import ObjectHead, ObjectStore

LIST_PAGE = 1_000  # objects in one LIST request
DELETE_BATCH = 1_000  # objects in one DELETE request
PUT_USD = 0.005 / 1_000  # also LIST
GET_USD = 0.0004 / 1_000


class Requests(Struct):
    """The requests of a command. DELETE is free."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0

    def usd(self, store_url: str) -> float:
        """What S3 charges for them."""
        if not store_url.startswith("s3:"):
            return 0.0
        return round((self.puts + self.lists) * PUT_USD + self.gets * GET_USD, 9)


class CountedStore:
    """An ObjectStore in front of another. Used by one thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.url = store.url
        self.requests = Requests()

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """As ObjectStore.put."""
        self.requests.puts += 1
        return self._store.put(key, body, crc32c)

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """As ObjectStore.get."""
        self.requests.gets += 1
        return self._store.get(locator, start, length)

    def reconnect(self) -> None:
        """As ObjectStore.reconnect."""
        self._store.reconnect()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """As ObjectStore.list; one request for each page that is begun."""
        self.requests.lists += 1
        for count, head in enumerate(self._store.list(prefix, start_after)):
            if count and count % LIST_PAGE == 0:
                self.requests.lists += 1
            yield head

    def delete(self, locators: Sequence[str]) -> None:
        """As ObjectStore.delete."""
        self.requests.deletes += -(-len(locators) // DELETE_BATCH)
        self._store.delete(locators)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """As ObjectStore.put_if_absent."""
        self.requests.puts += 1
        return self._store.put_if_absent(key, body)

    def check(self) -> None:
        """As ObjectStore.check: two PUTs of a probe."""
        self.requests.puts += 2
        self._store.check()

    def close(self) -> None:
        """As ObjectStore.close."""
        self._store.close()
