"""The subscriptions of a chaos run, and their consumers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

from tests.chaos.clients import SERVED_S, Port
from tests.chaos.consumers import (
    Consumer,
    Consumes,
    Era,
    Operator,
    Poller,
    StreamConsumer,
    ask_consumer,
)
from tests.chaos.history import Drained, History, Place, Pushes, Subscribed
from tests.chaos.lives import Lives
from tests.chaos.watchers import Form
from tests.e2e.daemon import HANG_S, UNANSWERED, Daemon, wait_until

# Twice what a machine that stands still may take off it (subscribed.py).
ACK_TIMEOUT_MS = 20_000
FAILURES_MAX = 3
STALL_S = 2 * HANG_S
DEAD_LETTERS = "dead-letters"
BURIED: list[Place] = [(DEAD_LETTERS, 0)]

# One of each mode and policy; the one of the capped topic meets evictions.
SUBSCRIPTIONS = [
    Subscribed("by-key", "clicks", "key_shared", "dead_letter", FAILURES_MAX, ACK_TIMEOUT_MS,
               dead_letters=DEAD_LETTERS),
    Subscribed("spread", "clicks", "shared", "drop", FAILURES_MAX, ACK_TIMEOUT_MS),
    Subscribed("one", "orders", "exclusive", "drop", FAILURES_MAX, ACK_TIMEOUT_MS),
    Subscribed("blocking", "orders", "key_shared", "block", FAILURES_MAX, ACK_TIMEOUT_MS),
    Subscribed("by-node", "clicks", "key_shared", "drop", FAILURES_MAX, ACK_TIMEOUT_MS,
               key_fallback="node"),
    Subscribed("some", "clicks", "key_shared", "drop", FAILURES_MAX, ACK_TIMEOUT_MS,
               only={"tag": "tag-1*"}),
    Subscribed("capped", "short", "key_shared", "drop", FAILURES_MAX, ACK_TIMEOUT_MS),
    Subscribed("loose", "clicks", "key_shared", "drop", FAILURES_MAX, ACK_TIMEOUT_MS,
               reliable=False),
]  # fmt: skip
CONSUMES = [
    Consumes("clicks", "by-key", "anna", Form.NDJSON),
    Consumes("clicks", "by-key", "bert", Form.SSE, wanders=True),
    Consumes("clicks", "by-key", "carl", wanders=True),
    Consumes("clicks", "by-key", "dora", Form.NDJSON, filters=("key-1*", "key-?"), wanders=True),
    Consumes("clicks", "by-key", "emil", Form.MSGPACK, slow=True),
    Consumes("clicks", "by-key", "twin", Form.NDJSON, wanders=True),
    Consumes("clicks", "by-key", "twin", Form.SSE, wanders=True),
    Consumes("clicks", "spread", "anna", Form.NDJSON),
    Consumes("clicks", "spread", "bert", Form.NDJSON, wanders=True),
    Consumes("clicks", "spread", "carl", wanders=True),
    Consumes("orders", "one", "anna", Form.NDJSON, wanders=True),
    Consumes("orders", "one", "bert", Form.SSE, wanders=True),
    Consumes("orders", "one", "carl"),
    Consumes("orders", "blocking", "anna", Form.NDJSON),
    Consumes("orders", "blocking", "bert", Form.MSGPACK, wanders=True),
    Consumes("clicks", "by-node", "anna", Form.NDJSON),
    Consumes("clicks", "by-node", "bert", filters=("producer-*", "key-1*"), wanders=True),
    Consumes("clicks", "by-node", "carl", Form.MSGPACK, wanders=True),
    Consumes("clicks", "some", "anna", Form.NDJSON),
    Consumes("clicks", "some", "bert", wanders=True),
    Consumes("short", "capped", "anna", Form.NDJSON, wanders=True),
    Consumes("short", "capped", "bert"),
    Consumes("clicks", "loose", "anna", Form.NDJSON, mute=True),
    Consumes("clicks", "loose", "bert", Form.SSE, slow=True, mute=True),
]


def settings_of(each: Subscribed) -> dict[str, object]:
    """What a subscription is created with."""
    settings: dict[str, object] = {
        "mode": each.mode, "reliable": each.reliable, "start": "earliest",
        "ack_timeout_ms": each.ack_timeout_ms, "redeliveries_max": each.failures_max - 1,
        "backoff_ms": [20, 200], "poison": each.poison, "key_fallback": each.key_fallback,
    }  # fmt: skip
    if each.only:
        settings["filter"] = each.only
    if each.dead_letters:
        settings["dead_letter_topic"] = each.dead_letters
    return settings


def create(daemon: Daemon, written: History, wanted: Sequence[Subscribed]) -> None:
    """Creates subscriptions; their topics are there."""
    for each in wanted:
        answer = daemon.json("PUT", path_of(each), settings_of(each))
        assert answer.status == 201, answer.body
        written.add(each)


def consumers(
    wanted: Sequence[Subscribed], consumes: Sequence[Consumes], port: Port, era: Era,
    written: History, seed: int, lives: Lives,
) -> list[Consumer | Operator]:  # fmt: skip
    """All consumers, and who looks after blocked keys."""
    made: list[Consumer | Operator] = [
        (StreamConsumer if each.form else Poller)(each, place, port, era, written, seed, lives)
        for place, each in enumerate(consumes, 1)
    ]
    made += [
        Operator(each.topic, each.subscription, port, era, written, lives)
        for each in wanted
        if each.poison == "block"
    ]
    return made


def wait_until_drained(
    port: Port, written: History, wanted: Sequence[Subscribed], lives: Lives
) -> None:
    """Waits until nothing is left for consumers, or no less than before for a long while. Nobody
    produces any more. The judge names what is left."""
    reliable = [each for each in wanted if each.reliable]
    lags: dict[str, int] = {}

    def moved() -> bool:
        before = dict(lags)
        lags.update({each.subscription: lag_of(port, each) for each in reliable})
        return lags != before or not any(lags.values())

    with contextlib.suppress(AssertionError):
        wait_until(moved, "subscriptions to be asked")
        while any(lags.values()):
            wait_until(moved, "subscriptions to have less lag", STALL_S)
    for each in reliable:
        written.add(Drained(lives.judged(each.subscription), lags[each.subscription]))


def undone(port: Port, wanted: Sequence[Subscribed]) -> list[str]:
    """What is to be sent again after the daemon stopped in good order, though all was done."""
    lags = {each.subscription: told_lag(port, each) for each in wanted if each.reliable}
    return [
        f"undone: after a restart {name} has a lag of {lag}" for name, lag in lags.items() if lag
    ]


def told(made: Sequence[Consumer | Operator]) -> Counter[str]:
    """What consumers did, in all."""
    found: Counter[str] = Counter()
    for each in made:
        if isinstance(each, Consumer):
            counts = each.counts
            found["messages"] += counts.messages
            found["again"] += counts.again
            found["acknowledged"] += counts.acknowledged
            found["stale"] += counts.stale
            found["connections"] += counts.connections
        else:
            found["skipped"] += each.skipped
    return found


def path_of(each: Subscribed | Pushes) -> str:
    return f"/v0/topics/{each.topic}/subscriptions/{each.subscription}"


def lag_of(port: Port, each: Subscribed | Pushes) -> int:
    """Its lag; 1 if it cannot be asked now."""
    lag = _asked_lag(port, each)
    return 1 if lag is None else lag


def told_lag(port: Port, each: Subscribed | Pushes) -> int:
    """Its lag, once it can be asked: a shard that has just begun may answer 503."""
    lags: list[int] = []

    def told() -> bool:
        lag = _asked_lag(port, each)
        if lag is not None:
            lags.append(lag)
        return bool(lags)

    wait_until(told, f"the lag of {each.subscription}", SERVED_S)
    return lags[0]


def _asked_lag(port: Port, each: Subscribed | Pushes) -> int | None:
    with contextlib.suppress(*UNANSWERED):
        answer = ask_consumer(port(), "GET", path_of(each))
        if answer is not None:
            return int(answer["lag"])
    return None
