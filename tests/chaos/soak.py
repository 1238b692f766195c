"""A soak: fifty subscriptions of all modes with random policies, and everything that may happen to
their topics in good order.

Topics get gaps, are trimmed, capped and aging. Topics of dead letters are roomy, full until an
operator has read and trimmed them, or deleted and created again. Operators seek, retry and skip.
Nothing is killed, but the daemon is restarted for each gap.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import psutil

from ledger.ledger import Ledger
from ledger.log import recovery
from ledger.tx import WriteTx
from shards.clock import monotonic_ns
from tests.chaos import pushes, subscriptions
from tests.chaos.clients import Client, Port, answer_of, ask_page, until_answered
from tests.chaos.consumers import Consumes, now_ms
from tests.chaos.history import Ended, History, Place, Pushes, Renewed, Subscribed, Trimmed
from tests.chaos.letters import FULL_TOPIC, LAST_AWAY_S
from tests.chaos.lives import Lives
from tests.chaos.watchers import Form
from tests.chaos.world import World

COUNT = 50
PUSHED_EVERY = 6
TTL_MS = 15_000
AGING: list[Place] = [("aging", 0)]
TRIMMED: Place = ("trimmed", 0)
PLACES: list[Place] = [*AGING, TRIMMED]
TOPICS: dict[str, dict[str, object]] = {"aging": {"ttl_ms": TTL_MS}}
SOURCES = ["orders", "clicks", "short", "aging", "trimmed"]
LETTERS = ["roomy", "full", "lost"]
PAUSE_S = (0.02, 0.4)
SOUGHT_BACK_MAX = 200  # records
GAPPED = ["orders", "clicks"]
GAP_OFFSETS = 30_000
GAPS = 3
SAMPLE_S = 1.0
PRODUCERS = 4
PRODUCE_PAUSE_S = 0.4


def letters_topic(topic: str) -> dict[str, object]:
    """The settings of a topic of dead letters, by its name."""
    return FULL_TOPIC if topic.startswith("full-letters-") else {}


class Soaked:
    """The subscriptions of a seed, and their consumers."""

    def __init__(self, seed: int) -> None:
        self.subscribed: list[Subscribed] = []
        self.pushed: list[pushes.Wanted] = []
        self.consumes: list[Consumes] = []
        self.letters: list[Place] = []
        rng = random.Random(f"{seed} soak")
        for number in range(COUNT):
            if number % PUSHED_EVERY == 0:
                self._push(number, rng)
            else:
                self._subscribe(number, rng)

    def _letters(self, number: int, kinds: list[str], rng: random.Random) -> str:
        topic = f"{rng.choice(kinds)}-letters-{number}"
        self.letters.append((topic, 0))
        return topic

    def _subscribe(self, number: int, rng: random.Random) -> None:
        name, topic = f"s{number}", rng.choice(SOURCES)
        mode = rng.choice(["key_shared", "shared", "exclusive"])
        poison = rng.choice(["drop", "block", "dead_letter"])
        found = Subscribed(
            name, topic, mode, poison, rng.randint(1, 3), subscriptions.ACK_TIMEOUT_MS,
            reliable=rng.random() < 0.9,
            dead_letters=self._letters(number, LETTERS, rng) if poison == "dead_letter" else "",
            key_fallback=rng.choice(["none", "node"]),
        )  # fmt: skip
        self.subscribed.append(found)
        is_sought = found.reliable and rng.random() < 0.7
        every = rng.choice([12, 400])
        for consumer in ("anna", "bert")[: rng.randint(1, 2)]:
            # Of what is sought the life of a batch is known by polls.
            form = None if is_sought else rng.choice([*Form, None])
            self.consumes.append(
                Consumes(topic, name, consumer, form, slow=form is not None and rng.random() < 0.2,
                         wanders=rng.random() < 0.5, mute=not found.reliable, poison_every=every)
            )  # fmt: skip

    def _push(self, number: int, rng: random.Random) -> None:
        mode, form = rng.choice(["key_shared", "shared", "exclusive"]), rng.choice(_FORMS)
        poison = rng.choice(["drop", "dead_letter"])
        rules = Pushes(
            f"p{number}", rng.choice(GAPPED), mode, poison, pushes.FAILURES_MAX,
            rng.choice([30, 100, 300]), 1 if mode == "exclusive" else rng.randint(1, 3), 8,
            pushes.TIMEOUT_MS,
            self._letters(number, LETTERS[:2], rng) if poison == "dead_letter" else "",
        )  # fmt: skip
        more: dict[str, object] = {"batch_max": 20, "batch_wait_ms": 50} if form == "batch" else {}
        self.pushed.append(pushes.Wanted(rules, form, more))

    @property
    def sought(self) -> list[Subscribed]:
        """Those whose consumers all poll."""
        streamed = {each.subscription for each in self.consumes if each.form is not None}
        return [each for each in self.subscribed if each.reliable
                and each.subscription not in streamed]  # fmt: skip


class SoakOperator(Client):
    """Does everything at random until it is told to stop. Once ``calm`` is set, topics of lost
    letters go for the last time, for so long that letters wait for the next; then it makes room."""

    def __init__(self, made: Soaked, port: Port, written: History, lives: Lives, seed: int) -> None:
        super().__init__("operator of the soak")
        self.acts: Counter[str] = Counter()
        self.calm = threading.Event()
        self.is_calm = threading.Event()
        self._made = made
        self._port = port
        self._written = written
        self._lives = lives
        self._rng = random.Random(f"{seed} operator")
        self._read: Counter[Place] = Counter()
        self._full = [place for place in made.letters if place[0].startswith("full")]
        self._lost = [place for place in made.letters if place[0].startswith("lost")]

    def work(self) -> None:
        """Until it is told to stop."""
        blocking = [
            each
            for each in self._made.subscribed
            if each.poison == "block" or each.dead_letters.startswith("full")
        ]
        while not self.stopping.wait(self._rng.uniform(*PAUSE_S)):
            if self.calm.is_set() and not self.is_calm.is_set():
                for place in self._lost:
                    self._renew(place[0], LAST_AWAY_S)
                self.is_calm.set()
            act = self._rng.choice(["emptied", "trimmed", "sought", "retried", "letters renewed"])
            if act == "emptied" or self.calm.is_set():
                for place in self._full:
                    self._trim(place)
            elif act == "trimmed":
                self._trim(TRIMMED)
            elif act == "retried":
                any(self._unblock(each) for each in self._rng.sample(blocking, len(blocking)))
            elif self._rng.random() < 0.2:  # both cost the daemon more
                if act == "sought":
                    self._seek(self._rng.choice(self._made.sought))
                else:
                    self._renew(self._rng.choice(self._lost)[0], self._rng.uniform(*PAUSE_S))

    def _trim(self, place: Place) -> None:
        """Reads what has come, and trims it."""
        page = None
        try:
            page = ask_page(self._port(), place, self.name, self._read[place])
        except OSError:
            pass
        if page is None or not page.records:
            return
        self._written.add(page)
        self._written.add(Trimmed(place, page.next_from_seq))
        trim = {"before_seq": page.next_from_seq + 1}
        if answer_of(self._port(), "POST", f"/v0/topics/{place[0]}/trim", trim)[0] == 200:
            self.acts["trimmed"] += 1
            self._read[place] = page.next_from_seq

    def _unblock(self, each: Subscribed) -> bool:
        """A blocked message is sent again, and acknowledged then; False if there was none."""
        path = subscriptions.path_of(each)
        status, answer = answer_of(self._port(), "GET", f"{path}/keys?limit=20", None)
        if status != 200 or not answer["keys"]:
            return False
        found = self._rng.choice(answer["keys"])
        spot = (found["partition"], found["seq"])
        self._lives.pardoned.add((each.subscription, spot))
        what = {"partition": spot[0], "seq": spot[1]}
        done = answer_of(self._port(), "POST", f"{path}/retry", what)[0] == 200
        self.acts["retried"] += done
        return done

    def _seek(self, each: Subscribed) -> None:
        with self._lives.renewed(each.subscription) as former:
            self._written.add(Ended(former, now_ms()))
            status = 0
            while status != 200:
                status, topic = answer_of(self._port(), "GET", f"/v0/topics/{each.topic}", None)
            starts = tuple(
                max(0, state["head_seq"] - self._rng.randint(0, SOUGHT_BACK_MAX))
                for state in topic["partitions"]
            )
            to = {"to": list(starts)}
            until_answered(self._port, "POST", f"{subscriptions.path_of(each)}/seek", to, (200,))
            self._written.add(
                msgspec.structs.replace(
                    each, subscription=self._lives.following(each.subscription), starts=starts
                )
            )
        self.acts["sought"] += 1

    def _renew(self, topic: str, away_s: float) -> None:
        path = f"/v0/topics/{topic}"
        self._written.add(Renewed(topic))
        until_answered(self._port, "DELETE", f"{path}?force=true", None, (200, 404))
        self._written.add(Renewed(topic, gone=True))
        self.stopping.wait(away_s)
        until_answered(self._port, "PUT", path, {"partitions": 1}, (200, 201))
        self._written.add(Renewed(topic, done=True))
        self.acts["letters renewed"] += 1


class MemoryWatch(Client):
    """Notes how much memory the daemon's processes take, and the segment that they share."""

    def __init__(self, world: World) -> None:
        super().__init__("memory")
        self.peak_bytes = 0
        self.bound_bytes = 0
        self._world = world

    def work(self) -> None:
        """Until it is told to stop."""
        while not self.stopping.wait(SAMPLE_S):
            status, answer = answer_of(self._world.port(), "GET", "/v0/status", None)
            daemon = self._world.daemon
            if status != 200 or daemon is None:
                continue
            self.bound_bytes = answer["memory_bound_bytes"]
            try:
                parent = psutil.Process(daemon.process.pid)
                found = [each.memory_info() for each in (parent, *parent.children())]
            except psutil.NoSuchProcess:
                continue
            shared = max(each.shared for each in found)
            now_bytes = shared + sum(each.rss - each.shared for each in found)
            self.peak_bytes = max(self.peak_bytes, now_bytes)

    @property
    def contradictions(self) -> list[str]:
        """The bound, if it did not hold."""
        if 0 < self.peak_bytes <= self.bound_bytes:
            return []
        return [f"memory: {self.peak_bytes} bytes were taken, the bound is {self.bound_bytes}"]


