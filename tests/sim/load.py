"""Requests of a simulated machine: numbers in payloads, repeated keys, appends to one topic.

The *appends* are requests to a separate topic that arrive at one shard only, with and without an
expectation (``expected_seq``). One ring has them all, so any recovery decides each of them as the
ledger did.
"""

from __future__ import annotations

from ledger import topics
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from shards.frame import Part, encode_conditions
from tests.sim import cursors
from tests.sim.cursors import Copier, CursorClient
from tests.sim.oracle import Oracle
from tests.sim.schedule import MS, Schedule

TOPICS = 2
PARTITIONS = 2
APPENDED = 3  # the topic of the appends


class Load:
    """The requests of one machine's producers."""

    def __init__(self, schedule: Schedule, oracle: Oracle, ledger: Ledger, shards: int) -> None:
        self._schedule = schedule
        self._rng = schedule.rng
        self._oracle = oracle
        self._append_shard = self._rng.randrange(shards)
        self.requests = 0
        self._keys: list[str] = []
        for number in range(TOPICS):
            ledger.write(topics.create, f"t{number + 1}", TopicConfig(partitions=PARTITIONS), 1)
        ledger.write(topics.create, f"t{APPENDED}", TopicConfig(), 1)
        cursors.create(ledger)

    def request(
        self, shard: int, client: CursorClient, copier: Copier | None
    ) -> tuple[int, bytes, list[Part]]:
        """A request with a number of its own in each payload; some repeat an idempotency key."""
        rng = self._rng
        self.requests += 1
        number = self.requests
        if copier is not None and not rng.randrange(4):
            return copier.request(number)
        if shard == client.shard and not rng.randrange(4):
            return client.request(number)
        if shard == self._append_shard and not rng.randrange(3):
            return self._append(number)
        now_ms = self._schedule.now_ns // MS
        topic = rng.randrange(1, TOPICS + 1)
        partitions = [rng.randrange(PARTITIONS)]
        if not rng.randrange(6):
            partitions = list(range(PARTITIONS))
        size = rng.choice((8, 16, 100, 700 if len(partitions) == 1 else 200))
        payload = number.to_bytes(8, "big") + bytes(size - 8)
        parts = [Part(topic, p, rng.randrange(1, 4), payload, now_ms, now_ms) for p in partitions]
        conditions = b""
        if not rng.randrange(5):
            if not self._keys or rng.randrange(2):
                self._keys.append(f"key {number}")
            key = rng.choice(self._keys[-4:])
            conditions = encode_conditions(key, None)
            self._oracle.keyed(number, topic, key)
        return number, conditions, parts

    def _append(self, number: int) -> tuple[int, bytes, list[Part]]:
        """Expects the known head, an older one, or one to come."""
        rng = self._rng
        now_ms = self._schedule.now_ns // MS
        head = self._oracle.head(APPENDED)
        expected = rng.choice((None, head, head, head, max(0, head - 1), head + 1))
        count = rng.randrange(1, 3)
        self._oracle.appended(number, expected, count)
        part = Part(APPENDED, 0, count, number.to_bytes(8, "big"), now_ms, now_ms)
        return number, encode_conditions(None, expected) if expected is not None else b"", [part]
