"""The daemon's ``/v0/scaling``, asked at most once a second however many triggers there are.

All who ask within MAX_AGE_NS of the last question get its outcome, a failure too; who asks while
one is under way waits for it. So a daemon that does not answer is asked once per timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable, decoded
from daemon.schemas.api import Scaling

MAX_AGE_NS = 1_000_000_000
TIMEOUT_S = 2.0  # KEDA gives up a call after 3 s by default


class NoSignal(Exception):
    """The daemon gave no answer that can be used."""


class Signals:
    """What a daemon says. ``say`` is told once when it stops answering, and when it answers again.

    ``client`` is used on a thread of its own, one call at a time.
    """

    def __init__(
        self, client: Client, now_ns: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._now_ns = now_ns
        self._say = say
        self._thread = ThreadPoolExecutor(1, "scaling")
        self._asked: asyncio.Task[Scaling] | None = None
        self._answered_ns = 0
        self._failing = False

    async def scaling(self) -> Scaling:
        """The document, at most MAX_AGE_NS old. Raises NoSignal."""
        asked = self._asked
        if asked is None or (asked.done() and self._now_ns() - self._answered_ns > MAX_AGE_NS):
            asked = self._asked = asyncio.create_task(self._ask())
        return await asyncio.shield(asked)  # one caller that hangs up does not end it for others

    async def close(self) -> None:
        """Waits for the question under way, and ends the thread."""
        if self._asked is not None:
            await asyncio.wait([self._asked])
        self._thread.shutdown()

    async def _ask(self) -> Scaling:
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch)
        except (Refused, UnknownAnswer, Unreachable) as error:
            if not self._failing:
                self._say(f"no scaling signal: {error}")
            self._failing = True
            raise NoSignal(str(error)) from error
        else:
            if self._failing:
                self._say(f"{self._client.url} answers again")
            self._failing = False
            return found
        finally:
            self._answered_ns = self._now_ns()

    def _fetch(self) -> Scaling:
        return decoded(self._client, self._client.call("GET", "/v0/scaling"), Scaling)
