"""The usual request, taken in one step, is answered and stored as any request is.

The same requests go to two intakes: in one of them the step is not taken. What differs in between
is told by the bytes of the answers, of the ring and of all shared words. Clocks move with the
steps of a test, so that a time in a frame is the same in both.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.access import access as accesses
from daemon.access.access import Access
from daemon.access.allowance import Allowances
from daemon.access.token_file import Scope, TokenFile
from daemon.api.application import Api
from daemon.api.route import Handlers
from daemon.governor.producers_gate import ClosedBy
from daemon.http.limits import HttpLimits
from daemon.intake.topic_cache import TopicCache
from daemon.schemas.errors import ApiError
from delivery.reading.waiters import Waiters
from ledger.types import TopicConfig
from shards import clock
from shards import layout as at
from shards.boards.namecounts import TokenTally
from tests.daemon.intake.serving import PRODUCE, Intake, topics_in
from tests.long import examples

RING_BYTES = 48 << 10
BODY_BYTES_MAX = RING_BYTES // 4
OUTSTANDING_MAX = 4
CLIENTS = 3
S = 1_000_000_000
TOPICS = {
    "t": TopicConfig(),
    "wide": TopicConfig(partitions=3),
    "once": TopicConfig(dedupe="body"),
    "capped": TopicConfig(cap_records=3, discard="reject"),
}


class Clock:
    """Moves by itself only as far as it takes to tell two requests apart."""

    def __init__(self) -> None:
        self.ns = 1_000 * S

    def monotonic_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 1_790_000_000_000 + self.ns // 1_000_000


class Side:
    """An intake with topics, tokens and clients; what a step changed in it can be seen."""

    def __init__(
        self, topics: TopicCache, folder: Path, tokens: dict[str, str], now: Clock, *,
        in_one_step: bool,
    ) -> None:  # fmt: skip
        self.topics, self.now = topics, now
        self.intake = Intake(topics, RING_BYTES, BODY_BYTES_MAX, 20 * S)
        intake = self.intake
        if not in_one_step:
            intake.producer.is_usual = lambda head: False  # type: ignore[method-assign]
        shutil.copy(folder / "all-tokens.json", folder / "tokens.json")
        self.file = TokenFile(folder / "tokens.json")
        self.tokens = tokens
        self.tallies: dict[str, TokenTally] = {}
        self.api = Api(
            PRODUCE, cast(Handlers, None), intake.producer, Waiters(),
            Access(
                self.file.path, now.wall_ms, bytes(32),
                allowances=Allowances(intake.segment, 0, {}),
                tally_of=lambda name: self.tallies.setdefault(name, TokenTally()),
            ),
        )  # fmt: skip
        intake.server.application = self.api
        intake.server.limits = HttpLimits(
            body_bytes_max=BODY_BYTES_MAX, requests_outstanding_max=OUTSTANDING_MAX
        )
        self.clients = [intake.connect() for _ in range(CLIENTS)]

    async def settled(self) -> None:
        """Returns when no request waits for its topic."""
        while self.intake.producer._tasks:
            await self.intake.producer._tasks.wait()

    def send(self, which: int, data: bytes, cuts: list[int]) -> None:
        client = self.clients[which]
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            client.send(data[start:end])

    def deadline(self, *, pulled: bool) -> None:
        """All that was published, and whatever waits, has waited for too long."""
        intake, pending = self.intake, self.intake.pending
        self.now.ns += 21 * S
        intake.later(self.now.ns)
        if pending.is_due(self.now.ns):
            expired = pending.expired(self.now.ns, intake.ring.head if pulled else 0,
                                      intake.ring.head)  # fmt: skip
            for start, end in expired.runs:
                intake.ring.make_void(start, end)
            pending.end(expired, intake.producer.overdue, intake.producer.unknown)

    def revoke(self, name: str) -> None:
        if name in [token.name for token in self.file.tokens()]:
            self.file.revoke(name)
        if self.api.follow_tokens():
            self.intake.server.end_revoked()

    async def take(self, what: str, *more: Any) -> None:
        """One step."""
        intake = self.intake
        self.now.ns += 1_000_003
        if what == "send":
            which, requests, cuts = more
            data = b"".join(request.encoded(self.tokens) for request in requests)
            self.send(which, data, [cut * len(data) // 1000 for cut in cuts])
        elif what == "commit":
            intake.commit()
        elif what == "gate":
            intake.shut(at.G_GATE, more[0])
        elif what == "pause":
            self.clients[more[0]].transport.room = 0
        elif what == "takes":
            self.clients[more[0]].transport.take(1 << 20)
            intake.flow()
        elif what == "leave":
            self.clients[more[0]].leave()
            self.clients[more[0]] = intake.connect()
        elif what == "half-close":
            self.clients[more[0]].connection.eof_received()
        elif what == "drain":
            intake.server.drain()
        elif what == "deadline":
            self.deadline(pulled=more[0])
        elif what == "revoke":
            self.revoke(more[0])
        elif what == "delete":
            try:
                await self.topics.delete(more[0])
            except ApiError:
                pass  # it was deleted before
        await self.settled()
        intake.check()

    def seen(self) -> list[object]:
        """What differs if anything does."""
        intake = self.intake
        transports = [client.transport for client in self.clients]
        return [
            *[bytes(transport.written) for transport in transports],
            *[(each.ended, each.closed, each.paused) for each in transports],
            *[len(client.connection.queue) for client in self.clients],
            [waiting.position for waiting in intake.pending._waiting],
            intake.published, intake.short, intake.admission.taken_bytes,
            {name: (each.requests, each.bytes_in, each.refused)
             for name, each in self.tallies.items()},
            bytes(intake.segment.ring(0)), bytes(intake.words),
        ]  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """A request as a client sends it."""

    name: str
    body: bytes
    kind: str = "application/x-ndjson"
    token: str = "maker"
    lines: tuple[str, ...] = ()
    version: str = "1.1"

    def encoded(self, tokens: dict[str, str]) -> bytes:
        head = [
            f"POST /v0/topics/{self.name} HTTP/{self.version}", "Host: h",
            f"Content-Type: {self.kind}",
            *self.lines,
        ]  # fmt: skip
        if self.token:
            head.append(f"Authorization: Bearer {tokens[self.token]}")
        body = self.body
        if "Content-Encoding: gzip" in head:
            body = gzip.compress(body, mtime=0)
        if "Transfer-Encoding: chunked" in head:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        else:
            head.append(f"Content-Length: {len(body)}")
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body


BODIES = [
    b'{"a":1}\n', b"1", b'{"a":1}\r\n\n {"b":"\xc3\xa9"} \n', b"[1,2]\n" * 40,
    b'"%b"' % (b"x" * 900), b"\n\n3\n", b"[" * 400 + b"]" * 400, b"{}\n" * 900,
    b'"%b"' % (b"x" * 9000),
]  # fmt: skip
REFUSED = [
    b"", b"\n", b'{"a":1', b"1 2", b'1\n"\xff"\n', b"1\nnope\n2\n", b"\xef\xbb\xbf1", b"[" * 600,
    b'"%b"' % (b"x" * BODY_BYTES_MAX),
]  # fmt: skip
NAMES = [*TOPICS, "none?create=false"]
QUERIES = [
    "partition=0", "partition=7", "ack_timeout_ms=1000", "dedupe=body", "what=1", "key=a",
    "expected_seq=0", "idempotency_key=a",
]  # fmt: skip
LINES = [
    "Connection: close", "Expect: 100-continue", "Transfer-Encoding: chunked", "Expect: what",
    "Content-Encoding: gzip", "Content-Length: 3", "Origin: http://h",
]  # fmt: skip
KINDS = ["application/json", "application/octet-stream", "application/msgpack", "application/x"]


def weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of these, each as often as its weight says."""
    return st.sampled_from([each for weight, each in choices for _ in range(weight)]).flatmap(
        lambda chosen: chosen
    )


