"""Requests that are counted, and what they cost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from crc32c import crc32c

from uploader.stores.counted import CountedPartedStore, Requests
from uploader.stores.file import FileStore
from uploader.stores.prices import DEFAULT_PRICES, FREE, GIB, Prices


@pytest.fixture
def store(tmp_path: Path) -> CountedPartedStore:
    return CountedPartedStore(FileStore(tmp_path))


def test_each_call_counts_as_the_requests_that_the_store_bills(store: CountedPartedStore) -> None:
    store.check()
    assert store.requests == Requests(puts=2, gets=1, lists=1)
    locator = store.put("l0/1", b"body", crc32c(b"body"))
    assert store.put_if_absent("ledger/1", b"entry!")
    assert store.get(locator, 1, 2) == b"od"
    assert len(list(store.list("l0/"))) == 1
    store.delete([locator])
    assert store.requests == Requests(puts=4, gets=2, lists=2, deletes=1, put_bytes=10, get_bytes=2)


def test_an_object_in_parts_is_begun_put_and_finished_by_puts(store: CountedPartedStore) -> None:
    parts = store.put_in_parts("ledger/image")
    parts.put(b"12345")
    parts.put(b"678")
    parts.finish()
    assert store.get("ledger/image") == b"12345678"
    assert (store.requests.puts, store.requests.put_bytes) == (4, 8)
    store.put_in_parts("ledger/other").abandon()
    assert store.discard_unfinished("ledger/") == 0
    assert (store.requests.deletes, store.requests.lists) == (1, 1)


def test_threads_lose_no_count(store: CountedPartedStore) -> None:
    def count() -> None:
        for _ in range(5_000):
            store.count(puts=1, put_bytes=3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.requests.puts, store.requests.put_bytes) == (20_000, 60_000)


def test_requests_cost_what_the_prices_of_the_class_say() -> None:
    requests = Requests(puts=1_000_000, gets=1_000_000, lists=1_000, deletes=9_999)
    assert requests.usd(DEFAULT_PRICES["standard"]) == pytest.approx(5 + 0.4 + 0.005)
    assert requests.usd(DEFAULT_PRICES["express"]) == pytest.approx(1.13 + 0.03 + 0.00113)
    assert requests.usd(FREE) == 0
    by_bytes = Requests(put_bytes=10 * GIB, get_bytes=100 * GIB)
    assert by_bytes.usd(DEFAULT_PRICES["express"]) == pytest.approx(0.032 + 0.06)
    assert by_bytes.usd(DEFAULT_PRICES["standard"]) == 0


def test_what_a_budget_limits_is_puts_lists_and_bytes_put() -> None:
    prices = Prices(1.0, 7.0, 2.0, 3.0, 9.0)
    assert prices.put_class_usd(1_000, 500, GIB) == pytest.approx(1 + 1 + 3)
