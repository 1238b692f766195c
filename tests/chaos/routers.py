"""The routers of a chaos run: one of a topic with a filter, one that shares its destination, and
one whose source is that destination."""

from __future__ import annotations

from tests.chaos.clients import SERVED_S, Port, ask
from tests.chaos.history import Place, Routed
from tests.e2e.daemon import Daemon, wait_until

# Sources come before what is made of them.
ROUTERS = {
    "orders-of-tags": Routed("orders", "copies", {"tag": "tag-1-?"}),
    "all-clicks": Routed("clicks", "copies"),
    "copies-of-nodes": Routed("copies", "second", {"node": "producer-?"}),
}
COPIES: list[Place] = [("copies", 0), ("copies", 1), ("second", 0)]


def create(daemon: Daemon) -> None:
    """Creates all routers; their topics are there."""
    for name, routed in ROUTERS.items():
        settings = {
            "source": routed.source, "dest": routed.destination, "filter": routed.filters,
            "from": "earliest",
        }  # fmt: skip
        answer = daemon.json("PUT", f"/v0/routers/{name}", settings)
        assert answer.status == 201, answer.body


def wait_until_copied(port: Port) -> None:
    """Waits until each router has dealt with all that its source has; nobody produces any more."""
    for name in ROUTERS:

        def copied(name: str = name) -> bool:
            status = ask(port(), "GET", f"/v0/routers/{name}")
            return status is not None and status["lag"] == 0

        wait_until(copied, f"router {name} to have copied everything", SERVED_S)
