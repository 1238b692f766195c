"""Subscriptions whose dead letters meet trouble, and what operators do, for ``--recreate``.

One topic of dead letters is full most of the time: letters wait until an operator has read and
trimmed it. Another one is deleted and created again. Meanwhile blocked messages are retried, and
then acknowledged, and subscriptions are sought to their beginning. A seek begins another life
(``lives.py``); consumers poll, so the life of each batch is known.
"""

from __future__ import annotations

import random
import threading
from collections import Counter

import msgspec

from tests.chaos import subscriptions
from tests.chaos.clients import Client, Port, answer_of, ask_page, until_answered
from tests.chaos.consumers import Consumes, now_ms
from tests.chaos.history import Ended, History, Place, Renewed, Subscribed, Trimmed
from tests.chaos.lives import Lives

FULL: Place = ("full-letters", 0)
LOST: Place = ("lost-letters", 0)
FULL_TOPIC: dict[str, object] = {"cap_records": 5, "discard": "reject"}
POISON_EVERY = 12
PAUSE_S = (0.05, 0.6)
LAST_AWAY_S = 3.0
SHARES = {"trimmed": 40, "retried": 40, "sought": 6, "letters renewed": 10}

SUBSCRIPTIONS = [
    Subscribed("filling", "orders", "key_shared", "dead_letter", subscriptions.FAILURES_MAX,
               subscriptions.ACK_TIMEOUT_MS, dead_letters=FULL[0]),
    Subscribed("losing", "orders", "shared", "dead_letter", subscriptions.FAILURES_MAX,
               subscriptions.ACK_TIMEOUT_MS, dead_letters=LOST[0]),
]  # fmt: skip
CONSUMES = [
    Consumes(each.topic, each.subscription, consumer, poison_every=POISON_EVERY)
    for each in SUBSCRIPTIONS
    for consumer in ("anna", "bert")
]


class LettersOperator(Client):
    """Does all that, at random, until it is told to stop. Once ``calm`` is set, the topic of lost
    letters goes for the last time, for so long that letters wait for the next; then it trims."""

    def __init__(self, port: Port, written: History, lives: Lives, seed: int) -> None:
        super().__init__("operator of letters")
        self.acts: Counter[str] = Counter()
        self.calm = threading.Event()
        self.is_calm = threading.Event()
        self._port = port
        self._written = written
        self._lives = lives
        self._rng = random.Random(f"{seed} letters")
        self._read = 0  # of the full topic

    def work(self) -> None:
        """Until it is told to stop."""
        while not self.stopping.wait(self._rng.uniform(*PAUSE_S)):
            if self.calm.is_set() and not self.is_calm.is_set():
                self._renew(LAST_AWAY_S)
                self.is_calm.set()
            (act,) = self._rng.choices(list(SHARES), list(SHARES.values()))
            if act == "trimmed" or self.calm.is_set():
                self._trim()
                continue
            self.acts[act] += 1
            each = self._rng.choice(SUBSCRIPTIONS)
            if act == "retried":
                self._retry(each)
            elif act == "sought":
                self._seek(each)
            else:
                self._renew(self._rng.uniform(*PAUSE_S))

    def _trim(self) -> None:
        """Reads what has come, and makes room."""
        try:
            page = ask_page(self._port(), FULL, self.name, self._read)
        except OSError:
            return
        if page is None or not page.records:
            return
        self._written.add(page)
        self._written.add(Trimmed(FULL, page.next_from_seq))
        trim = {"before_seq": page.next_from_seq + 1}
        status, _ = answer_of(self._port(), "POST", f"/v0/topics/{FULL[0]}/trim", trim)
        if status == 200:
            self.acts["trimmed"] += 1
            self._read = page.next_from_seq

    def _retry(self, each: Subscribed) -> None:
        """A blocked message is sent again, and acknowledged then."""
        path = subscriptions.path_of(each)
        status, answer = answer_of(self._port(), "GET", f"{path}/keys?limit=20", None)
        if status == 200 and answer["keys"]:
            found = self._rng.choice(answer["keys"])
            spot = (found["partition"], found["seq"])
            self._lives.pardoned.add((each.subscription, spot))
            what = {"partition": spot[0], "seq": spot[1]}
            answer_of(self._port(), "POST", f"{path}/retry", what)

    def _seek(self, each: Subscribed) -> None:
        with self._lives.renewed(each.subscription) as former:
            self._written.add(Ended(former, now_ms()))
            path = f"{subscriptions.path_of(each)}/seek"
            until_answered(self._port, "POST", path, {"to": "earliest"}, (200,))
            following = self._lives.following(each.subscription)
            self._written.add(msgspec.structs.replace(each, subscription=following))

    def _renew(self, away_s: float) -> None:
        path = f"/v0/topics/{LOST[0]}"
        self._written.add(Renewed(LOST[0]))
        until_answered(self._port, "DELETE", f"{path}?force=true", None, (200, 404))
        self._written.add(Renewed(LOST[0], gone=True))
        self.stopping.wait(away_s)
        until_answered(self._port, "PUT", path, {"partitions": 1}, (200, 201))
        self._written.add(Renewed(LOST[0], done=True))
