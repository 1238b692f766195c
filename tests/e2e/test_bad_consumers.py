"""Consumers and operators that ask for what cannot be: a clear refusal each, and nobody notices.

That nobody else is disturbed is seen by a bystander, a consumer of another subscription of the same
topic: it gets each message before the next one is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ledger.delivery.subscriptions import CONSUMERS_MAX
from tests.e2e.consuming import ConsumerStream, acknowledgment, subscribe
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.wire import Wire, request

MIB = 1 << 20
AT_ONCE = 100  # requests on their way; a connection may have 128


class ConsumingBystander:
    """A consumer that acknowledges each message before the next one is written."""

    def __init__(self, daemon: Daemon, topic: str) -> None:
        self._daemon = daemon
        self._topic = topic
        self._path = f"/v0/topics/{topic}/subscriptions/bystander"
        assert daemon.json("PUT", self._path, {"start": "latest"}).status == 201
        self._stream = ConsumerStream(daemon, 0, self._path, "by")

    def work(self, *data: object) -> None:
        for each in data:
            assert self._daemon.produce(self._topic, each).status == 200
            (message,) = self._stream.messages(1)
            assert (message["data"], message["attempt"]) == (each, 1)
            named = acknowledgment("by", [message])
            assert self._daemon.json("POST", f"{self._path}/ack", named).json["accepted"] == 1

    def close(self) -> None:
        assert not [each for each in self._stream.told if each.get("event") != "heartbeat"]
        self._stream.close()


@pytest.fixture(scope="module")
def path(shared_daemon: Daemon) -> str:
    """A subscription of the topic ``bc``, whose messages are refused until they block."""
    return subscribe(shared_daemon, "bc", "s", redeliveries_max=0)


@pytest.fixture
def bystander(shared_daemon: Daemon, path: str) -> Iterator[ConsumingBystander]:
    made = ConsumingBystander(shared_daemon, "bc")
    made.work("before")
    yield made
    made.work("after")
    made.close()
    assert shared_daemon.ask("DELETE", "/v0/topics/bc/subscriptions/bystander").status == 200
    assert "Traceback" not in shared_daemon.text


def test_names_of_a_megabyte_are_refused_without_being_repeated(
    shared_daemon: Daemon, path: str, bystander: ConsumingBystander
) -> None:
    ask, long = shared_daemon.ask, "n" * MIB
    at = path.rpartition("/")[0]
    in_urls = (f"{at}/{long}", f"{path}/consume?consumer={long}", f"{path}/keys/{long}",
               f"{path}/consume?consumer=c&filter={long}")  # fmt: skip
    for each in in_urls:
        # The head is refused before it is complete, so the client may see the connection end.
        with Wire(shared_daemon.port) as wire:
            wire.send(request("GET", each))
            answer = wire.answer()
        assert answer is not None
        assert (answer.status, answer.code) == (431, "head_too_large")
    for each in (f"{at}/{long[:7000]}", f"{path}/consume?consumer={long[:7000]}"):
        answer = ask("GET", each)
        assert (answer.status, len(answer.body) < 500) == (400, True), answer.body[:200]
    bodies: dict[str, Any] = {
        "ack": {"consumer": long[:-100], "batch": 1}, "leave": {"consumer": long[:-100]},
        "retry": {"key": long[:-100]}, "skip": {"key": long[:-100]},
    }  # fmt: skip
    for action, body in bodies.items():
        answer = shared_daemon.json("POST", f"{path}/{action}", body)
        assert answer.status in (400, 404)
        assert len(answer.body) < 1000, action
    bystander.work("between")


def test_what_was_never_sent_or_is_not_with_the_consumer_any_more_is_refused_and_counted(
    shared_daemon: Daemon, path: str, bystander: ConsumingBystander
) -> None:
    def told(action: str, document: object) -> int:
        return shared_daemon.json("POST", f"{path}/{action}", document).status

    refused = shared_daemon.get(path).json["refused"]
    never = {"consumer": "c", "messages": [{"partition": 0, "seq": 10**9, "epoch": 1}]}
    of_no_partition = {"consumer": "c", "messages": [{"partition": 77, "seq": 1, "epoch": 1}]}
    for document in (never, of_no_partition, {"consumer": "c", "batch": 10**15}):
        assert [told("ack", document), told("nack", document)] == [409, 409]
    bystander.work("for c")
    polled = shared_daemon.get(f"{path}/consume?consumer=c&max=100&wait_ms=20000").json
    mine = {"consumer": "c", "batch": polled["epoch"]}
    assert told("ack", mine | {"consumer": "d"}) == 409
    assert shared_daemon.json("POST", f"{path}/leave", {"consumer": "c"}).json["returned"] > 0
    assert told("ack", mine) == 409
    again = shared_daemon.get(f"{path}/consume?consumer=d&max=100&wait_ms=20000").json
    # The first poll may have come before the owner knew of the last message.
    returned = [each["seq"] for each in polled["messages"]]
    seqs = [each["seq"] for each in again["messages"]]
    assert [seq for seq in seqs if seq in returned] == returned
    assert told("ack", acknowledgment("c", again["messages"])) == 409
    assert told("ack", {"consumer": "d", "batch": again["epoch"]}) == 200
    assert told("ack", acknowledgment("d", again["messages"])) == 200  # a repetition
    assert shared_daemon.get(path).json["refused"] == refused + 8 + 2 * len(again["messages"])


@pytest.mark.slow
def test_of_ten_thousand_consumers_a_thousand_are_let_in(
    shared_daemon: Daemon, path: str, bystander: ConsumingBystander
) -> None:
    statuses: list[int] = []
    crowded = f"{path}-crowded"
    # A consumer that polls is there as long as a message would be with it.
    patient = {"ack_timeout_ms": 3_600_000}
    assert shared_daemon.json("PUT", crowded, patient).status == 201
    with Wire(shared_daemon.port) as wire:
        for first in range(0, 10_000, AT_ONCE):
            some = range(first, first + AT_ONCE)
            wire.send(
                b"".join(request("GET", f"{crowded}/consume?consumer=c{n}&max=1") for n in some)
            )
            answers = [wire.answer() for _ in some]
            statuses += [each.status for each in answers if each is not None]
            if not first % 1_000:
                bystander.work(first)
    assert statuses == [200] * CONSUMERS_MAX + [429] * (10_000 - CONSUMERS_MAX)
    assert answers[-1] is not None and answers[-1].code == "too_many_consumers"
    assert len(shared_daemon.get(crowded).json["consumers"]) == CONSUMERS_MAX
    assert shared_daemon.ask("DELETE", crowded).status == 200
    wait_until(lambda: shared_daemon.get(crowded).status == 404, "the consumers to be gone")
    bystander.work("later")