def pass_time(world: World, folder: Path, seconds: float, is_done: Callable[[], bool]) -> None:
    """The run, with a gap at the ends of some topics now and then; until it has done enough."""
    ended = threading.Event()  # only its timeouts are used
    end_ns = monotonic_ns() + int(seconds * 1e9)
    for _ in range(GAPS):
        ended.wait(seconds / (GAPS + 1))
        world.restart(between=lambda: _declare_gaps(folder / "data" / "ledger" / "ledger.db"))
        world.acts["gap"] += 1
    ended.wait(max(0.0, (end_ns - monotonic_ns()) / 1e9))
    while not is_done():
        ended.wait(SAMPLE_S)


def _declare_gaps(path: Path) -> None:
    """What a recovery does for objects that it cannot read."""
    ledger = Ledger(path, nullcontext(), must_exist=True)
    try:
        ledger.write(_gaps)
    finally:
        ledger.close()


def _gaps(tx: WriteTx) -> None:
    found = tx.execute(
        "SELECT topic_id, partition FROM partitions JOIN topics USING (topic_id)"
        " WHERE name IN (?, ?) AND deleted_ms IS NULL", GAPPED,
    ).fetchall()  # fmt: skip
    recovery.declare_gaps(tx, dict.fromkeys(found, GAP_OFFSETS), 0)


_FORMS = ["binary", "structured", "batch"]
