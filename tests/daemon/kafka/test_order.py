"""The order of a real client's records, whatever is refused: librdkafka without idempotence, with
its usual five requests under way, on a listener whose ring, deadlines and gate the test moves."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from daemon.governor.producers_gate import ClosedBy
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.topics import KafkaTopics
from daemon.schemas.errors import ApiError
from delivery.reading.waiters import Waiters
from shards import layout as at
from shards.clock import monotonic_ns
from shards.ring import RingReader
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.test_server import kafka_server
from uploader.l0 import records_of

RECORDS = 120  # at least
REFUSED = 4


class Client(threading.Thread):
    """Sends numbers, a few in each request, until enough was refused and all have an answer."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.failed: list[KafkaError] = []
        self.enough = threading.Event()
        self.sent = 0
        self.left = RECORDS
        self._producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 0, "log_level": 0,
                "batch.num.messages": 2, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10,
            }
        )  # fmt: skip

    def run(self) -> None:
        while self.sent < RECORDS or not self.enough.is_set():
            self._producer.produce("dest", b"%d" % self.sent, on_delivery=self._heard)
            self._producer.poll(0.002)
            self.sent += 1
        self.left = self._producer.flush(60)

    def _heard(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed.append(error)


def withdraws(made: Outbox) -> bool:
    """The deadline of the first of several batches passes."""
    if len(made.pending) < 2:
        return False
    first, now_ns = made.pending._waiting[0], monotonic_ns()
    first.request.arrival_ns = now_ns - first.timeout_ns
    expired = made.pending.expired(now_ns, 0, made.ring.head)
    for start, end in expired.runs:
        made.ring.make_void(start, end)
    late = ApiError(503, "ack_timeout", "late")
    made.pending.end(expired, lambda _: late, lambda _: late)
    return True


def closes(made: Outbox) -> bool:
    """The gate closes, if it is open, and opens again."""
    was_open = not made.admission.is_closed
    made.segment.words[at.G_GATE] = ClosedBy.STORE_FAILING if was_open else 0
    made.admission.read_gate()
    return not was_open


@pytest.mark.parametrize("refuses", [withdraws, closes])
def test_a_client_keeps_its_order_through_refusals(
    tmp_path: Path, refuses: Callable[[Outbox], bool]
) -> None:
    async def test(made: Outbox) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        port = listener.getsockname()[1]
        names = KafkaTopics(made.topics, (port,), "file:///store", auto_create=True)
        reads = KafkaReads(names, None, Waiters())  # type: ignore[arg-type]  # nothing is read
        served = kafka_server(made, names, reads)
        await served.start([listener.detach()])
        reader, done, stored = RingReader(made.segment, 0), 0, list[int]()
        client = Client(port)
        client.start()
        refused = rounds = 0
        while client.is_alive():
            await asyncio.sleep(0.005)
            rounds += 1
            if rounds % 5 == 0 and refused < REFUSED:
                refused += refuses(made)
                if refused == REFUSED:
                    client.enough.set()
            if rounds % 3 == 0:
                for request in reader.requests(done, made.ring.head):
                    for batch in request.batches:
                        found = records_of(reader.batch(batch), 1)
                        stored += [int(record.data) for _, _, record in found]
                done = made.ring.head
                made.commit_all()
        client.join()
        await served.close()
        assert (client.left, client.failed) == (0, [])
        assert stored == list(range(client.sent))

    with outbox_in(tmp_path) as made:
        asyncio.run(test(made))
