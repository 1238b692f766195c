"""A blocking read of the store, in a thread, tried again while that can help."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from uploader.stores.base import StoreError
from uploader.stores.retry import RetryLimits, retry_delay_s

GET_LIMITS = RetryLimits(base_s=0.05, cap_s=1.0, attempts_max=5)  # then the reader is told

T = TypeVar("T")


async def attempted(
    read: Callable[[], T], threads: Executor, rng: random.Random, count: Callable[[], None]
) -> T:
    """What ``read`` returns; ``count`` is called for each attempt. Raises StoreError and what
    ``read`` raises besides."""
    loop = asyncio.get_running_loop()
    attempt = 0
    while True:
        attempt += 1
        try:
            return await loop.run_in_executor(threads, read)
        except StoreError as error:
            pause_s = retry_delay_s(error, attempt, rng, GET_LIMITS)
            if pause_s is None:
                raise
            await asyncio.sleep(pause_s)
        finally:
            count()
