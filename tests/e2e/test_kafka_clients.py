"""Clients of Kafka's protocol other than librdkafka, each as it is: an idempotent producer and two
members of a group, while shards and a member are killed. Java's manages topics and groups too."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from tests.e2e.daemon import HANG_S, Daemon
from tests.e2e.kafka import bootstrap, kafka_daemon
from tests.e2e.packages import copy_jars, download
from tests.e2e.processes import kill_shards
from tests.examples.test_proxies import program

pytestmark = pytest.mark.slow

COUNT, MORE = 300, 40
SHARDS = 2
PARTITIONS, DEFAULT_PARTITIONS = 4, 3
# Each sends the numbers from one to another ("send") or reads them in a group ("read"), and says
# each.
KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, KafkaProducer
what, servers, topic, *numbers = sys.argv[1:]
if what == "send":
    producer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=True, linger_ms=2)
    for number in range(*map(int, numbers)):
        producer.send(topic, b"%d" % number, partition=number % 4).get(120)
        print(number, flush=True)
    producer.close()
else:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=500)
    while True:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                print(int(record.value), flush=True)
        try:
            consumer.commit()
        except Exception as error:
            print(error, file=sys.stderr)
"""
AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
what, servers, topic, *numbers = sys.argv[1:]
async def send():
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for number in range(*map(int, numbers)):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 4)
            print(number, flush=True)
async def read():
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=6000, heartbeat_interval_ms=500)
    async with consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    print(int(record.value), flush=True)
            try:
                await consumer.commit()
            except KafkaError as error:
                print(error, file=sys.stderr)
asyncio.run(send() if what == "send" else read())
"""
KAFKAJS = """
const { Kafka, logLevel } = require("kafkajs");
const [, , what, servers, topic, first, end] = process.argv;
const retry = { retries: 60, maxRetryTime: 1000 };
const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.NOTHING, retry });
async function send() {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  for (let number = Number(first); number < Number(end); number += 1) {
    const messages = [{ value: String(number), partition: number % 4 }];
    await producer.send({ topic, acks: -1, messages });
    console.log(number);
  }
  await producer.disconnect();
}
async function read() {
  const times = { sessionTimeout: 6000, heartbeatInterval: 500, rebalanceTimeout: 6000 };
  const consumer = kafka.consumer({ groupId: topic, ...times });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => console.log(String(message.value)) });
}
(what === "send" ? send() : read()).catch((error) => { console.error(error); process.exit(1); });
"""

Command = list[str]


def _python(source: str) -> Callable[[Path], tuple[Command, dict[str, str]]]:
    return lambda _: ([sys.executable, "-c", source], {})


def _kafkajs(folder: Path) -> tuple[Command, dict[str, str]]:
    npm = [program("npm", "npm"), "install", "--silent", "--prefix", str(folder), "kafkajs@2.2.4"]
    download(npm)
    (folder / "client.cjs").write_text(KAFKAJS)
    return [program("node", "nodejs"), str(folder / "client.cjs")], {
        "KAFKAJS_NO_PARTITIONER_WARNING": "1"
    }


def _java(folder: Path) -> tuple[Command, dict[str, str]]:
    copy_jars(folder, "org.apache.kafka:kafka-clients:4.1.1", "org.slf4j:slf4j-nop:1.7.36")
    source = Path(__file__).with_name("KafkaClient.java")
    java, javac = (program(each, "default-jdk-headless") for each in ("java", "javac"))
    subprocess.run([javac, "-cp", f"{folder}/*", "-d", str(folder), str(source)], check=True)
    return [java, "-cp", f"{folder}:{folder}/*", "KafkaClient"], {}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = {"kafka_partitions": DEFAULT_PARTITIONS}
    with kafka_daemon(tmp_path_factory.mktemp("data"), shards=SHARDS, settings=settings) as made:
        yield made


@pytest.mark.parametrize(
    "client", [_python(KAFKA_PYTHON), _python(AIOKAFKA), _kafkajs, _java],
    ids=["kafka-python", "aiokafka", "kafkajs", "java"],
)  # fmt: skip
def test_a_client_sends_each_once_and_a_group_reads_all_though_shards_and_a_member_are_killed(
    daemon: Daemon,
    topic: str,
    tmp_path: Path,
    client: Callable[[Path], tuple[Command, dict[str, str]]],
) -> None:
    command, environ = client(tmp_path)
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": PARTITIONS})

    def started(stack: ExitStack, what: str, *numbers: int) -> subprocess.Popen[str]:
        arguments = [what, bootstrap(daemon), topic, *map(str, numbers)]
        made = stack.enter_context(
            subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **environ})
        )  # fmt: skip
        stack.callback(made.kill)
        return made

    def send(first: int, end: int, kill_at: Sequence[int] = ()) -> None:
        with ExitStack() as stack:
            sender = started(stack, "send", first, end)
            assert sender.stdout is not None
            for line in sender.stdout:
                if int(line) in kill_at:
                    kill_shards(daemon, 0, 1)
            assert sender.wait() == 0

    send(0, COUNT, (COUNT // 3, 2 * COUNT // 3))
    for partition in range(PARTITIONS):
        stored = [int(b64decode(each["data_b64"])) for each in daemon.read_all(topic, partition)]
        assert stored == list(range(partition, COUNT, PARTITIONS))
    with ExitStack() as stack:
        read: Queue[int] = Queue()
        readers = [started(stack, "read") for _ in range(2)]
        for reader in readers:
            Thread(target=_numbers, args=(reader, read), daemon=True).start()
        found: set[int] = set()
        while len(found) < COUNT // 3:
            found.add(read.get(timeout=2 * HANG_S))
        kill_shards(daemon, 0, 1)  # once, though some may come again now
        while len(found) < COUNT:
            found.add(read.get(timeout=2 * HANG_S))
        assert found == set(range(COUNT))
        readers[0].kill()  # the other one has its partitions when its session is over
        send(COUNT, COUNT + MORE)
        while len(found) < COUNT + MORE:
            found.add(read.get(timeout=2 * HANG_S))
        assert found == set(range(COUNT + MORE))


def test_javas_admin_client_manages_topics_and_groups(
    daemon: Daemon, topic: str, tmp_path: Path
) -> None:
    command, _ = _java(tmp_path)
    arguments = ["admin", bootstrap(daemon), f"{topic}-made"]
    done = subprocess.run([*command, *arguments], text=True, check=True, timeout=2 * HANG_S,
                          stdout=subprocess.PIPE)  # fmt: skip
    assert done.stdout.splitlines() == [
        f"made {DEFAULT_PARTITIONS}", "listed true", "partitions 4", "retention 3600000",
        f"brokers {SHARDS}", "end 1", "groups 1", "group Empty, members 0",
        "committed 1 metadata", "listed false",
    ]  # fmt: skip


def _numbers(reader: subprocess.Popen[str], read: Queue[int]) -> None:
    assert reader.stdout is not None
    for line in reader.stdout:
        read.put(int(line))
