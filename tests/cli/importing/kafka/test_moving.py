"""Moving a topic in: the cluster is played by the test, the daemon by a script of answers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

import pytest

from commands.client.http import Client
from commands.importing.chain_sender import ImportDaemon
from commands.importing.flow import Limits
from commands.importing.governed import ImportPlan, TopicTarget
from commands.importing.importer import Importer
from commands.importing.kafka import moving
from commands.importing.kafka.cluster import Ends, FetchedRecord, KafkaAway, SeenTopic
from commands.importing.kafka.moving import Moving
from commands.importing.names import SourceCursors
from commands.importing.reading.problems import SourceChanged, SourceProblem
from commands.importing.reading.rules import Rules
from compaction.access.connection import DaemonAddress
from shards.clock import monotonic_ns
from tests.cli.importing.fixed_budget import FixedBudget
from tests.cli.importing.test_following import Clock, until
from tests.cli.importing.test_import import Cursors
from tests.scripted import Answer, refusal, scripted
from uploader.l0.kafka import KafkaRecord

RECORD = b"x" * 1_000
HIGH = 10_000


@pytest.fixture(autouse=True)
def small_times_and_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LOOK_S", 0.02)
    monkeypatch.setattr(moving, "BUFFER_BYTES", 20_000)


class Cluster:
    """A topic with records of 1 kB, of which each poll brings one of each partition."""

    def __init__(self, partitions: int = 3) -> None:
        self.partitions = partitions
        self.identity = "one"
        self.away = False
        self.polls = 0
        self._at: dict[int, int] = {}

    def look(self) -> SeenTopic:
        if self.away:
            raise KafkaAway("the cluster does not answer")
        return SeenTopic(self.identity, {n: Ends(0, HIGH) for n in range(self.partitions)})

    def begin(self, partition: int, offset: int) -> None:
        self._at[partition] = offset

    def end(self, partition: int) -> None:
        self._at.pop(partition, None)

    def poll(self) -> list[FetchedRecord]:
        self.polls += 1
        found = []
        for partition, offset in list(self._at.items()):
            self._at[partition] = offset + 1
            record = KafkaRecord(1, None, b"%d/%d " % (partition, offset) + RECORD)
            found.append(FetchedRecord(partition, offset, record, size=len(RECORD)))
        return found


def moved(
    script: Cursors,
    cluster: Cluster,
    act: Callable[[Moving, Importer, Clock], Awaitable[None]],
    partitions: int = 3,
) -> Importer:
    """Follows the cluster's topic while ``act`` runs, then stops. The clock is for what is waited
    for of the cluster."""
    clock = Clock()

    async def work(url: str) -> Importer:
        with Client(url) as client:
            address, budget = DaemonAddress.of(url), FixedBudget(4_000)
            daemon = ImportDaemon(url, address, budget, 60, lambda: monotonic_ns() / 1e9, print)
            plan = ImportPlan(
                TopicTarget("t", 7), None, None, "auto", Limits(2_000, 10), False, True, Rules
            )
            importer = Importer(plan, daemon, SourceCursors(client, 0), 1, lambda count: None)
            topic = Moving(
                importer, cluster, "kafka://b/t", cluster.look(), partitions, 60, clock, print,  # type: ignore[arg-type]
            )  # fmt: skip
            running = asyncio.create_task(topic.run(2))
            await act(topic, importer, clock)
            importer.stop()
            await running
            return importer

    with scripted(script) as server:
        return asyncio.run(work(server.url))


def stored(script: Cursors) -> dict[int, list[int]]:
    """The offsets that were stored, by partition, in their order."""
    found: dict[int, list[int]] = {}
    for data in script.stored:
        partition, offset = base64.b64decode(data).split()[0].split(b"/")
        found.setdefault(int(partition), []).append(int(offset))
    return found


def test_while_the_daemon_refuses_nothing_more_is_fetched_and_then_it_goes_on_where_it_was() -> (
    None
):
    refuses = True

    def fault(n: int, call: object) -> Answer | None:
        return refusal(503, "paused") if refuses else None

    script, cluster = Cursors(fault), Cluster()

    async def act(topic: Moving, importer: Importer, clock: Clock) -> None:
        nonlocal refuses

        def waiting() -> int:
            return sum(each.raw.waiting_bytes for each in topic._imports.values())

        await until(lambda: waiting() >= 20_000)
        polls, asked = cluster.polls, len(script.produced)
        await until(lambda: waiting() >= 20_000 and len(script.produced) >= asked + 5)
        assert cluster.polls <= polls + 1 and waiting() <= 23_000
        assert {at for each in script.positions.values() for at in each.values()} <= {0}
        refuses = False
        await until(lambda: len(script.stored) > 100)

    importer = moved(script, cluster, act)
    assert importer.totals.failed == 0
    assert {body["partition"] for body in script.produced} == {0, 1, 2}
    for partition, offsets in stored(script).items():
        assert offsets == list(range(len(offsets))), partition


def test_partitions_that_appear_are_imported_and_one_without_a_place_ends_the_import() -> None:
    script, cluster = Cursors(), Cluster(1)

    async def act(topic: Moving, importer: Importer, clock: Clock) -> None:
        await until(lambda: 0 in stored(script))
        cluster.partitions = 2
        await until(lambda: 1 in stored(script))
        cluster.partitions = 3
        await until(lambda: importer.stops)

    importer = moved(script, cluster, act, partitions=2)
    (failed,) = (each.error for each in importer.reports if each.error is not None)
    assert "has no place: partitions keep their numbers, and topic 't' has 2" in failed.message


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"identity": "another"}, "was deleted and created anew"),
        ({"away": True}, "the cluster does not answer"),
    ],
)
def test_a_topic_that_is_another_one_or_away_for_too_long_ends_the_import(
    change: dict[str, object], why: str
) -> None:
    script, cluster = Cursors(), Cluster(1)

    async def act(topic: Moving, importer: Importer, clock: Clock) -> None:
        await until(lambda: len(script.stored) > 0)
        for name, value in change.items():
            setattr(cluster, name, value)
        await until(lambda: clock.pass_s(61) and importer.stops)

    importer = moved(script, cluster, act)
    (failed,) = (each.error for each in importer.reports if each.error is not None)
    assert why in failed.message


def test_what_nobody_has_foreseen_ends_the_import() -> None:
    class Broken(Cluster):
        def poll(self) -> list[FetchedRecord]:
            raise RuntimeError("a bug")

    async def act(topic: Moving, importer: Importer, clock: Clock) -> None:
        await until(lambda: importer.stops)

    with pytest.raises(RuntimeError, match="a bug"):
        moved(Cursors(), Broken(), act)


def test_a_poll_that_fails_ends_each_partition() -> None:
    class Failing(Cluster):
        def poll(self) -> list[FetchedRecord]:
            raise SourceProblem("cannot be read")

    async def act(topic: Moving, importer: Importer, clock: Clock) -> None:
        await until(lambda: importer.stops)

    importer = moved(Cursors(), Failing(2), act)
    assert importer.totals.failed >= 1 and importer.totals.sources == 2


def test_an_error_after_fetched_records_ends_the_import_of_its_partition() -> None:
    class Losing(Cluster):
        def poll(self) -> list[FetchedRecord]:
            found = [each for each in super().poll() if each.offset < 1]
            lost = SourceChanged("Kafka has deleted records before they were imported")
            ends = [each.partition for each in found if each.partition == 1]
            return found + [FetchedRecord(partition, 1, problem=lost) for partition in ends]

    async def act(topic: Moving, importer: Importer, clock: Clock) -> None:
        await until(lambda: importer.totals.failed > 0)

    script = Cursors()
    importer = moved(script, Losing(), act)
    assert importer.totals.failed == 1 and len(script.stored) >= 1
