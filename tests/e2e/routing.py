"""What tests of routers share: making them, and comparing destinations with their sources."""

from __future__ import annotations

from typing import Any

from delivery.partitioner import partition_of
from tests.e2e.daemon import Daemon, wait_until


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


def assert_copied(daemon: Daemon, source: str, dest: str, passes: Any = lambda record: True) -> int:
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
