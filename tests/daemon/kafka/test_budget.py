"""What connections share: who waits for it, and what becomes of a share that is dropped."""

from __future__ import annotations

import asyncio

import pytest

from daemon.kafka.budget import SharedBytes


async def test_what_takes_nothing_waits_for_nobody() -> None:
    shared = SharedBytes(10)
    await shared.take(8)
    waiting = asyncio.ensure_future(shared.take(5))
    await asyncio.sleep(0)
    await asyncio.wait_for(shared.take(0), 60)
    shared.give_back(8)
    await waiting


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_share_of_what_is_dropped_goes_to_others(is_granted: bool) -> None:
    shared = SharedBytes(10)
    await shared.take(8)
    dropped = shared.take(5)
    dropped.send(None)
    if is_granted:
        shared.give_back(8)
    dropped.close()
    if not is_granted:
        shared.give_back(8)
    await asyncio.wait_for(shared.take(10), 60)
