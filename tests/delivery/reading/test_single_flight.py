"""A cache whose values are loaded once."""

from __future__ import annotations

import asyncio

import pytest

from delivery.reading.single_flight import SingleFlightCache
from uploader.lru import LruCache


async def test_readers_who_ask_together_wait_for_one_load_and_it_is_kept() -> None:
    loads = 0

    async def load() -> str:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0)
        return "value"

    cache: SingleFlightCache[int, str] = SingleFlightCache(LruCache(9))
    assert await asyncio.gather(*(cache.get(1, load) for _ in range(5))) == ["value"] * 5
    assert await cache.get(1, load) == "value"
    assert loads == 1
    await cache.get(2, load)
    assert loads == 2


async def test_an_error_reaches_the_reader_whose_load_it_was_and_the_next_one_loads_again() -> None:
    async def fail() -> str:
        await asyncio.sleep(0)
        raise ValueError("damaged")

    async def load() -> str:
        return "value"

    cache: SingleFlightCache[int, str] = SingleFlightCache(LruCache(9))
    first = asyncio.create_task(cache.get(1, fail))
    second = asyncio.create_task(cache.get(1, load))
    with pytest.raises(ValueError, match="damaged"):
        await first
    assert await second == "value"


async def test_a_value_that_is_not_kept_is_loaded_again() -> None:
    loads = 0

    async def load() -> str:
        nonlocal loads
        loads += 1
        return "too large"

    cache: SingleFlightCache[int, str] = SingleFlightCache(LruCache(9, 5, len))
    assert [await cache.get(1, load) for _ in range(2)] == ["too large"] * 2
    assert loads == 2 and cache._loading == {}
