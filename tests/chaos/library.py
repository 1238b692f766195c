"""The Python client in a chaos run, as it is: it connects again and repeats by itself.

One sends record by record, another in the background; each has a topic. Watches of both topics see
every record once, and two consumers each message at least once, whatever is killed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

from headgate import Client as Headgate
from headgate import Consumer, Gap, Limits
from shards.clock import monotonic_ns
from tests.chaos.clients import PATIENCE_S, Client, Numbers
from tests.chaos.history import Answered, History, Page, Place, Sent, fields_of
from tests.e2e.daemon import wait_until

ONE, MANY = "library-one", "library-many"
PLACES: list[Place] = [(ONE, 0), (MANY, 0)]
SUBSCRIPTION = "library-work"
FIRST_NUMBER = 200  # of a producer; those before it send by HTTP or Kafka's protocol


def _client(url: str) -> Headgate:
    return Headgate(url, timeout_s=PATIENCE_S, patience_s=PATIENCE_S)


class _Sender(Client):
    """Sends records until it is told to stop, and then one that says so: ``N.0.1``."""

    def __init__(
        self, number: int, topic: str, url: str, history: History, numbers: Numbers, pause_s: float
    ) -> None:
        super().__init__(f"library sender {number}")
        self.stored = 0
        self._number = FIRST_NUMBER + number
        self._topic = topic
        self._url = url
        self._history = history
        self._numbers = numbers
        self._connection = numbers.connection()
        self._pause_s = pause_s

    def _made(self) -> Iterator[int]:
        """The numbers of the records, and 0 at the end."""
        for made in itertools.count(1):
            if self.stopping.wait(self._pause_s):
                break
            yield made
        yield 0

    def _sent(self, made: int) -> tuple[int, str]:
        """An attempt, and its record."""
        attempt, record = self._numbers.attempt(), f"{self._number}.{made}.1"
        self._history.add(Sent(attempt, self._connection, (self._topic, 0), (record,)))
        return attempt, record

    def _acknowledged(self, attempt: int, seq: int) -> None:
        self.stored += 1
        self._history.add(Answered(attempt, 200, seq, at_ms=monotonic_ns() // 1_000_000))


class OneByOne(_Sender):
    """``produce``, which returns when a record is stored."""

    def work(self) -> None:
        """One record after the other."""
        with _client(self._url) as h:
            for made in self._made():
                attempt, record = self._sent(made)
                fields: dict[str, Any] = fields_of(record)
                found = h.produce(self._topic, record, **fields)
                self._acknowledged(attempt, found.seq)


class InBatches(_Sender):
    """``producer``, the only one of its topic: so its records have the offsets from 1 on."""

    def work(self) -> None:
        """Sends without waiting."""
        attempts: list[int] = []
        with (
            _client(self._url) as h,
            h.producer(self._topic, limits=Limits(linger_s=0.02)) as producer,
        ):
            for made in self._made():
                attempt, record = self._sent(made)
                attempts.append(attempt)
                fields: dict[str, Any] = fields_of(record)
                producer.send(record, **fields)
        assert producer.position == len(attempts)
        for seq, attempt in enumerate(attempts, 1):
            self._acknowledged(attempt, seq)


class Watched(Client):
    """``watch`` of a topic, from its beginning to the last record of its sender."""

    def __init__(self, topic: str, url: str, history: History) -> None:
        super().__init__(f"library watch of {topic}")
        self.records = 0
        self._place: Place = (topic, 0)
        self._url = url
        self._history = history

    def work(self) -> None:
        """Until the last record."""
        reached = 0
        with (
            _client(self._url) as h,
            h.watch(self._place[0], from_seq=0) as items,
        ):
            for each in items:
                if isinstance(each, Gap):
                    gap = (each.first_seq, each.last_seq)
                    page = Page(self.name, self._place, reached, gap[1], (), gap, each.reason)
                    data = ""
                else:
                    data = each.data
                    page = Page(self.name, self._place, reached, each.seq, ((each.seq, data),))
                    self.records += 1
                self._history.add(page)
                reached = page.next_from_seq
                if data.split(".")[1:2] == ["0"]:
                    return


class Work:
    """What the consumers have acknowledged together: offsets of MANY."""

    def __init__(self) -> None:
        self.done: set[int] = set()
        self._mutex = threading.Lock()

    def add(self, seq: int) -> None:
        """One more."""
        with self._mutex:
            self.done.add(seq)


class Worker(Client):
    """``consume``: acknowledges each message."""

    def __init__(self, number: int, url: str, work: Work) -> None:
        super().__init__(f"library worker {number}")
        self._url = url
        self._work = work
        self._messages: Consumer | None = None

    def work(self) -> None:
        """Until ``end``."""
        with (
            _client(self._url) as h,
            h.consume(MANY, SUBSCRIPTION, name=self.name, create={"start": "earliest"}) as messages,
        ):
            self._messages = messages
            for each in messages:
                if each.ack():
                    self._work.add(each.seq)

    def end(self) -> None:
        """Ends it."""
        assert self._messages is not None
        self._messages.stop()


class Library:
    """All of them."""

    def __init__(self, url: str, history: History, numbers: Numbers, pause_s: float) -> None:
        self.senders: list[_Sender] = [
            OneByOne(0, ONE, url, history, numbers, pause_s),
            InBatches(1, MANY, url, history, numbers, pause_s),
        ]
        self.watches = [Watched(topic, url, history) for topic in (ONE, MANY)]
        self.work = Work()
        self.workers = [Worker(number, url, self.work) for number in range(2)]

    @property
    def clients(self) -> list[Client]:
        """Each is a thread."""
        return [*self.senders, *self.watches, *self.workers]

    def wait_until_done(self) -> None:
        """When the senders have ended: until all is seen and worked on."""
        for each in self.watches:
            each.join(2 * PATIENCE_S)
        many = self.senders[1].stored
        wait_until(
            lambda: self.work.done >= set(range(1, many + 1)), "all messages to be acknowledged",
            2 * PATIENCE_S,
        )  # fmt: skip
        for worker in self.workers:
            worker.end()
