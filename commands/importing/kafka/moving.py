"""Moving a topic of Kafka's in: all of its partitions, from one consumer.

``_pump`` fetches for all partitions, and each partition's import takes what it may have in flight.
While the daemon refuses, or is slower than Kafka, fetched records wait up to BUFFER_BYTES, then
librdkafka's own queues fill, and it asks Kafka for nothing more: the cursors stay where they are.

The topic is looked at again and again: where partitions end now, for the lag; partitions that were
added; and whether the cluster answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from commands.importing.importer import Importer
from commands.importing.kafka.cluster import FetchedRecord, KafkaAway, KafkaTopic, SeenTopic
from commands.importing.kafka.partition import KafkaPartition, PartitionImport
from commands.importing.reading.problems import SourceChanged, SourceProblem

BUFFER_BYTES = 16 << 20  # a block for each of eight partitions that read simultaneously
ROOM_S = 0.02  # how often it is looked at whether there is room again
LOOK_S = 10.0


class Moving:
    """Imports the partitions of a topic: to where they end now, or until the importer is stopped.

    ``seen``: the topic as it was found. ``partitions``: how many the destination has; with a
    ``partition`` in the plan, all go there. ``wait_s``: how long the cluster may be away."""

    def __init__(
        self,
        importer: Importer,
        topic: KafkaTopic,
        url: str,
        seen: SeenTopic,
        partitions: int,
        wait_s: float,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._importer = importer
        self._topic = topic
        self._url = url
        self._seen = seen
        self._partitions = partitions
        self._wait_s = wait_s
        self._now = now
        self._say = say
        self._seen_at = now()
        self._imports: dict[int, PartitionImport] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def run(self, parallel: int) -> None:
        """Imports, with up to ``parallel`` threads that read what was fetched."""
        importer = self._importer
        with importer.threads(parallel + 2) as threads:  # one fetches, one looks
            self._begin(self._seen, threads)
            pump = asyncio.create_task(self._pump(threads))
            try:
                while self._tasks:
                    done, waiting = await asyncio.wait(
                        self._tasks, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION
                    )
                    for each in (*done, *[pump] * pump.done()):
                        each.result()  # what nobody has foreseen ends all
                    if not waiting:
                        break
                    await self._look(threads)
            finally:
                importer.stop()
                self._ended = True
                await asyncio.wait([*self._tasks, pump])
            await asyncio.gather(*self._tasks, pump)

    def _begin(self, seen: SeenTopic, threads: ThreadPoolExecutor) -> None:
        plan = self._importer.plan
        for number, ends in seen.ends.items():
            if number in self._imports:
                self._imports[number].raw.ends = ends
                continue
            raw = KafkaPartition(self._url, seen.identity, number, ends)
            if plan.partition is None and number >= self._partitions:
                self._importer.refuse(raw.name, no_place(plan.target.topic, self._partitions))
                continue
            each = PartitionImport(
                raw,
                self._topic,
                plan if plan.partition is not None else plan._replace(partition=number),
                self._importer.shared(threads),
            )
            self._imports[number] = each
            self._tasks.append(asyncio.create_task(self._importer.run_one(each)))

    async def _look(self, threads: ThreadPoolExecutor) -> None:
        try:
            seen = await asyncio.get_running_loop().run_in_executor(threads, self._topic.look)
            if seen.identity != self._seen.identity:
                raise SourceChanged(
                    "was deleted and created anew while it was read",
                    hint="the same command imports the new one too",
                )
        except KafkaAway as error:
            self._say(str(error))
            if self._now() - self._seen_at > self._wait_s:
                self._fail(error)
        except SourceProblem as error:
            self._fail(error)
        else:
            self._seen_at = self._now()
            if self._importer.plan.follows and not self._importer.stops:
                self._begin(seen, threads)

    async def _pump(self, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while not self._ended:
            if sum(each.raw.waiting_bytes for each in self._imports.values()) >= BUFFER_BYTES:
                await asyncio.sleep(ROOM_S)
                continue
            try:
                found = await loop.run_in_executor(threads, self._topic.poll)
            except SourceProblem as error:
                self._fail(error)
                return
            for fetched in found:
                each = self._imports.get(fetched.partition)
                if each is not None:
                    each.raw.put(fetched)
                    each.wake()

    def _fail(self, problem: SourceProblem) -> None:
        """Nothing more can be read; what was fetched is stored."""
        for number, each in self._imports.items():
            each.raw.put(FetchedRecord(number, 0, problem=problem))
            each.wake()


def no_place(topic: str, partitions: int) -> SourceProblem:
    """Why a partition of Kafka's cannot be imported."""
    return SourceProblem(
        f"has no place: partitions keep their numbers, and topic {topic!r} has {partitions}",
        hint="add partitions to the topic, or send all records to one with --partition P",
    )
