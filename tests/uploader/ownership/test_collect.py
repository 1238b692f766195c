"""What becomes of an object that the ledger does not have, and what requests cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from uploader.ownership.collect import Fate, collectable_floor, epoch_prefix, fate
from uploader.stores.base import ObjectHead
from uploader.stores.counted import CountedStore, Requests
from uploader.stores.file import FileStore


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("l0/000000000000000004/2-0-1", Fate.ORPHAN),
        ("l0/000000000000000005/2-0-1", Fate.IN_FLIGHT),
        ("l0/000000000000000004/3-0-1", Fate.FOREIGN),
        ("l0/000000000000000004/2-0", Fate.FOREIGN),
        ("l0/4/2-0-1", Fate.FOREIGN),
        ("l0/000000000000000004/02-0-1", Fate.FOREIGN),
    ],
)
def test_only_our_own_keys_below_the_floor_are_orphans(key: str, expected: Fate) -> None:
    assert fate(key, 5, {1, 2}) is expected
    assert (key < epoch_prefix(5)) == key.startswith("l0/000000000000000004/")


def test_the_floor_never_reaches_an_epoch_that_shards_may_not_know_yet() -> None:
    assert collectable_floor(epoch=7, epoch_floor=3) == 6
    assert collectable_floor(epoch=7, epoch_floor=7) == 7, "it does not fall"


def test_a_list_counts_one_request_per_thousand_objects(tmp_path: Path) -> None:
    for objects, requests in ((0, 1), (1_000, 1), (1_001, 2)):
        counted = CountedStore(_Heads(tmp_path, objects))
        assert sum(1 for _ in counted.list("l0/")) == objects
        assert counted.requests.lists == requests


class _Heads(FileStore):
    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory)
        self._heads = [ObjectHead(f"l0/{n:05}", "", 1, 1) for n in range(count)]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        yield from self._heads


def test_only_s3_costs_money_and_a_delete_is_free() -> None:
    requests = Requests(puts=600, lists=400, gets=1_000, deletes=50)
    assert requests.usd("s3://bucket/prefix") == pytest.approx(0.0054)
    assert requests.usd("file:///store") == 0.0
