"""Orphans: objects that were put and never committed (docs/protocol.md 7).

An object is an orphan for good when its epoch is below the floor, for then its lease cannot commit
any more; and it is this ledger's to delete only when its incarnation is one that this ledger has
been.
"""

from __future__ import annotations

from msgspec import Struct

from ledger import epochs, reads
from ledger.space import deletions
from ledger.space.deletions import ORPHAN
from ledger.tx import ReadTx, WriteTx
from ledger.types import LeaseId


class Candidate(Struct, frozen=True):
    """An object in the store whose lease did not commit, as far as was seen."""

    key: str
    locator: str
    lease_id: LeaseId


def among(tx: ReadTx, candidates: list[Candidate]) -> list[Candidate]:
    """Those of the candidates that never were committed and never will be, and are ours."""
    floor = epochs.floor(tx)
    ours = set(epochs.incarnations(tx))
    below = [
        candidate
        for candidate in candidates
        if candidate.lease_id.epoch < floor and candidate.lease_id.incarnation in ours
    ]
    there = reads.committed_keys(tx, [candidate.key for candidate in below])
    return [candidate for candidate in below if candidate.key not in there]


def name(tx: WriteTx, candidates: list[Candidate]) -> list[Candidate]:
    """Names the orphans among the candidates for deletion, as of now; returns them."""
    found = among(tx, candidates)
    deletions.name(tx, [(candidate.key, candidate.locator, ORPHAN) for candidate in found])
    return found


def named(tx: ReadTx, after_key: str = "", limit: int = 1_000) -> list[str]:
    """Orphans that are named for deletion, by key, a page at a time."""
    return deletions.page(tx, ORPHAN, after_key, limit)


def forget(tx: WriteTx, keys: list[str]) -> None:
    """These objects are gone from the store."""
    deletions.forget(tx, keys, ORPHAN)
