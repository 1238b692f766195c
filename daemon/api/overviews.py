"""Streams of what the daemon is doing, for those who look at its page: an event each second.

What viewers with the same rights see is computed once, by each shard for its own viewers. A viewer
that has not taken the last event is passed over; the next one says all that it missed. Topics and
compactions are read from the ledger, as often as costs little. A ledger that hangs does not keep an
event back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from daemon.access.rights import Rights
from daemon.api.figures.status import StatusBuilder
from daemon.api.handlers.daemon import DaemonRoutes
from daemon.api.refusals import refusal_of
from daemon.api.streaming import Streaming
from daemon.schemas.errors import ApiError
from daemon.schemas.overview import (
    Overview,
    RunFigures,
    StatusSample,
    TopicFigures,
    between,
)
from delivery.ledger_thread import LedgerThread
from delivery.streams.formats import SSE
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from ledger import reads, topics
from ledger.errors import LedgerError
from ledger.lake import runs
from ledger.tx import ReadTx
from shards.clock import monotonic_ns, wall_ms

VIEWERS_MAX = 16  # of a shard: people, not programs
PERIOD_S = 1.0
RATES_SAMPLES = 6  # rates are those of 5 periods, since a commit window may be a whole one
TOPICS_SHOWN = 100
RUNS_SHOWN = 5
LEDGER_WAIT_S = 0.2
# After a read of the ledger comes a pause this many times as long: it takes 0.25 % of a core.
LEDGER_PAUSE = 400
PAUSE_NS_MAX = 30_000_000_000


class Kept(NamedTuple):
    """What was read from the ledger, and when it may be read again."""

    topics: list[TopicFigures] | None = None
    more: bool = False
    runs: Sequence[RunFigures] = ()
    again_ns: int = 0


class OverviewRoutes:
    """The viewers of one shard."""

    def __init__(self, daemon: DaemonRoutes, status: StatusBuilder, ledger: LedgerThread) -> None:
        self._daemon = daemon
        self._status = status
        self._ledger = ledger
        self._viewers: dict[Outlet, Rights] = {}
        self._task: asyncio.Task[None] | None = None
        self._samples: dict[int, deque[StatusSample]] = {}  # by what a viewer may see
        self._kept = Kept()
        self._reading: asyncio.Task[Kept] | None = None

    async def watch(self, rights: Rights) -> Streaming:
        """A stream of overviews. Raises ApiError 503 if this shard has enough of them."""
        if len(self._viewers) >= VIEWERS_MAX:
            raise ApiError(
                503,
                "too_many_streams",
                f"this shard has {VIEWERS_MAX} streams of its status, the limit; close some",
                {"limit": VIEWERS_MAX},
                retry_after_s=1,
            )
        return Streaming(SSE.content_type, partial(self._begin, rights))

    def _begin(self, rights: Rights, outlet: Outlet) -> None:
        if outlet.closed:
            return
        self._viewers[outlet] = rights
        outlet.closed_by_peer = partial(self._forget, outlet)
        outlet.write(chunk(SSE.opening()))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def _forget(self, outlet: Outlet) -> None:
        self._viewers.pop(outlet, None)

    def close(self) -> None:
        """The process ends: so do all streams, each with a last event."""
        self._end(SSE.closing())

    def _end(self, last: bytes) -> None:
        viewers, self._viewers = self._viewers, {}
        for outlet in viewers:
            outlet.end(chunk(last))

    async def _serve(self) -> None:
        """Writes to the viewers while there are some."""
        self._samples.clear()
        try:
            while self._viewers:
                await self._write()
                await asyncio.sleep(PERIOD_S)
        except Exception as error:  # noqa: BLE001 - every error of a task is logged and told
            refusal = refusal_of(error)
            self._end(SSE.error(refusal.code, refusal.message, refusal.detail))

    async def _write(self) -> None:
        events: dict[int, bytes] = {}
        kept = await self._read()
        present = {_sees(rights) for rights in self._viewers.values()}
        for gone in self._samples.keys() - present:
            del self._samples[gone]
        for outlet, rights in list(self._viewers.items()):
            if not outlet.writable:
                continue
            sees = _sees(rights)
            if sees not in events:
                seen = await self._overview(rights, kept)
                events[sees] = chunk(SSE.event("overview", seen))
            outlet.write(events[sees])

    async def _overview(self, rights: Rights, kept: Kept) -> Overview:
        status = await self._daemon.status(rights)
        sample = StatusSample(monotonic_ns() / 1e9, status)
        samples = self._samples.setdefault(_sees(rights), deque(maxlen=RATES_SAMPLES))
        rates = between(samples[0] if samples else None, sample)
        samples.append(sample)
        shown = kept.topics
        if shown is not None:
            shown = [each for each in shown if rights.covers(each.topic)]
        ran = list(kept.runs) if rights.is_for_all_topics else []  # they name machines
        return Overview(status, rates, shown, kept.more, ran)

    async def _read(self) -> Kept:
        """What the ledger says of topics and compactions, as it is now or was a while ago."""
        reading = self._reading
        if reading is None:
            if monotonic_ns() < self._kept.again_ns:
                return self._kept
            acked = {each.topic: each.bytes for each in self._status.topics()}
            names = sorted(acked, key=lambda name: (-acked[name], name))[:TOPICS_SHOWN]
            reading = asyncio.create_task(self._ledger.read(_question, acked, names, wall_ms()))
            self._reading = reading
        await asyncio.wait([reading], timeout=LEDGER_WAIT_S)
        if reading.done():
            self._reading = None
            try:
                self._kept = reading.result()
            except LedgerError:
                self._kept = Kept()
        return self._kept


def _sees(rights: Rights) -> int:
    """The same for viewers who see the same."""
    return 0 if rights.is_for_all_topics else id(rights.token)


def _question(tx: ReadTx, acked: dict[str, int], names: list[str], now_ms: int) -> Kept:
    began_ns = monotonic_ns()
    found = {name: topic for name in names if (topic := topics.find(tx, name)) is not None}
    page = topics.page(tx, "", TOPICS_SHOWN + 1)
    for topic in page:
        if len(found) < TOPICS_SHOWN:
            found.setdefault(topic.name, topic)
    shown = [
        TopicFigures(name, *reads.topic_sums(tx, topic.topic_id), acked.get(name, 0))
        for name, topic in found.items()
    ]
    ran = [RunFigures(*each) for each in runs.latest(tx, RUNS_SHOWN, now_ms)]
    more = any(topic.name not in found for topic in page)
    ended_ns = monotonic_ns()
    return Kept(
        shown, more, ran, ended_ns + min((ended_ns - began_ns) * LEDGER_PAUSE, PAUSE_NS_MAX)
    )
