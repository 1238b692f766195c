"""Which cases run, in which order, and for how long. Pure.

Names: ``embedded/1/1KiB/ndjson`` is the embedded store, one shard and this body; ``ceiling/SIZE``
is the null responder, ``s2-lite/SIZE`` the peer, ``put-cost`` the PUT loops, ``scale`` what grows
with the shards, ``delivery/WHAT`` what comes after the commit, ``subscriptions/WHAT`` what
consumers share, ``push/WHAT`` what is POSTed, ``governor/WHAT`` what pressure does, ``access/SIZE``
what tokens and TLS cost, ``neighbor`` what a limit spares others, ``standby`` how long nobody
acknowledges when an owner dies or hands over, ``hot/SIZE`` a known request by step in one process,
``kafka`` what batches of Kafka's clients cost, and ``compaction/SHAPE`` the Spark job and plain
pyarrow. Cases that are compared run one after the other, because machines drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.bodies import FORMATS, NDJSON, SIZES, Size, size_named

EMBEDDED = "embedded"
MINIO = "minio"
STORES = (EMBEDDED, MINIO)
PEER_SIZES = ("1KiB", "64KiB")
TAIL_SIZE = "1KiB"
PUT_COST_BEFORE = "minio/1/1KiB/ndjson"  # its latency is compared with that of a bare PUT

COMPACTIONS = (
    "compaction/few-topics",
    "compaction/thousand-topics",
    "compaction/thousand-topics-shuffled",
)
# What comes after the commit, and about how many seconds it takes.
DELIVERIES = {
    "delivery/floor": 12,
    "delivery/idle": 16,
    "delivery/saturated": 50,
    "delivery/flood": 32,
    "delivery/fairness": 22,
    "delivery/memory": 20,
    "delivery/routed": 40,
    "delivery/wakeups": 30,
}
# Subscriptions, push and the governor, in the same way.
SUBSCRIBED = {
    "subscriptions/drain": 100,
    "subscriptions/waiting": 25,
    "subscriptions/arrival": 14,
    "subscriptions/hot-key": 45,
    "subscriptions/takeover": 50,
    "subscriptions/requests": 30,
}
PUSHED = {
    "push/posts": 75,
    "push/allowed": 115,
    "push/follow": 105,
}
GOVERNED = {
    "governor/loads": 75,
    "governor/budget": 80,
    "governor/goodput": 100,
    "governor/import": 75,
    "governor/memory": 160,
    "governor/cost": 100,
}
ACCESS = "access"
NEIGHBOR = "neighbor"
NEIGHBOR_S = 115
STANDBY = "standby"
STANDBY_S = 160
HOT = "hot"
HOT_S = 20
KAFKA = "kafka"
KAFKA_S = 25
SCALE = "scale"
SCALE_S = 25
COMPACTION_S = 75  # for 1 GiB of L0: 15 s to make it, a session, three turns of three

START_STOP_S = 4  # start and end of a daemon, and its share of the start of MinIO
LIMIT_S = 2700
QUICK_LIMIT_S = 90


class Times(NamedTuple):
    """Seconds of each load.

    ``compared_s`` is saturation if a peer is measured too: long enough to include the peer's
    background work, which begins after about 5 s.
    """

    ceiling_s: int
    light_s: int
    half_s: int
    saturated_s: int
    compared_s: int
    tail_s: int
    puts: int


FULL = Times(ceiling_s=3, light_s=5, half_s=5, saturated_s=6, compared_s=20, tail_s=4, puts=40)
QUICK = Times(ceiling_s=2, light_s=3, half_s=2, saturated_s=4, compared_s=4, tail_s=2, puts=20)


class Case(NamedTuple):
    """One case; ``kind`` is embedded, minio, ceiling, s2-lite, put-cost, scale, a delivery,
    subscriptions, push, the governor or a compaction."""

    kind: str
    size: Size | None = None
    body_format: str = ""
    shards: int = 0

    @property
    def name(self) -> str:
        parts = [self.kind]
        if self.shards:
            parts.append(str(self.shards))
        if self.size is not None:
            parts.append(self.size.name)
        if self.body_format:
            parts.append(self.body_format)
        return "/".join(parts)

    @property
    def has_light_loads(self) -> bool:
        """Two shards share their cores with the generator, so only their throughput is
        meaningful."""
        return self.kind in STORES and self.shards == 1

    @property
    def has_tail(self) -> bool:
        return (
            self.has_light_loads
            and self.body_format == NDJSON
            and self.size is not None
            and self.size.name == TAIL_SIZE
        )

    @property
    def is_compared(self) -> bool:
        """The peer, or the case of ours that it is compared with."""
        if self.size is None or self.size.name not in PEER_SIZES:
            return False
        ours = self.kind == EMBEDDED and self.shards == 1 and self.body_format == NDJSON
        return ours or self.kind == "s2-lite"

    def saturated_s(self, times: Times) -> int:
        """Seconds of saturation."""
        return times.compared_s if self.is_compared else times.saturated_s

    def seconds(self, times: Times) -> float:
        """About how long it takes."""
        if self.kind in COMPACTIONS:
            return COMPACTION_S
        if self.kind in DELIVERIES:
            return DELIVERIES[self.kind]
        if self.kind in SUBSCRIBED:
            return SUBSCRIBED[self.kind]
        if self.kind in PUSHED:
            return PUSHED[self.kind]
        if self.kind in GOVERNED:
            return GOVERNED[self.kind]
        if self.kind == SCALE:
            return SCALE_S
        if self.kind == HOT:
            return HOT_S
        if self.kind == KAFKA:
            return KAFKA_S
        if self.kind == NEIGHBOR:
            return NEIGHBOR_S
        if self.kind == STANDBY:
            return STANDBY_S
        if self.kind == "put-cost":
            return 3 + times.puts * 0.15
        if self.kind == "ceiling":
            return 1 + times.ceiling_s
        if self.kind == ACCESS:
            return 3 * START_STOP_S + 3 * 6 * times.ceiling_s
        loads_s = self.saturated_s(times)
        if self.has_light_loads:
            loads_s += times.light_s + times.half_s + 1
        if self.has_tail:
            loads_s += times.tail_s
        return START_STOP_S + loads_s


def full() -> list[Case]:
    """Everything."""
    cases = [Case("ceiling", size) for size in SIZES]
    for store in STORES:
        for size in SIZES:
            for body_format in FORMATS:
                case = Case(store, size, body_format, 1)
                if case.name == PUT_COST_BEFORE:
                    cases.append(Case("put-cost"))
                cases.append(case)
                if case.is_compared:
                    cases.append(Case("s2-lite", size))
    cases += [
        Case(store, size, body_format, 2)
        for store in STORES
        for size in SIZES
        for body_format in FORMATS
    ]
    cases += [Case(kind, size_named(name)) for kind in (ACCESS, HOT) for name in PEER_SIZES]
    kinds = [NEIGHBOR, STANDBY, SCALE, KAFKA]
    kinds += [*DELIVERIES, *SUBSCRIBED, *PUSHED, *GOVERNED, *COMPACTIONS]
    return [*cases, *(Case(kind) for kind in kinds)]


def quick() -> list[Case]:
    """What the targets need, with short loads."""
    sizes = [size_named(name) for name in PEER_SIZES]
    cases = [Case("ceiling", size) for size in sizes]
    for size in sizes:
        cases += [Case(EMBEDDED, size, NDJSON, 1), Case("s2-lite", size)]
    return [*cases, Case("put-cost"), *(Case(MINIO, size, NDJSON, 1) for size in sizes)]


def chosen(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """The cases with any of these parts in their name; without parts, all. Raises ValueError."""
    found = [case for case in cases if not only or any(part in case.name for part in only)]
    if not found:
        names = ", ".join(case.name for case in cases)
        raise ValueError(f"no case has {' or '.join(only)} in its name; there are {names}")
    return found
