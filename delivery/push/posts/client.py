"""The HTTP client of all senders of a shard: one POST in, one answer out.

``post`` never raises for anything that the receiver, the network or this machine does: what went
wrong is in the answer. Only the cancellation of the task passes.

What holds for each POST:

- it begins immediately, and ends within its timeout, with the end of the answer; time in which this
  process stood still does not count, up to as much again (``Stalls``);
- redirects are not followed, cookies not kept, proxies of the environment not used;
- each new connection is to an address that ``push_allow`` allows and ``push_deny`` does not deny;
  TLS is verified by the system's
  certificates and those of ``push_ca_file``;
- of an answer, 64 KiB are read; after that the connection is closed.

The library (aiohttp) takes 130 ms to load and 14 MiB, so it is loaded for the first POST, in a
thread: a daemon without push pays nothing. All of it is in ``posting.py``; this module
knows the places only::

    take -> a place, or none -> give

All endpoints together have at most ``total`` places; beyond it, an endpoint that has none gets one.
So endpoints that hang cannot keep the others from being called, and the bound is ``total`` plus one
for each endpoint. How many an endpoint has is for its senders to bound (``connections_max``).
Nobody waits for a place: what had waited would begin together when places come free, faster than
its rate allows.
"""

from __future__ import annotations

import asyncio
import importlib
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from delivery.push.posts.addresses import AllowList
from delivery.push.posts.answers import PushAnswer, PushFailure

if TYPE_CHECKING:
    from delivery.push.posts.posting import Poster, Resolve

# Connections of a shard for POSTs at a time, in addition to the first of each endpoint.
CONNECTIONS_MAX = 2_048
# A POST under way takes 16 KB, as measured, its body, and what a receiver has sent until it is
# looked at. A connection that waits takes 10 KB.
POST_BYTES = 32 << 10
LIBRARY_BYTES = 16 << 20
# At most this part of the files that a process may open is for push.
FILES_PART = 16
# A name's addresses are looked up again after this long, when a connection is made.
NAMES_KEPT_S = 30

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


def connections_max() -> int:
    """How many connections the senders of a process may have, by the files it may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, files // FILES_PART))


class Places:
    """The places of a shard."""

    __slots__ = ("_taken", "_total", "taken")

    def __init__(self, total: int) -> None:
        self._total = total
        self.taken = 0
        self._taken: dict[str, int] = {}

    def take(self, endpoint: str) -> bool:
        """Whether there is a place, which is then taken. The caller must ``give`` it back."""
        taken = self._taken.get(endpoint, 0)
        if taken and self.taken >= self._total:
            return False
        self._taken[endpoint] = taken + 1
        self.taken += 1
        return True

    def give(self, endpoint: str) -> None:
        """Gives a place back."""
        left = self._taken[endpoint] - 1
        if left:
            self._taken[endpoint] = left
        else:
            del self._taken[endpoint]
        self.taken -= 1

    def check_invariants(self) -> None:
        """What holds after each step."""
        assert self.taken == sum(self._taken.values())
        assert all(count > 0 for count in self._taken.values())
        # What is beyond the total are first places.
        assert sum(count - 1 for count in self._taken.values()) <= max(0, self._total - 1)


class PushClient:
    """One per shard, for all its senders."""

    def __init__(
        self,
        allow: AllowList,
        ca_file: str | None = None,
        *,
        resolve: Resolve | None = None,
        names_kept_s: int = NAMES_KEPT_S,
        connections_total: int | None = None,
    ) -> None:
        """``resolve`` finds the addresses of a name, by default as the system does; they are kept
        for ``names_kept_s``, for connections that are made then."""
        self.allow = allow
        self._ca_file = ca_file
        self._resolve = resolve
        self._names_kept_s = names_kept_s
        self._places = Places(connections_total or connections_max())
        self._poster: Poster | None = None
        self._opening: asyncio.Task[PushAnswer | None] | None = None
        self._has_failed = False
        self._is_closed = False

    @property
    def under_way(self) -> int:
        """POSTs that have a place now."""
        return self._places.taken

    async def post(
        self,
        endpoint: str,
        headers: Headers,
        body: bytes,
        timeout_ms: int,
    ) -> PushAnswer:
        """Sends one POST and returns what became of it.

        ``headers`` are sent as they are; Host and Content-Length are added.
        """
        if self._poster is None and not self._is_closed:
            failed = await asyncio.shield(self._open())
            if failed is not None:
                return failed
        poster = self._poster
        if self._is_closed or poster is None:
            return PushAnswer(failure=PushFailure.LOCAL, message="the client is closed")
        if not self._places.take(endpoint):
            return PushAnswer(
                failure=PushFailure.LOCAL,
                message=f"{self._places.taken:,} POSTs of this shard are under way already",
            )
        try:
            return await poster.post(endpoint, headers, body, timeout_ms)
        finally:
            self._places.give(endpoint)

    async def close(self) -> None:
        """Closes all connections. POSTs that are under way get an answer with a failure."""
        self._is_closed = True
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        if self._poster is not None:
            await self._poster.close()

    def set_rules(self, allowed: Sequence[str], denied: Sequence[str]) -> None:
        """Whom to call from now on; no connection that is there is used again."""
        self.allow.set(allowed, denied)
        if self._poster is not None:
            self._poster.use_no_connection_again()

    def is_ready(self, then: Callable[[], None]) -> bool:
        """Whether a POST would begin immediately. If not, the library is being loaded, and ``then``
        is called after that: POSTs that had waited for it would begin in one moment."""
        if self._poster is not None or self._is_closed or self._has_failed:
            return True
        self._open().add_done_callback(lambda _: then())
        return False

    def _open(self) -> asyncio.Task[PushAnswer | None]:
        """Loads the library, once for all that wait for it."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._load())
        return self._opening

    async def _load(self) -> PushAnswer | None:
        """Returns what POSTs are answered if that fails. The next one tries again."""
        name = "delivery.push.posts.posting"
        try:
            posting = await asyncio.to_thread(importlib.import_module, name)
            context = await asyncio.to_thread(posting.tls_context, self._ca_file)
        except (ImportError, OSError, ValueError) as error:
            self._opening = None
            self._has_failed = True
            return PushAnswer(failure=PushFailure.LOCAL, message=str(error))
        self._poster = posting.Poster(
            posting.PushConnector(self.allow, context, self._resolve, self._names_kept_s)
        )
        return None
