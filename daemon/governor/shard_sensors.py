"""What one shard senses: stored in its words with each heartbeat, for the supervisor.

A sensor that fails is stored as NaN, which presses fully and raises an alarm; its error is logged
once. It belongs to the loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from daemon.governor.memory import allocated_bytes
from delivery.dispatch import Dispatcher
from shards import layout as at
from shards.doubles import word_of
from shards.leases import LeaseTable
from shards.segment import Segment
from uploader.pipeline.health import UploadHealth

log = logging.getLogger("headgate.governor")


class ShardSensors:
    """The sensors of one shard."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        dispatcher: Dispatcher,
        leases: LeaseTable,
        uploads: UploadHealth,
        promised_bytes: Callable[[], int],
    ) -> None:
        self._words = segment.words
        self._base = segment.layout.shard(shard)
        slots = segment.layout.lease_slots
        self._sources: dict[int, Callable[[int], float]] = {
            at.S_READY_MS: lambda now_ns: dispatcher.ready.oldest_wait_ns(now_ns) / 1e6,
            at.S_SCHEDULING_MS: lambda _: dispatcher.latency_ns() / 1e6,
            at.S_STORE_SLOWDOWN: uploads.store_slowdown,
            at.S_COMMIT_MS: uploads.commit_ms,
            at.S_SLOTS_USED: lambda _: 1 - len(leases.free_slots(shard)) / slots,
            at.S_PROMISED_BYTES: lambda _: float(promised_bytes()),
            at.S_ALLOCATED_BYTES: lambda _: float(allocated_bytes()),
        }
        self._failed: set[int] = set()

    def store(self, now_ns: int) -> None:
        """Reads all of them."""
        for word, source in self._sources.items():
            try:
                value = source(now_ns)
            except Exception as error:
                value = math.nan
                if word not in self._failed:
                    log.error("a sensor cannot be read", exc_info=error)
                    self._failed.add(word)
            self._words[self._base + word] = word_of(value)
