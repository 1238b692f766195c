"""The interface of an object store.

Vocabulary: a *key* names an object for people and for LIST; a *locator* says where the store keeps
it, and is what the ledger records. In S3 they are equal. Bodies are put whole, except those that
may have any size (an image of the ledger), which are put in *parts*.

Every call blocks, makes one attempt, and may come from any thread. Callers that want more attempts
put a ``RetryingStore`` in front (``uploader/stores/retrying.py``); an error's ``retryable`` says
whether another attempt can succeed.
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


class Encryption(Struct, frozen=True):
    """How S3 shall encrypt what is put: ``AES256``, ``aws:kms`` or ``aws:kms:dsse``, and for KMS
    perhaps a key of its own."""

    algorithm: str
    kms_key_id: str | None = None


class StoreError(Exception):
    """A call that failed. ``retryable``: the same call may succeed later.

    ``outcome_unknown``: the put may have been kept nevertheless (timeout, connection reset).
    """

    def __init__(self, message: str, *, retryable: bool, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.outcome_unknown = outcome_unknown


class StoreBusy(StoreError):
    """The store asks callers to slow down: 503, 429, SlowDown."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class ObjectMissing(StoreError):
    """There is no object at this locator."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class ForeignObject(StoreError):
    """The key holds an object with another checksum. It is never overwritten or renamed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class StoreRefused(StoreError):
    """The store cannot be used as it is configured: no such bucket, forbidden, no If-None-Match."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class PartedPut(Protocol):
    """An object that is put part by part and becomes visible when it is finished.

    Used by one thread. A call that failed may be repeated. Raises StoreError.
    """

    def put(self, part: bytes) -> None:
        """Adds a part. All but the last have the same size, at least 5 MiB (a limit of S3)."""
        ...

    def finish(self) -> None:
        """Makes the object visible under its key, durably."""
        ...

    def abandon(self) -> None:
        """Gives up the object and frees the space of its parts."""
        ...


class ObjectStore(Protocol):
    """Objects under one prefix."""

    url: str

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """Keeps ``body`` under ``key`` if the key is free; returns the locator once it is durable.

        If the key already holds a body with the same checksum, the call succeeds (S3) or writes a
        second, equal frame (file). Raises ForeignObject for another checksum, otherwise StoreError.
        """
        ...

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of an object; without ``length``, up to its end."""
        ...

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """Objects whose key begins with ``prefix`` and sorts after ``start_after``, in order."""
        ...

    def delete(self, locators: Sequence[str]) -> None:
        """Removes objects. A missing object is not an error."""
        ...

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Keeps ``body`` under ``key`` if the key is free; False if it holds anything.

        The key, which must not contain a colon, is the locator.
        """
        ...

    def check(self) -> None:
        """Checks that the store can be used. Raises StoreRefused, which says why it cannot.

        Puts a probe key twice, each time on condition that it is absent, and removes it; on S3,
        more such puts begin together. A store that accepts more than one of a key is refused: the
        fence of ownership would not work there.
        """
        ...

    def reconnect(self) -> None:
        """Makes later reads use new connections, and the disk itself instead of a cache."""
        ...

    def close(self) -> None:
        """Closes connections and files. The store must not be used afterwards."""
        ...


class PartedStore(ObjectStore, Protocol):
    """A store that also takes objects in parts."""

    def put_in_parts(self, key: str) -> PartedPut:
        """Begins an object of unbounded size. The put is unconditional, so the key must be new and
        known to the caller only."""
        ...

    def discard_unfinished(self, prefix: str) -> int:
        """Removes the parts that dead writers left under ``prefix``; returns how many objects.

        Some stores (MinIO) find them only when ``prefix`` is the whole key.
        """
        ...