bodies = weighted(
    (3, st.sampled_from(BODIES)),
    (1, st.sampled_from([*REFUSED, b'{"records":[{"data":1}]}', b"\x91\x01"])),
)
usual = st.sampled_from(BODIES).map(lambda body: Sent("t", body))
odd = st.one_of(
    st.tuples(st.sampled_from(NAMES), bodies).map(lambda x: Sent(*x)),
    st.tuples(st.sampled_from(QUERIES), bodies).map(lambda x: Sent(f"t?{x[0]}", x[1])),
    st.tuples(bodies, st.sampled_from(KINDS)).map(lambda x: Sent("t", *x)),
    st.tuples(st.sampled_from(NAMES), bodies, st.sampled_from(["slow", "other", "reader", ""])).map(
        lambda x: Sent(x[0], x[1], token=x[2])
    ),
    st.tuples(bodies, st.sampled_from(LINES)).map(lambda x: Sent("t", x[0], lines=(x[1],))),
    st.tuples(bodies, st.sampled_from(["1.0", "1.2"])).map(lambda x: Sent("t", x[0], version=x[1])),
)


which = st.integers(0, CLIENTS - 1)
cuts = st.lists(st.integers(0, 1000), max_size=3).map(sorted)
sends = st.tuples(
    st.just("send"), which,
    st.lists(weighted((1, usual), (1, odd)), min_size=1, max_size=6),
    weighted((2, st.just([])), (1, cuts)),
)  # fmt: skip
others = st.one_of(
    st.tuples(st.just("gate"), st.sampled_from([0, ClosedBy.MEMORY, ClosedBy.STORE_FAILING])),
    st.tuples(st.sampled_from(["pause", "takes", "leave", "half-close"]), which),
    st.tuples(st.just("deadline"), st.booleans()),
    st.tuples(st.just("revoke"), st.sampled_from(["maker", "slow"])),
    st.tuples(st.just("delete"), st.sampled_from(["t", "wide"])),
    st.just(("drain",)),
)
steps_strategy = st.lists(
    weighted((6, sends), (2, st.just(("commit",))), (1, st.just(("gate", 0))), (2, others)),
    min_size=4,
    max_size=16,
)


