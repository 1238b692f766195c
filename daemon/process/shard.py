"""A shard process: one pinned event loop that takes records in, uploads, answers and reads.

The loop wakes for sockets and for its doorbell. When the bell rings it reads the shared words: new
commits (for answers and readers), uploads whose predecessors are committed, orphaned leases, the
backlog of its group. After records were published it looks at its group, but only as often as that
can matter. Disk and network I/O is in threads: uploaders, one ledger thread, readers of the store.

This module says when each part takes its steps, and decides nothing. The parts are wired in
``write_side.py``, ``delivery_side.py``, ``api_side.py`` and ``kafka_side.py``, from what
``opened.py`` opens.
``shards/layout.py`` says who may write what.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

import uvloop

from daemon.governor.board import pressure_of
from daemon.governor.memory import FreedMemory, be_killed_first
from daemon.governor.shard_sensors import ShardSensors
from daemon.intake.drained import is_drained
from daemon.intake.pending import ExpiredRequests
from daemon.memory import answers_bytes
from daemon.process import inherit, logs
from daemon.process.api_side import ApiSide
from daemon.process.delivery_side import DeliverySide
from daemon.process.inherit import Inheritance
from daemon.process.opened import Opened
from daemon.process.write_side import WriteSide
from delivery.dispatch import SLICE_NS
from ledger.errors import LedgerError
from ledger.types import Commit
from shards import layout as at
from shards.clock import monotonic_ns, process_cpu_ns
from uploader.groups.adopt import adopt_orphans
from uploader.groups.upload_turn import NEVER
from uploader.pipeline.voids import Run
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.shard")

HEARTBEAT_S = 0.1
ANSWERS_NS = 20_000_000  # in one turn of the loop: about 4,000 answers
GC_THRESHOLD = 50_000  # at the default, 700, a thousand requests in flight are walked often
EXIT_FAULT = 1
ANSWERS_FLUSH_S = 3.0  # at a stop, for clients to take the last answers


def _end() -> None:
    """Ends the process immediately: the supervisor finds its leases, and starts another."""
    os._exit(EXIT_FAULT)


def _failed(error: Exception) -> None:
    """Ends the process because of an error. asyncio would log it and continue, with leases that
    nobody uploads or commits that nobody follows."""
    log.critical("this process ends; other shards take its leases over", exc_info=error)
    _end()


def _or_end(step: Callable[[Shard], None]) -> Callable[[Shard], None]:
    """A callback of the loop whose error ends the process."""

    @functools.wraps(step)
    def callback(shard: Shard) -> None:
        try:
            step(shard)
        except Exception as error:  # noqa: BLE001 - told by _failed
            _failed(error)

    return callback


class Shard:
    """The parts of one shard, and the steps that they take in its loop."""

    def __init__(self, inheritance: Inheritance) -> None:
        self._alive_fd = inheritance.alive_fd
        self._opened = opened = Opened(inheritance)
        self.shard, self.segment, self._bells = opened.shard, opened.segment, opened.bells
        self._words, self._base = opened.words, opened.base
        self._write = write = WriteSide(
            opened, self._take, self._published, self._short_of_time, _end
        )
        self._feed, self._ring, self._pending = write.feed, write.ring, write.pending
        self._delivery = DeliverySide(opened, write, _failed, _end)
        self._api = ApiSide(opened, write, self._delivery)
        self._server = self._api.server
        self._kafka = None
        if inheritance.kafka is not None:
            from daemon.process.kafka_side import kafka_server  # no other shard loads it

            self._kafka = kafka_server(
                opened, write, self._delivery, inheritance.kafka.ports,
                self._published, self._short_of_time,
            )  # fmt: skip
        self._sensors = ShardSensors(
            self.segment, self.shard, self._delivery.dispatcher, write.leases,
            write.uploads.health, lambda: write.admission.promised_bytes,
        )  # fmt: skip
        self._freed_memory = FreedMemory(lambda: pressure_of(self._words, "memory"))
        self._loop: asyncio.AbstractEventLoop
        self._look_soon = False
        self._answers_soon = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0  # publications below this ring position change no decision
        self._log_level = -1
        self._drain_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None]

    async def run(self) -> None:
        """Serves until the daemon drains."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        # Ctrl-C in a terminal goes to the whole process group; the supervisor handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._loop.add_signal_handler(signal.SIGTERM, self._do_nothing)
        self._loop.add_reader(self._alive_fd, self._orphaned)
        self._loop.add_reader(self._bells.fds[self.shard], self._rung)
        await self._delivery.start(self._loop)
        await self._api.start()
        if self._kafka is not None and self._opened.inheritance.kafka is not None:
            await self._kafka.start(self._opened.inheritance.kafka.fds, self._server.tls)
        self._heartbeat()
        self._words[self._base + at.S_READY] = 1
        self._rung()
        await self._ended
        await self._stop()

    def _do_nothing(self) -> None:
        """A SIGTERM to the process group reaches the supervisor too, which drains."""

    def _orphaned(self) -> None:
        """The supervisor is gone: nothing would restart or drain this process."""
        log.critical("the supervisor is gone; stopping immediately")
        os._exit(1)

    @_or_end
    def _heartbeat(self) -> None:
        words, base = self._words, self._base
        words[base + at.S_HEARTBEAT] += 1
        words[base + at.S_HEARTBEAT_NS] = monotonic_ns()
        words[base + at.S_CPU_NS] = process_cpu_ns()
        words[base + at.S_SEEN] = self._feed.seen
        words[base + at.S_CONNECTIONS] = self._server.connections
        words[base + at.S_STREAMS] = len(self._server.streams)
        self._server.limit_memory(answers_bytes(int(words[at.G_BODIES_BYTES])))
        words[base + at.S_QUEUED] = self._write.admission.queued
        if self._kafka is not None:
            words[base + at.S_KAFKA_CONNECTIONS] = self._kafka.connections
            words[base + at.S_KAFKA_GROUPS], words[base + at.S_KAFKA_MEMBERS] = self._kafka.groups
            words[base + at.S_KAFKA_FAILURES] = self._kafka.failures
        self.segment.follow_epoch(self.shard)
        self._delivery.tick()
        self._write.topic_counts.store()
        self._opened.token_counts.store()
        words[base + at.S_OWNS] = self._delivery.owned
        self._sensors.store(monotonic_ns())
        self._freed_memory.look(monotonic_ns())
        level = words[at.G_LOG_LEVEL]
        if level != self._log_level:
            self._log_level = level
            logs.set_level(logs.LEVELS[level])
        if self._api.follow_files() and self._kafka is not None:
            self._kafka.end_revoked()
        self._end_overdue()
        self._loop.call_later(HEARTBEAT_S, self._heartbeat)

    # Deadlines

    def _end_overdue(self) -> None:
        """Takes back requests that nobody pulled in time, and gives up those whose outcome is
        unknown; at the next heartbeat if another shard holds the group's lock.
        """
        now_ns = monotonic_ns()
        self._write.admission.end_overdue(now_ns)
        if not self._pending.is_due(now_ns):
            self._write.voids.pass_over()
            return
        expired = self._expired(now_ns, int(self._words[self._base + at.S_PULLED]))
        if expired.void:

            def choose(pulled: int) -> Sequence[Run]:
                nonlocal expired
                expired = self._expired(now_ns, pulled)
                return expired.runs

            if not self._write.voids.take_back(choose):
                return
            self._look_again()
        self._pending.end(expired, self._write.producer.overdue, self._write.producer.unknown)

    def _expired(self, now_ns: int, pulled: int) -> ExpiredRequests:
        return self._pending.expired(now_ns, pulled, self._ring.head)

    # The group

    def _look_again(self) -> None:
        if not self._look_soon:
            self._look_soon = True
            self._loop.call_soon(self._look)

    def _short_of_time(self, arrival_ns: int, timeout_ns: int) -> None:
        """A request with less time than usual was published, and ``_published`` follows."""
        if self._write.urgent.published(arrival_ns, timeout_ns, self._ring.head):
            self._quiet_until = 0

    def _published(self) -> None:
        # With many busy connections one turn of the loop lasts 10 ms and more, and the bell would
        # be heard after it. This costs 0.1 us per request.
        if self._words[at.G_COMMITS] != self._feed.seen:
            self._follow_now()
        if self._ring.head > self._quiet_until:
            self._look_again()

    @_or_end
    def _look(self) -> None:
        self._look_soon = False
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        now_ns = monotonic_ns()
        look = self._write.puller.look(now_ns)
        for pulled in look.pulled:
            self._write.uploads.start(pulled.lease, pulled.requests)
        self._quiet_until = self._ring.head + look.quiet_bytes
        if look.again_at_ns >= NEVER:
            return
        delay_s = (look.again_at_ns - now_ns) / 1e9
        if delay_s <= 0:
            self._look_soon = True
            self._loop.call_soon(self._look)
        else:
            self._look_timer = self._loop.call_later(delay_s, self._look)

    # The bell

    @_or_end
    def _follow_now(self) -> None:
        """Delivers what was committed during this turn of the loop."""
        self._feed.follow()
        self._delivery.dispatcher.serve_now()

    @_or_end
    def _rung(self) -> None:
        self._bells.clear(self.shard)
        self._write.admission.read_gate()
        self._api.admin.rung()
        self._feed.follow()
        self._write.uploads.committed_moved()
        for lease in adopt_orphans(
            self._write.leases, self._opened.lock_file, self.shard, monotonic_ns()
        ):
            log.warning("taking over lease %s of shard %d (adoption %d)", lease.lease_id,
                        lease.shard, lease.deaths)  # fmt: skip
            self._write.uploads.start(lease)
        self._look_again()
        if self._words[at.G_DRAINING]:
            self._drain()

    def _take(self, commit: Commit) -> None:
        """What a commit means for this shard. Readers come first; nothing here takes long."""
        self._delivery.take(commit)
        self._write.trackers.committed(commit)
        self._pending.committed(commit)
        self._answer_soon()

    def _answer_soon(self) -> None:
        if self._pending.has_known and not self._answers_soon:
            self._answers_soon = True
            self._loop.call_soon(self._answer)

    @_or_end
    def _answer(self) -> None:
        """Answers producers in slices, and delivers what was committed meanwhile between two. New
        requests wait for the turn: answered in small lots, producers would come back in small lots,
        for a quarter more CPU per request (decision 0010)."""
        self._answers_soon = False
        until_ns = monotonic_ns() + ANSWERS_NS
        while self._pending.has_known and (now_ns := monotonic_ns()) < until_ns:
            self._pending.answer(monotonic_ns, now_ns + SLICE_NS)
            self._follow_now()
        self._answer_soon()
        if self._words[at.G_DRAINING] and not self._pending.has_known:
            self._drain()

    # The end

    def _drain(self) -> None:
        """Ends when no shard has anything left that was accepted and not answered."""
        self._server.stop_accepting()
        if self._kafka is not None:
            self._kafka.drain()
        self._delivery.drain()
        self._api.drain()
        if is_drained(self.segment, self._write.leases, self.shard, len(self._pending)):
            if not self._ended.done():
                self._ended.set_result(None)
            return
        # The last commit of a group rings every bell; the rest is noticed at the next heartbeat.
        if self._drain_timer is None:
            self._drain_timer = self._loop.call_later(HEARTBEAT_S, self._drain_again)

    @_or_end
    def _drain_again(self) -> None:
        self._drain_timer = None
        self._rung()

    async def _stop(self) -> None:
        await self._api.api.finish()
        try:
            async with asyncio.timeout(ANSWERS_FLUSH_S):
                await self._server.drained()
        except TimeoutError:
            log.warning(
                "%d connections and %d streams did not end in time and are closed",
                self._server.connections, len(self._server.streams),
            )  # fmt: skip
        if self._kafka is not None:
            await self._kafka.close()
        await self._delivery.senders.ended()
        await self._server.close()
        await self._delivery.close()
        self._write.uploads.stop()
        self._opened.close()


async def serve(inheritance: Inheritance) -> None:
    """Runs one shard in the running loop."""
    await Shard(inheritance).run()


def main() -> int:
    """The entry point of a shard process; its standard input is an Inheritance."""
    faulthandler.enable()  # a loop that is stuck is aborted, and writes where
    if sys.argv[2:] == ["spare"]:
        importlib.import_module("uploader.stores.s3")  # half a second, which it has now
    text = sys.stdin.buffer.read()
    if not text:
        return 0  # a spare whose supervisor has ended
    inheritance = inherit.decode(text)
    os.sched_setaffinity(0, {inheritance.cpu})
    be_killed_first()
    config = inheritance.config
    logs.start(config.log_level, config.log_format, f"shard {inheritance.shard}")
    # What exists now stays, and requests make no cycles: the collector has little to find.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    try:
        uvloop.run(serve(inheritance))
    except (LedgerError, StoreError) as error:
        log.critical("ended: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
