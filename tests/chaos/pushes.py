"""The push subscriptions of a chaos run, their receiver, and what is done to that."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.chaos.clients import Client, Port, answer_of
from tests.chaos.consumers import now_ms
from tests.chaos.history import (
    Drained,
    Floors,
    History,
    Line,
    Place,
    Posted,
    Pushed,
    Pushes,
    Replied,
    Unheard,
)
from tests.chaos.lives import Lives
from tests.chaos.subscriptions import lag_of, path_of, told_lag
from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tools.receiver.behavior import Behavior
from tools.receiver.log import Came
from tools.receiver.process import ReceiverProcess

FAILURES_MAX = 3
TIMEOUT_MS = 1_500
STALL_S = 2 * HANG_S
DEAD_LETTERS = "pushed-dead-letters"
BURIED: list[Place] = [(DEAD_LETTERS, 0)]
# What takes minutes otherwise takes a second; nothing else is different.
SETTINGS: dict[str, object] = {
    "push_limiter_period_s": 1, "push_slow_delay_s": 0.5, "push_balance_interval_s": 1,
    "push_allow": "127.0.0.1",
}  # fmt: skip
PRODUCERS = 4
PAUSE_S = 0.05


class Wanted(Struct, frozen=True):
    """A push subscription, and the rest of its settings."""

    rules: Pushes
    format: str
    more: dict[str, object] = {}


WANTED = [
    Wanted(Pushes("keyed", "clicks", "key_shared", "dead_letter", FAILURES_MAX, 200, 2, 8,
                  TIMEOUT_MS, DEAD_LETTERS), "binary"),
    Wanted(Pushes("unordered", "clicks", "shared", "drop", FAILURES_MAX, 300, 3, 16, TIMEOUT_MS),
           "binary"),
    Wanted(Pushes("in-order", "orders", "exclusive", "drop", FAILURES_MAX, 200, 1, 4, TIMEOUT_MS),
           "structured"),
    Wanted(Pushes("batched", "orders", "key_shared", "dead_letter", FAILURES_MAX, 50, 2, 8,
                  TIMEOUT_MS, DEAD_LETTERS, key_fallback="node"),
           "batch", {"batch_max": 20, "batch_wait_ms": 50}),
]  # fmt: skip
ALWAYS = Behavior(refused_every=200, faltered_every=60)


class Spoil(Enum):
    """What is done to the receiver; most of it to one endpoint."""

    NOTHING = "nothing"
    FEW = "has little capacity"
    DOWN = "answers 503"
    ERRORS = "answers 500 sometimes"
    SILENT = "does not answer sometimes"
    CUT = "answers in part sometimes"
    LOST = "ends the connection sometimes"
    SLOW = "is slow"
    KILL = "is killed"
    STOP = "is stopped"


BEHAVIORS = {
    Spoil.NOTHING: {},
    Spoil.FEW: {"capacity_per_s": 20.0},
    Spoil.DOWN: {"capacity_per_s": 0.0},
    Spoil.ERRORS: {"error_share": 0.2},
    Spoil.SILENT: {"silent_share": 0.05},
    Spoil.CUT: {"cut_share": 0.1},
    Spoil.LOST: {"lost_share": 0.1},
    Spoil.SLOW: {"latency_ms": 200.0},
}
SPOILS = [*Spoil, *[Spoil.NOTHING] * 8]  # half of the time it is well
PAUSE_BETWEEN_S = (0.2, 2.5)
FLOORS_S = 0.5
AWAY_S = (0.0, 2.5)


class Spoiler(Client):
    """Has the receiver, and does things to it until it is stopped."""

    def __init__(self, folder: Path, written: History, seed: int, wanted: Sequence[Wanted]) -> None:
        super().__init__("spoiler")
        self._names = [each.rules.subscription for each in wanted]
        self.receiver = ReceiverProcess(folder / "receiver.log", seed=seed)
        self.acts: Counter[str] = Counter()
        self._written = written
        self._rng = random.Random(f"{seed} receiver")

    def begin(self) -> None:
        """Starts the receiver, which behaves well."""
        self.receiver.start()
        self._calm()

    def work(self) -> None:
        """Until it is told to stop; then the receiver behaves well again."""
        while not self.stopping.wait(self._rng.uniform(*PAUSE_BETWEEN_S)):
            spoil = self._rng.choice(SPOILS)
            self.acts[spoil.value] += 1
            if spoil in (Spoil.KILL, Spoil.STOP):
                self._away(spoil)
            else:
                self._behave(self._rng.choice(self._names), BEHAVIORS[spoil])
        self._calm()

    def _away(self, spoil: Spoil) -> None:
        self._tell()
        if spoil is Spoil.KILL:
            self.receiver.kill()
            self.stopping.wait(self._rng.uniform(*AWAY_S))
            self.receiver.start()
        else:
            self.receiver.stop()
            self.stopping.wait(self._rng.uniform(*AWAY_S))
            self.receiver.go_on()
        self._tell()

    def _calm(self) -> None:
        for name in self._names:
            self._behave(name, {})

    def _behave(self, name: str, more: dict[str, Any]) -> None:
        self.receiver.behave(
            name, Behavior(refused_every=ALWAYS.refused_every,
                           faltered_every=ALWAYS.faltered_every, **more)
        )  # fmt: skip

    def _tell(self) -> None:
        self._written.add(Unheard(now_ms()))

    def lines(self) -> Iterator[Line]:
        """What the receiver noted, for the history."""
        for entry in self.receiver.entries():
            if isinstance(entry, Came):
                records = tuple(Pushed(event.id, json.loads(event.data)) for event in entry.events)
                name = entry.endpoint.replace("-life-", "#")
                yield Posted(name, entry.number, records, entry.at_ms, entry.connection)
            else:
                name = entry.endpoint.replace("-life-", "#")
                yield Replied(name, entry.number, entry.status, entry.at_ms, entry.is_whole)


class FloorWatch(Client):
    """Asks the owners again and again how far they are."""

    def __init__(
        self, port: Port, written: History, wanted: Sequence[Wanted], lives: Lives
    ) -> None:
        super().__init__("floors")
        self._port = port
        self._written = written
        self._wanted = wanted
        self._lives = lives

    def work(self) -> None:
        """Until it is told to stop."""
        while not self.stopping.wait(FLOORS_S):
            for each in self._wanted:
                self._ask(each.rules)

    def _ask(self, rules: Pushes) -> None:
        with self._lives.present(rules.subscription) as judged:
            asked_ms = now_ms()
            status, answer = answer_of(self._port(), "GET", path_of(rules), None)
            if status == 200:
                partitions = sorted(answer["partitions"], key=lambda each: each["partition"])
                floors = tuple(each["floor"] for each in partitions)
                self._written.add(Floors(judged, floors, asked_ms, now_ms()))


def settings_of(each: Wanted, receiver: ReceiverProcess, judged: str) -> dict[str, object]:
    """What a push subscription is created with; each life has an endpoint of its own."""
    rules = each.rules
    push: dict[str, object] = {
        "endpoint": receiver.url(judged.replace("#", "-life-")), "rate_max": rules.rate_max,
        "senders": rules.senders, "connections_max": rules.connections_max,
        "timeout_ms": rules.timeout_ms, "format": each.format, **each.more,
    }  # fmt: skip
    settings: dict[str, object] = {
        "mode": rules.mode, "start": "earliest", "redeliveries_max": rules.failures_max - 1,
        "backoff_ms": [20, 200], "poison": rules.poison, "push": push,
        "key_fallback": rules.key_fallback,
    }  # fmt: skip
    if rules.dead_letters:
        settings["dead_letter_topic"] = rules.dead_letters
    return settings


def create(
    daemon: Daemon, written: History, receiver: ReceiverProcess, wanted: Sequence[Wanted]
) -> None:
    """Creates push subscriptions; their topics are there."""
    for each in wanted:
        settings = settings_of(each, receiver, each.rules.subscription)
        answer = daemon.json("PUT", path_of(each.rules), settings)
        assert answer.status == 201, answer.body
        written.add(each.rules)


def wait_until_drained(
    port: Port, written: History, wanted: Sequence[Wanted], lives: Lives
) -> None:
    """Waits until everything is delivered, or no more than before for a long while. Nobody
    produces any more, and the receiver is well. The judge names what is left."""
    lags: dict[str, int] = {}

    def moved() -> bool:
        before = dict(lags)
        lags.update({each.rules.subscription: lag_of(port, each.rules) for each in wanted})
        return lags != before or not any(lags.values())

    with contextlib.suppress(AssertionError):
        wait_until(moved, "push subscriptions to be asked")
        while any(lags.values()):
            wait_until(moved, "push subscriptions to have less lag", STALL_S)
    for each in wanted:
        name = each.rules.subscription
        written.add(Drained(lives.judged(name), lags[name]))


def undone(port: Port, wanted: Sequence[Wanted]) -> list[str]:
    """What is to be sent again after the daemon stopped in good order, though all was done."""
    lags = {each.rules.subscription: told_lag(port, each.rules) for each in wanted}
    return [
        f"undone: after a restart {name} has a lag of {lag}" for name, lag in lags.items() if lag
    ]


# What a run is about: records that are taken, refused and sent again, and answers that are lost.
KINDS = {"answered 200", "answered 400", "answered 503", "again", "not answered"}


def told(lines: Sequence[Line]) -> Counter[str]:
    """What the receiver got and answered, in all."""
    found: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for line in lines:
        if isinstance(line, Posted):
            places = {(line.subscription, pushed.id) for pushed in line.records}
            found["POSTs"] += 1
            found["records"] += len(line.records)
            found["again"] += len(seen & places)
            seen |= places
        elif isinstance(line, Replied):
            found[f"answered {line.status}" if line.whole else "not answered"] += 1
    return +found
