"""The one small interface of an object store.

Vocabulary: a *key* names an object for people and for LIST; a *locator* is where the store keeps
it, and is what the ledger keeps. For S3 they are equal. Bodies are whole, but for what may be of
any size (an image of the ledger): that is put in *parts*.

Every call makes one attempt, blocks, and may be made from any thread. Retrying is the caller's
decision (``uploader/stores/retry.py``): an error says by ``retryable`` whether it can help.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct


class ObjectHead(Struct, frozen=True):
    """One object in a listing; ``modified_ms`` is the store's own clock, epoch milliseconds."""

    key: str
    locator: str
    size_bytes: int
    modified_ms: int


class StoreError(Exception):
    """A call that failed. ``retryable``: the same call may succeed later.

    ``outcome_unknown``: a put that may have been kept all the same (timeout, reset).
    """

    def __init__(self, message: str, *, retryable: bool, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.outcome_unknown = outcome_unknown


class StoreBusy(StoreError):
    """The store asks for patience: 503, 429, SlowDown."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class ObjectMissing(StoreError):
    """There is no object at this locator."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class ForeignObject(StoreError):
    """The key is taken by an object with another checksum: never overwritten, never renamed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class StoreRefused(StoreError):
    """The store cannot be used as it is configured: no such bucket, forbidden, no If-None-Match."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class PartedPut(Protocol):
    """An object on its way, part by part, that nobody sees before it is finished; for one thread.

    A call that failed may be made again. Raises StoreError.
    """

    def put(self, part: bytes) -> None:
        """Adds a part. All but the last have one size, of 5 MiB (S3's own limit) or more."""
        ...

    def finish(self) -> None:
        """The object is there under its key, durably."""
        ...

    def abandon(self) -> None:
        """What was put so far takes no space any more."""
        ...


class ObjectStore(Protocol):
    """Objects under one prefix."""

    url: str

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """Keeps ``body`` under ``key`` if the key is free; returns the locator once it is durable.

        A key that already holds a body with the same checksum is a success (S3), or a second
        equal frame is written (file). Raises ForeignObject for another checksum, else StoreError.
        """
        ...

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of an object, to its end without ``length``."""
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """Objects whose key begins with ``prefix`` and sorts behind ``start_after``, by key."""
        ...

    def delete(self, locators: Sequence[str]) -> None:
        """Removes objects; one that is not there is no error."""
        ...

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Keeps ``body`` under ``key`` if the key is free; False when it is taken, by anything.

        The key, which has no colon, is its locator.
        """
        ...

    def check(self) -> None:
        """Makes sure that the store can be used. Raises StoreRefused with a sentence.

        Writes and removes a probe key twice with the condition that it is absent; a store that
        accepts the second is refused by name, for there the fence of ownership would be void.
        """
        ...

    def reconnect(self) -> None:
        """What is read from now on comes by new connections, and from the disk itself."""
        ...

    def close(self) -> None:
        """Ends connections and closes files. The store is not used afterwards."""
        ...


class PartedStore(ObjectStore, Protocol):
    """A store that also takes objects in parts."""

    def put_in_parts(self, key: str) -> PartedPut:
        """Begins an object whose size is not bounded, under a key that the caller has made up and
        nobody else uses: there is no condition on it."""
        ...

    def discard_unfinished(self, prefix: str) -> int:
        """Removes what writers that died have put in parts under ``prefix``; returns how many.

        Some stores (MinIO) find them by their whole key only.
        """
        ...
