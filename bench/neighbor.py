"""What a tenant at its limit costs its neighbor: two tokens, a daemon of four shards.

The neighbor sends a little, steadily. Its *guest* has a limit of requests, and is silent, keeps
within it, or asks for more than twice of it, in turns. What counts is the 99th percentile of the
neighbor's latency as a median of the turns, and how much of what the guest asks is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from bench import bodies
from bench.bodies import NDJSON, size_named
from bench.figures import NONE, Target, number
from bench.load import Generator, Load, Pace, Request
from bench.processes import start_daemon
from compaction.access.http_calls import call, socket_address
from daemon.access.token_file import Scope, TokenFile

TURNS = 6  # the first one warms up
TURN_S = 6
SHARDS = 4
# So low that four shards, and the load, fit into two CPUs: else the commit window widens for all.
LIMIT_PER_S = 200
SILENT, WITHIN, ABOVE = "is silent", "keeps within its limit", "asks for more than twice of it"
NEIGHBOR = Pace(4, TURN_S, pause_ms=10)
# At most 200 a second, and about 500.
GUESTS = {WITHIN: Pace(2, TURN_S, pause_ms=10), ABOVE: Pace(6, TURN_S, pause_ms=10)}
P99_RATIO_MAX = 1.1
LIMIT_ERROR_MAX = 0.05


class NeighborResult(msgspec.Struct, frozen=True):
    """The neighbor's latency while the guest does something. ``accepted`` is over the limit, but
    for the second's worth that a token may be ahead; None if it did not ask for so much."""

    guest: str
    p50_ms: float
    p99_ms: float
    accepted: float | None


def measure(
    generator: Generator, work: Path, daemon_cpus: Iterable[int], cpus: Iterable[int]
) -> list[NeighborResult]:
    """All that the guest does."""
    file = TokenFile(work / "neighbor-tokens.json")
    texts = {
        "neighbor": file.issue("neighbor", [Scope.PRODUCE])[1],
        "guest": file.issue("guest", [Scope.PRODUCE], limits={"requests": LIMIT_PER_S})[1],
    }
    body = bodies.of(size_named("1KiB"), NDJSON)
    requests = {
        name: Request(
            f"/v0/topics/{name}",
            (("Content-Type", body.content_type), ("Authorization", f"Bearer {text}")),
            body.data,
        )
        for name, text in texts.items()
    }
    found: dict[str, list[tuple[Load, Load | None]]] = {SILENT: [], WITHIN: [], ABOVE: []}
    settings = {"auth_file": file.path}
    daemon = start_daemon(work / "neighbor", daemon_cpus, SHARDS, None, settings)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        stack.callback(daemon.stop)
        for name in texts:
            call(socket_address(str(daemon.folder / "data")), "PUT", f"/v0/topics/{name}")
        for turn in range(TURNS):
            for does, loads in found.items():
                pace = GUESTS.get(does)
                guest = None if pace is None else pool.submit(
                    generator.run, daemon.port, requests["guest"], pace, cpus
                )  # fmt: skip
                load = generator.run(daemon.port, requests["neighbor"], NEIGHBOR, cpus)
                its = None if guest is None else guest.result()
                if turn:
                    loads.append((load, its))
    return [
        NeighborResult(
            does, median(load.p50_ms for load, _ in loads),
            median(load.p99_ms for load, _ in loads),
            None if does != ABOVE else median(_accepted(its) for _, its in loads if its),
        )
        for does, loads in found.items()
    ]  # fmt: skip


def _accepted(its: Load) -> float:
    return (its.acked - LIMIT_PER_S) / (its.seconds * LIMIT_PER_S)


def table(results: list[NeighborResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is printed."""
    heads = ("the guest", "neighbor's p50 ms", "p99 ms", "accepted over the limit")
    return heads, [
        (each.guest, number(each.p50_ms), number(each.p99_ms),
         NONE if each.accepted is None else f"{each.accepted:.3f} x")
        for each in results
    ]  # fmt: skip


def targets(results: list[NeighborResult]) -> Iterator[Target]:
    """What a guest at its limit may cost."""
    found = {each.guest: each for each in results}
    if WITHIN in found and ABOVE in found:
        yield Target("neighbor's p99 while a guest is above its limit, over within", P99_RATIO_MAX,
                     found[ABOVE].p99_ms / found[WITHIN].p99_ms, at_least=False)  # fmt: skip
        accepted = found[ABOVE].accepted
        assert accepted is not None
        yield Target("error of a limit over four shards", LIMIT_ERROR_MAX,
                     abs(accepted - 1), at_least=False)  # fmt: skip
