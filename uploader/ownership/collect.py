"""What an object in the store is that the ledger does not have; LIST and DELETE that go on.

Pure but for those two, which ask a store. Vocabulary as in ``ledger/space/collection.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum

from uploader.l0 import L0Error, parse_key
from uploader.stores.base import ObjectHead, ObjectStore, StoreError
from uploader.stores.retry import RetryLimits, retry_delay_s

LIST_LIMITS = RetryLimits(base_s=0.05, cap_s=2.0, attempts_max=8)


class Fate(Enum):
    """What becomes of an object under ``l0/`` that the ledger does not have."""

    ORPHAN = "orphan"  # never committed, and never will be: a collection removes it
    IN_FLIGHT = "in flight"  # its lease may still commit
    FOREIGN = "foreign"  # not of this ledger: never touched


def fate(key: str, epoch_floor: int, incarnations: Collection[int]) -> Fate:
    """The fate of an object that was not in the ledger *after* it was listed, with a floor that
    was in force *before*: what is below it then was never committed."""
    try:
        lease_id = parse_key(key)
    except L0Error:
        return Fate.FOREIGN
    if lease_id.incarnation not in incarnations:
        return Fate.FOREIGN
    return Fate.ORPHAN if lease_id.epoch < epoch_floor else Fate.IN_FLIGHT


def epoch_prefix(epoch: int) -> str:
    """All keys of lower epochs sort below it."""
    return f"l0/{epoch:018d}/"


def collectable_floor(epoch: int, epoch_floor: int) -> int:
    """How far a collection beside a daemon raises the floor.

    What was leased before the last raise of the epoch is ten minutes old at least, or about to
    commit; its range is leased again. Never up to the epoch itself: shards learn a new one a
    moment after the ledger, and name leases by the one they know.
    """
    return max(epoch_floor, epoch - 1)


def listed(
    store: ObjectStore, prefix: str, start_after: str, rng: random.Random,
    sleep_s: Callable[[float], object],
) -> Iterator[ObjectHead]:  # fmt: skip
    """LIST, begun again behind the last key when the store failed. Raises StoreError in the end.

    Where several equal frames stand under one key, a failure between them may leave some out.
    """
    attempt = 0
    while True:
        try:
            for head in store.list(prefix, start_after):
                attempt = 0
                yield head
                start_after = head.key
        except StoreError as error:
            attempt += 1
            pause_s = retry_delay_s(error, attempt, rng, LIST_LIMITS)
            if pause_s is None:
                raise
            sleep_s(pause_s)
        else:
            return


def delete(
    store: ObjectStore, locators: Sequence[str], rng: random.Random,
    sleep_s: Callable[[float], object],
) -> None:  # fmt: skip
    """DELETE, asked again when the store failed: what is gone is no error. Raises StoreError in
    the end."""
    attempt = 0
    while True:
        attempt += 1
        try:
            store.delete(locators)
            return
        except StoreError as error:
            pause_s = retry_delay_s(error, attempt, rng, LIST_LIMITS)
            if pause_s is None:
                raise
            sleep_s(pause_s)
