"""``python -m bench.bare_posts URL BODY_BYTES TASKS SECONDS``: how fast push could be.

Tasks POST one body with the headers of a record again and again, by aiohttp on uvloop. Prints the
POSTs, the seconds and the CPU-seconds, after a second that is not counted.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import uvloop

from shards.clock import monotonic_ns, process_cpu_ns

HEADERS = {
    "content-type": "application/json", "ce-specversion": "1.0", "ce-id": "1-19a-0-0-123456",
    "ce-source": "/topics/pushed", "ce-type": "headgate.record",
    "ce-time": "2026-01-01T00:00:00.000Z", "ce-partition": "0", "ce-seq": "123456",
    "ce-attempt": "1", "ce-key": "key-1234",
}  # fmt: skip
WARM_UP_S = 1.0


class Loop:
    """Counts POSTs."""

    def __init__(self) -> None:
        self.posts = 0
        self.is_over = False

    async def run(self, session: aiohttp.ClientSession, url: str, body: bytes) -> None:
        """POSTs until it is over."""
        while not self.is_over:
            async with session.post(url, data=body, headers=HEADERS) as answer:
                await answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{url} answered {answer.status}")
            self.posts += 1


async def main(url: str, body_bytes: int, tasks: int, seconds: float) -> None:
    """Posts and prints."""
    body = b'"%s"' % (b"x" * (body_bytes - 2))
    loop = Loop()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=tasks), cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        running = [asyncio.create_task(loop.run(session, url, body)) for _ in range(tasks)]
        await asyncio.sleep(WARM_UP_S)
        before, began_ns, cpu_ns = loop.posts, monotonic_ns(), process_cpu_ns()
        await asyncio.sleep(seconds)
        posts = loop.posts - before
        print(posts, (monotonic_ns() - began_ns) / 1e9, (process_cpu_ns() - cpu_ns) / 1e9)
        loop.is_over = True
        await asyncio.gather(*running)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