@contextmanager
def clock_of(now: Clock) -> Iterator[None]:
    """All modules tell this time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accesses, "LOOK_NS", 0)
        for module, name in CLOCKS:
            patch.setattr(module, name, getattr(now, name))
        yield


CLOCKS = [
    (module, name)
    for module in list(sys.modules.values())
    for name in ("monotonic_ns", "wall_ms")
    if getattr(module, name, None) is getattr(clock, name)
]


class Both:
    """The topics and the tokens of the two sides."""

    def __init__(self, sides: list[tuple[TopicCache, Path]]) -> None:
        self._sides = [(topics, folder, _issue(folder)) for topics, folder in sides]

    def play(self, steps: list[tuple[Any, ...]]) -> list[list[list[object]]]:
        """What is seen after each step, in one step and not."""
        return [
            asyncio.run(self._play(steps, *side, in_one_step=not index))
            for index, side in enumerate(self._sides)
        ]

    async def _play(
        self, steps: list[tuple[Any, ...]], topics: TopicCache, folder: Path,
        tokens: dict[str, str], *, in_one_step: bool,
    ) -> list[list[object]]:  # fmt: skip
        await topics.delete("capped")  # its tracker knows of requests of the last example
        for name, config in TOPICS.items():
            await topics.create(name, config)
        for name in TOPICS:
            topics.known(name)  # follows the changes
            (await topics.entry(name)).next_partition = 0
        now = Clock()
        with clock_of(now):
            side = Side(topics, folder, tokens, now, in_one_step=in_one_step)
            found = [side.seen()]
            for step in steps:
                await side.take(*step)
                found.append(side.seen())
            side.intake.close()
        return found


def _issue(folder: Path) -> dict[str, str]:
    """Tokens by name."""
    file = TokenFile(folder / "all-tokens.json")
    return {
        "maker": file.issue("maker", [Scope.PRODUCE])[1],
        "slow": file.issue("slow", [Scope.PRODUCE], limits={"requests": 3.0})[1],
        "other": file.issue("other", [Scope.PRODUCE], ["elsewhere"])[1],
        "reader": file.issue("reader", [Scope.READ])[1],
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Shared by the examples."""
    one, other = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    with topics_in(one) as first, topics_in(other) as second:
        for topics in first, second:
            asyncio.run(topics.create("capped", TOPICS["capped"]))
        yield Both([(first, one), (second, other)])


@given(steps=steps_strategy)
@settings(max_examples=examples(150, fast=6))
def test_a_request_that_is_taken_in_one_step_is_answered_and_stored_like_any_other(
    both: Both, steps: list[tuple[Any, ...]]
) -> None:
    in_one_step, as_any_other = both.play(steps)
    for step, seen, expected in zip([("start",), *steps], in_one_step, as_any_other, strict=True):
        assert seen == expected, step
