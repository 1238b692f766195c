"""What ``--recreate`` deletes and creates again under its name, at random, while it is in use:
subscriptions of all modes, push subscriptions, a router, a topic with its subscription, a cursor.

All of it is small, for each life begins at the beginning. Consumers have the same names in all
lives. An *intruder* connects while names are deleted, and says nothing of what it is sent.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter

import msgspec

from tests.chaos import letters, pushes, subscriptions
from tests.chaos.clients import RETRY_S, SERVED_S, Client, Numbers, Port, answer_of, until_answered
from tests.chaos.consumers import Consumes, now_ms
from tests.chaos.history import (
    Answered,
    Ended,
    History,
    Place,
    Pushes,
    Renewed,
    Routed,
    Sent,
    Subscribed,
)
from tests.chaos.lives import Lives
from tests.chaos.watchers import Form, connected
from tests.e2e.daemon import Daemon, wait_until
from tools.receiver.process import ReceiverProcess

RENEWED = "renewed"
SUNK: Place = ("sunk", 0)
ROUTER = "renewed-router"
ROUTED = Routed("orders", "routed")
PLACES: list[Place] = [(RENEWED, 0)]
ALL_PLACES: list[Place] = [SUNK, (ROUTED.destination, 0), letters.FULL, letters.LOST]
PAUSE_S = (0.1, 2.0)
NAMELESS_S = 0.3  # how long a name may be nobody's
SINK_PAUSE_S = 0.05
SINK_PRODUCER = 90  # in the texts of its records
RENEWED_SHARE = 0.02  # of the sink's records

SUBSCRIPTIONS = [
    *(each for each in subscriptions.SUBSCRIPTIONS if each.poison != "dead_letter"),
    Subscribed("renewing", RENEWED, "key_shared", "drop", subscriptions.FAILURES_MAX,
               subscriptions.ACK_TIMEOUT_MS),
    *letters.SUBSCRIPTIONS,
]  # fmt: skip
CONSUMES = [
    *(each for each in subscriptions.CONSUMES if each.subscription != "by-key"),
    Consumes(RENEWED, "renewing", "anna", Form.NDJSON, wanders=True),
    Consumes(RENEWED, "renewing", "bert"),
    *letters.CONSUMES,
]
PUSHED = [
    pushes.Wanted(Pushes("pushed", "clicks", "key_shared", "drop", pushes.FAILURES_MAX, 200, 2, 8,
                         pushes.TIMEOUT_MS), "binary"),
    pushes.Wanted(Pushes("pushed-in-order", "orders", "exclusive", "drop", pushes.FAILURES_MAX,
                         100, 1, 4, pushes.TIMEOUT_MS), "structured"),
]  # fmt: skip


class Renewer(Client):
    """Deletes and creates, until it is told to stop."""

    def __init__(
        self, port: Port, written: History, lives: Lives, seed: int, receiver: ReceiverProcess
    ) -> None:
        super().__init__("renewer")
        self.acts: Counter[str] = Counter()
        self._port = port
        self._written = written
        self._lives = lives
        self._rng = random.Random(f"{seed} renewer")
        self._receiver = receiver

    def create(self, daemon: Daemon) -> None:
        """What is there from the beginning; its topics are."""
        answer = daemon.json("PUT", f"/v0/routers/{ROUTER}", _ROUTER_SETTINGS)
        assert answer.status == 201, answer.body

    def work(self) -> None:
        """Until it is told to stop."""
        of_topics = [each for each in SUBSCRIPTIONS if each.topic != RENEWED]
        while not self.stopping.wait(self._rng.uniform(*PAUSE_S)):
            what = self._rng.choice(["subscription", "subscription", "push", "router", "topic"])
            self.acts[f"{what} renewed"] += 1
            if what == "subscription":
                self._subscription(self._rng.choice(of_topics))
            elif what == "push":
                self._push(self._rng.choice(PUSHED))
            elif what == "router":
                with self._lives.renewed(ROUTER):
                    self._replace(f"/v0/routers/{ROUTER}", _ROUTER_SETTINGS)
            else:
                self._topic()

    def end(self) -> None:
        """Says how many lives the router had. Nothing is deleted any more."""
        lives = self._lives.number(ROUTER)
        self._written.add(msgspec.structs.replace(ROUTED, lives=lives))

    def _subscription(self, each: Subscribed) -> None:
        name = each.subscription
        with self._lives.renewed(name) as former:
            self._written.add(Ended(former, now_ms()))
            self._replace(subscriptions.path_of(each), subscriptions.settings_of(each))
            self._begins(each)

    def _begins(self, each: Subscribed) -> None:
        following = self._lives.following(each.subscription)
        self._written.add(msgspec.structs.replace(each, subscription=following))

    def _push(self, each: pushes.Wanted) -> None:
        name = each.rules.subscription
        with self._lives.renewed(name) as former:
            following = self._lives.following(name)
            self._written.add(Ended(former, now_ms()))
            settings = pushes.settings_of(each, self._receiver, following)
            # The judge knows the life before its first POST, whose lines come last of all.
            self._written.add(msgspec.structs.replace(each.rules, subscription=following))
            self._replace(subscriptions.path_of(each.rules), settings)

    def _topic(self) -> None:
        (each,) = (each for each in SUBSCRIPTIONS if each.topic == RENEWED)
        with self._lives.renewed(each.subscription) as former:
            self._written.add(Ended(former, now_ms(), with_topic=True))
            self._written.add(Renewed(RENEWED))
            self._replace(f"/v0/topics/{RENEWED}", {"partitions": 1})
            self._written.add(Renewed(RENEWED, done=True))
            settings = subscriptions.settings_of(each)
            until_answered(self._port, "PUT", subscriptions.path_of(each), settings, (200, 201))
            self._begins(each)

    def _replace(self, path: str, settings: object) -> None:
        until_answered(self._port, "DELETE", path, None, (200, 404))
        if self._rng.random() < 0.5:
            self.stopping.wait(self._rng.uniform(0, NAMELESS_S))
        until_answered(self._port, "PUT", path, settings, (200, 201))


class Sink(Client):
    """Stores records with a cursor, each once; deletes the cursor and creates it again. Nobody else
    moves it, so it is where the last answer left it, or one further if that was lost."""

    def __init__(self, port: Port, written: History, numbers: Numbers, seed: int) -> None:
        super().__init__("sink")
        self.contradictions: list[str] = []
        self._port = port
        self._written = written
        self._numbers = numbers
        self._rng = random.Random(f"{seed} sink")
        self._made = 0

    def work(self) -> None:
        """One record after the other, until it is told to stop."""
        at = -1
        while not self.stopping.wait(SINK_PAUSE_S):
            if at < 0 or self._rng.random() < RENEWED_SHARE:
                if at >= 0 and not self._settled("DELETE", (200, 404)):
                    return
                if not self._settled("PUT", (200, 201)):
                    return
                at = 0
            if not self._store(at):
                return
            at += 1

    def _settled(self, method: str, statuses: tuple[int, ...]) -> bool:
        """Whether the cursor was deleted, or created, before the end."""
        while answer_of(self._port(), method, "/v0/cursors/sink", {})[0] not in statuses:
            if self.stopping.wait(RETRY_S):
                return False
        return True

    def _store(self, at: int) -> bool:
        """Stores the next record, with the cursor at its place; False if the run ended first."""
        self._made += 1
        record = f"{SINK_PRODUCER}.{self._made}.0"
        advance = {"cursor": "sink", "expected": at, "next": at + 1}
        document = {"records": [{"data": record}], "partition": 0, "advance": advance}
        is_open = False  # an attempt had no answer
        while True:
            attempt = self._numbers.attempt()
            self._written.add(Sent(attempt, self._numbers.connection(), SUNK, (record,)))
            status, answer = answer_of(self._port(), "POST", f"/v0/topics/{SUNK[0]}", document)
            if status == 200:
                self._written.add(Answered(attempt, status, answer["first_seq"]))
                return True
            if status not in (0, 504):
                self._written.add(Answered(attempt, status))
            if status == 412:
                where = answer["error"]["detail"]["position"]
                if where != at + 1 or not is_open:
                    self.contradictions.append(
                        f"moved: the sink left its cursor at {at}, and {record} was refused"
                        f" because it is at {where}"
                    )
                return True
            # 504, and 404 of a shard that has not heard of the cursor, may be either.
            is_open = is_open or status in (0, 504)
            if self.stopping.wait(RETRY_S):
                return False


class Intruder(Client):
    """Connects at any time, and leaves without a word."""

    def __init__(self, port: Port, seed: int) -> None:
        super().__init__("intruder")
        self.contradictions: list[str] = []  # none: it sees nothing
        self._port = port
        self._rng = random.Random(f"{seed} intruder")

    def work(self) -> None:
        """Until it is told to stop."""
        while not self.stopping.wait(self._rng.uniform(0.02, 0.3)):
            each = self._rng.choice(SUBSCRIPTIONS)
            path = f"{subscriptions.path_of(each)}/consume?consumer=intruder"
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {Form.NDJSON.value}\r\n\r\n"
            with contextlib.suppress(OSError), connected(self._port(), small=False) as sock:
                sock.sendall(head.encode())
                self.stopping.wait(self._rng.uniform(0, 0.3))
                sock.shutdown(socket.SHUT_RDWR)


def wait_until_routed(port: Port) -> None:
    """Waits until the router has copied everything; nobody produces any more."""

    def is_done() -> bool:
        status, answer = answer_of(port(), "GET", f"/v0/routers/{ROUTER}", None)
        return status == 200 and answer["lag"] == 0

    wait_until(is_done, f"router {ROUTER} to have copied everything", SERVED_S)


_ROUTER_SETTINGS = {"source": ROUTED.source, "dest": ROUTED.destination, "from": "earliest"}
