"""What an object in the store is that the ledger does not have: decisions only.

Vocabulary as in ``ledger/space/collection.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from uploader.l0 import L0Error, parse_key


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
    """How far a collection raises the floor while a daemon runs.

    What was leased before the last raise of the epoch is ten minutes old at least, or about to
    commit; its range is leased again. Never up to the epoch itself: shards learn a new one a
    moment after the ledger, and name leases by the one they know.
    """
    return max(epoch_floor, epoch - 1)
