"""What tests of routers share: making them, and comparing destinations with their sources."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from delivery.partitioner import partition_of
from tests.e2e.daemon import UNANSWERED, Daemon, wait_until


def add_router(daemon: Daemon, name: str, source: str, dest: str, **more: Any) -> Any:
    """The created router."""
    made = daemon.json("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest, **more})
    assert made.status == 201, made.body
    return made.json


def router(daemon: Daemon, name: str) -> Any:
    """A router as it is shown."""
    shown = daemon.get(f"/v0/routers/{name}")
    assert shown.status == 200, shown.body
    return shown.json


def wait_routed(daemon: Daemon, name: str) -> Any:
    """Waits until a router has dealt with everything in its source; the router as it is shown."""

    def look() -> Any:
        shown = router(daemon, name)
        return shown if not shown["lag"] else None

    return wait_until(look, f"router {name} to have no lag")


def content(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its offset."""
    return {name: value for name, value in record.items() if name != "seq"}


def partitions_of(daemon: Daemon, topic: str) -> list[list[dict[str, Any]]]:
    """All records of a topic, by partition."""
    state = daemon.get(f"/v0/topics/{topic}").json
    return [daemon.read_all(topic, each["partition"]) for each in state["partitions"]]


def everything(_: dict[str, Any]) -> bool:
    """Passes every record."""
    return True


def assert_copied(
    daemon: Daemon,
    source: str,
    dest: str,
    passes: Callable[[dict[str, Any]], bool] = everything,
) -> int:
    """The destination has exactly the filtered source, in order; returns how many records.

    The destination has one source, and records of different partitions of it differ in content.
    """
    sources, dests = partitions_of(daemon, source), partitions_of(daemon, dest)
    count = 0
    for number, records in enumerate(sources):
        wanted = [content(record) for record in records if passes(record)]
        count += len(wanted)
        mine = {str(record) for record in wanted}
        assert len(mine) == len(wanted), "records of a test must differ"
        for at, copies in enumerate(dests):
            found = [content(record) for record in copies if str(content(record)) in mine]
            assert found == [
                record for record in wanted if goes_to(record, number, len(dests)) == at
            ]
    assert count == sum(map(len, dests))
    return count


def goes_to(record: dict[str, Any], partition: int, partitions: int) -> int:
    """The partition of a copy."""
    key = record.get("key")
    return partition % partitions if key is None else partition_of(key, partitions)


class Feeder(threading.Thread):
    """Produces records with tags and keys to a topic until it is told to stop.

    What became of a request whose connection broke is not known; comparing a destination with its
    source needs no answer to that.
    """

    def __init__(self, daemon: Daemon, topic: str, number: int) -> None:
        super().__init__(name=f"feeder {number}")
        self.from_daemon = daemon
        self.topic = topic
        self.number = number
        self.acknowledged = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Sends a request at a time."""
        for batch in itertools.count():
            if self.stopping.is_set():
                return
            records = [self._record(batch, n) for n in range(1 + batch % 4)]
            body = json.dumps({"records": records}).encode()
            with contextlib.suppress(*UNANSWERED):
                answer = self.from_daemon.ask(
                    "POST", f"/v0/topics/{self.topic}", body, content_type="application/json"
                )
                self.acknowledged += answer.status == 200
            self.stopping.wait(0.002)

    def _record(self, batch: int, n: int) -> dict[str, Any]:
        key = {} if batch % 3 == 0 else {"key": f"k{batch % 5}"}
        return {"data": [self.number, batch, n], "tag": f"t{(batch + n) % 4}", **key}


@contextlib.contextmanager
def feeding(daemon: Daemon, *topics: str) -> Iterator[Callable[[int], None]]:
    """A feeder for each topic; the result waits until as many more requests are acknowledged."""
    feeders = [Feeder(daemon, topic, number) for number, topic in enumerate(topics)]
    for feeder in feeders:
        feeder.start()

    def wait_more(count: int) -> None:
        goals = [feeder.acknowledged + count for feeder in feeders]
        wait_until(
            lambda: all(f.acknowledged >= goal for f, goal in zip(feeders, goals, strict=True)),
            f"{count} more acknowledged requests",
        )

    try:
        yield wait_more
    finally:
        for feeder in feeders:
            feeder.stopping.set()
        for feeder in feeders:
            feeder.join()
