"""One chaos run: a daemon, its clients, the steps of a plan; then everything is read and checked.

While the clients run, ``keeper.py`` compacts and collects, and one topic has a cap. So readers read
from rings, objects and Parquet files, and objects are deleted while they read. In the end a
compaction and a collection run undisturbed, and most of what is checked is in the lake.

``folder`` gets ``history.jsonl`` for the checker, ``daemon.log`` and the daemon's data. All stay if
something is found.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct
from msgspec.structs import replace

from shards.clock import monotonic_ns
from tests.chaos import (
    history,
    kafka,
    letters,
    library,
    pressure,
    pushes,
    renewing,
    routers,
    soak,
    subscriptions,
)
from tests.chaos.cast import PLACES, Cast, cast_of, create_topics
from tests.chaos.checker import check
from tests.chaos.clients import Client, Numbers, Producer, Reader, Rereader, read_whole
from tests.chaos.consumers import Consumer, Operator
from tests.chaos.history import History, Place
from tests.chaos.keeper import HANG_S as KEEPER_HANG_S
from tests.chaos.known import COLD
from tests.chaos.lives import Lives
from tests.chaos.pair import PairWorld
from tests.chaos.watchers import WANTED, Watcher, wait_until_seen
from tests.chaos.world import Options, World
from tests.e2e.daemon import HANG_S, wait_until
from tests.minio import Bucket
from tools.minio import free_ports

FIRST_RECORDS = 200  # of each partition before the first compaction
READ_TOGETHER = 8


class Report(Struct):
    """What a run did and found."""

    seed: int
    acts: Counter[str]
    kills: int = 0
    requests: int = 0
    acknowledged: int = 0
    refused: dict[int, int] = {}
    unknown: int = 0
    records_kept: int = 0
    wait_ms_max: float = 0.0
    commands: Counter[str] = Counter()
    rows_compacted: int = 0
    objects_collected: int = 0
    records_evicted: int = 0
    whole_readings: int = 0
    streams: int = 0
    records_watched: int = 0
    consumed: Counter[str] = Counter()
    kafka: Counter[str] = Counter()
    library: Counter[str] = Counter()
    pushed: Counter[str] = Counter()
    rungs: Counter[str] = Counter()
    windows_ms: set[float] = set()
    contradictions: list[str] = []


def under_pressure(options: Options) -> Options:
    """The same run, under pressure."""
    return replace(
        options, spec=pressure.SPEC, producers=pressure.PRODUCERS, pause_s=pressure.PAUSE_S,
        pad_bytes=pressure.PAD_BYTES, waits=pressure.WAITS, rungs=pressure.RUNGS,
        settings=pressure.SETTINGS | (pressure.BUDGET if options.seed % 2 else {}),
    )  # fmt: skip


def only_subscriptions(options: Options) -> Options:
    """The same run, with subscriptions and little else."""
    return replace(options, read=False, lake=False, subscribe=True)


def only_push(options: Options) -> Options:
    """The same run, with push subscriptions and little else."""
    return replace(
        options, read=False, lake=False, push=True, producers=pushes.PRODUCERS,
        pause_s=pushes.PAUSE_S, settings=options.settings | pushes.SETTINGS,
    )  # fmt: skip


def only_kafka(options: Options) -> Options:
    """The same run, with Kafka's clients and little else."""
    port = free_ports(1 + options.shards)
    return replace(
        options, read=False, kafka=True, producers=2,
        settings=options.settings | {"kafka_listen": f"127.0.0.1:{port}"},
    )  # fmt: skip


def only_library(options: Options) -> Options:
    """The same run, with the Python client and little else."""
    listen = f"127.0.0.1:{free_ports(1)}"
    return replace(options, read=False, library=True, producers=2, listen=listen)


def with_recreation(options: Options) -> Options:
    """The same run, in which most of what is used is deleted and created again."""
    return replace(only_push(options), subscribe=True, renew=True)


def only_soak(options: Options) -> Options:
    """The same run, in which nothing is killed, and fifty subscriptions meet all else."""
    return replace(
        only_push(options), subscribe=True, soak=True, producers=soak.PRODUCERS,
        pause_s=soak.PRODUCE_PAUSE_S,
    )  # fmt: skip


def with_pair(options: Options, bucket: Bucket) -> Options:
    """The same run, over an owner and its standby."""
    return replace(options, bucket=bucket, lake=False, spec="")


def run(options: Options) -> Report:
    """Runs and checks. Raises the error of a client or of a start of the daemon."""
    path = options.folder / "history.jsonl"
    with History(path) as written:
        world = (World if options.bucket is None else PairWorld)(options, written)
        cast = cast_of(options)
        spoiler = (
            pushes.Spoiler(options.folder, written, options.seed, cast.pushed)
            if options.push
            else None
        )
        try:
            report = _live(options, cast, world, written, spoiler)
        finally:
            world.end(signal.SIGKILL, group=True)
            if spoiler is not None:
                spoiler.receiver.end()
        if spoiler is not None:
            for line in spoiler.lines():
                written.add(line)
    lines = history.load(path)
    report.contradictions += check(lines)
    pages = [line for line in lines if isinstance(line, history.Page)]
    report.records_evicted = max(
        (page.gap[1] for page in pages if page.gap is not None and page.reason == "cap"), default=0
    )
    report.pushed = pushes.told(lines)
    cold = [line for line in lines if isinstance(line, history.Page) and line.reader == COLD]
    report.records_kept = sum(len(page.records) for page in cold)
    answered = sum(isinstance(line, history.Answered) for line in lines)
    report.unknown = sum(isinstance(line, history.Sent) for line in lines) - answered
    return report


def _live(
    options: Options, cast: Cast, world: World, written: History, spoiler: pushes.Spoiler | None
) -> Report:
    world.start()
    topic_ids = create_topics(world, written, cast)
    numbers = Numbers()
    lives = Lives(ends=options.renew)
    producers = [
        Producer(number, world.port, written, numbers, cast.produced, keyed=bool(number % 2),
                 pause_s=options.pause_s, pad_bytes=options.pad_bytes,
                 waits=options.waits[number % len(options.waits)])
        for number in range(options.producers)
    ]  # fmt: skip
    readers, rereaders, watchers = _readers(options, cast, world, written, topic_ids)
    consumers = _consumers(options, cast, world, written, lives)
    governor = pressure.GovernorWatch(world.port)
    spoilers = [spoiler] if spoiler is not None else []
    for each in spoilers:
        assert world.daemon is not None
        each.begin()
        pushes.create(world.daemon, written, each.receiver, cast.pushed)
    keeper = world.keeper
    senders: list[kafka.KafkaProducer] = []
    members: list[kafka.Member] = []
    progress = kafka.Progress()
    if options.kafka:
        bootstrap = str(options.settings["kafka_listen"])
        senders += [
            kafka.KafkaProducer(number, bootstrap, written, numbers, options.pause_s)
            for number in range(kafka.PRODUCERS)
        ]
        members += [
            kafka.Member(number, bootstrap, written, progress, options.seed)
            for number in range(kafka.MEMBERS)
        ]
    libraries: list[library.Library] = []
    if options.library:
        libraries.append(
            library.Library(f"http://{options.listen}", written, numbers, options.pause_s)
        )
    renewers: list[renewing.Renewer] = []
    operators: list[letters.LettersOperator | soak.SoakOperator] = []
    passers: list[renewing.Sink | renewing.Intruder | soak.MemoryWatch] = []
    floors = [pushes.FloorWatch(world.port, written, cast.pushed, lives)] if options.push else []
    if options.soak:
        made = soak.Soaked(options.seed)
        operators.append(soak.SoakOperator(made, world.port, written, lives, options.seed))
        passers.append(soak.MemoryWatch(world))
    if options.renew:
        assert spoiler is not None and world.daemon is not None
        renewers.append(
            renewing.Renewer(world.port, written, lives, options.seed, spoiler.receiver)
        )
        renewers[0].create(world.daemon)
        operators.append(letters.LettersOperator(world.port, written, lives, options.seed))
        passers.append(renewing.Sink(world.port, written, numbers, options.seed))
        passers.append(renewing.Intruder(world.port, options.seed))
    clients = [
        *producers, *readers, *rereaders, *watchers, *consumers, *spoilers, *renewers, *passers,
        *operators, *senders, *members, *(one for used in libraries for one in used.clients),
        *floors, governor,
    ]  # fmt: skip

    def is_met() -> bool:
        """Whether the run has met what it is about."""
        return (
            set(options.rungs) <= set(governor.rungs)
            and all(set(pushes.told(list(each.lines()))) >= pushes.KINDS for each in spoilers)
            and world.is_met()
        )

    def is_done() -> bool:
        """Whether it has done so often what it does at random."""
        doers = [world, *renewers, *operators]
        return all(
            sum(each.acts[what] for each in doers) >= times for what, times in options.least.items()
        )

    with _running(clients):
        if keeper is not None:
            _wait_for_records(world)
            keeper.once()
        with _running([keeper] if keeper else []):
            if options.soak:
                soak.pass_time(world, options.folder, options.seconds, is_done)
            else:
                _steps(options, world, is_met, is_done)
            if keeper is not None:
                _stop([keeper], KEEPER_HANG_S)
        for operator in operators:
            operator.calm.set()
            while operator.is_alive() and not operator.is_calm.wait(1.0):
                pass
        _stop(renewers)
        _stop(passers)
        # Producers with keys go on until the answer; the others read what is outstanding.
        _stop([*producers, *senders])
        for used in libraries:
            _stop(used.senders)
            used.wait_until_done()
            _stop([*used.watches, *used.workers])
        if members:
            kafka.wait_until_read(world.port, progress)
            _stop(members)
        if options.read:
            routers.wait_until_copied(world.port)
            wait_until_seen(watchers, world.port)
        if options.subscribe:
            subscriptions.wait_until_drained(world.port, written, cast.subscribed, lives)
        if options.push:
            _stop(spoilers)
            pushes.wait_until_drained(world.port, written, cast.pushed, lives)
        for renewer in renewers:
            renewing.wait_until_routed(world.port)
            renewer.end()
        contradictions = _standing(world)
        _stop([*watchers, *readers, *rereaders, *consumers, *operators, *floors, governor])
    _read_all(world, written, cast, "hot")
    world.calm()
    world.restart()
    contradictions += progress.contradictions
    if options.subscribe:
        contradictions += subscriptions.undone(world.port, cast.subscribed)
    contradictions += pushes.undone(world.port, cast.pushed) if options.push else []
    for passer in passers:
        contradictions += passer.contradictions
    if keeper is not None:
        keeper.once()
        world.restart()  # and no cache has what is in the lake now
        contradictions += keeper.contradictions
    _read_all(world, written, cast, COLD)
    world.end()
    acts = world.acts.copy()
    for done in [each.acts for each in renewers] + [each.acts for each in operators]:
        acts.update(done)
    refused: Counter[int] = Counter()
    for producer in producers:
        refused.update(producer.refused)
    return Report(
        seed=options.seed,
        acts=acts,
        kills=world.kills,
        requests=sum(producer.answered for producer in producers),
        acknowledged=sum(producer.acknowledged for producer in producers),
        refused=dict(refused),
        wait_ms_max=max(producer.wait_ms_max for producer in producers),
        commands=keeper.done if keeper else Counter(),
        rows_compacted=keeper.rows if keeper else 0,
        objects_collected=keeper.deleted if keeper else 0,
        whole_readings=sum(reader.times for reader in rereaders),
        streams=sum(watcher.connections for watcher in watchers),
        records_watched=sum(watcher.taking.records for watcher in watchers),
        rungs=governor.rungs,
        windows_ms=governor.windows_ms,
        consumed=subscriptions.told(consumers),
        library=Counter(
            {
                "stored": sum(one.stored for used in libraries for one in used.senders),
                "watched": sum(one.records for used in libraries for one in used.watches),
                "worked on": sum(len(used.work.done) for used in libraries),
            }
        ),
        kafka=Counter(
            {
                "stored": sum(sender.acknowledged for sender in senders),
                "read": sum(member.records for member in members),
                "joins": sum(member.joins for member in members),
            }
        ),
        contradictions=contradictions,
    )


def _read_all(world: World, written: History, cast: Cast, reader: str) -> None:
    """Reads all partitions, some at a time: the store is asked for each extent."""

    def read(place: Place) -> None:
        for page in read_whole(world.port, place, reader):
            written.add(page)

    with ThreadPoolExecutor(READ_TOGETHER) as pool:
        list(pool.map(read, cast.places))


def _standing(world: World) -> list[str]:
    """What stands still without a reason, as the daemon says: what lasts. Everything is done, and
    an alarm is raised for some seconds more; it may be of a time in which the machine stood still.
    """
    found: list[str] = []

    def is_over() -> bool:
        assert world.daemon is not None
        alarms = world.daemon.status()["alarms"]
        found[:] = [
            f"standing: {each['message']}" for each in alarms if each["alarm"] == "stands_still"
        ]
        return not found

    with contextlib.suppress(AssertionError):
        wait_until(is_over, "nothing to stand still")
    return found


def _readers(
    options: Options, cast: Cast, world: World, written: History, topic_ids: dict[str, int]
) -> tuple[list[Reader], list[Rereader], list[Watcher]]:
    """Who reads without saying so."""
    if not options.read:
        return [], [], []
    assert world.daemon is not None
    for routed in routers.ROUTERS.values():
        written.add(routed)
    routers.create(world.daemon)
    return (
        [Reader(place, world.port, written) for place in cast.places],
        [Rereader(place, world.port, written) for place in cast.places],
        [Watcher(wanted, world.port, written, topic_ids, options.seed) for wanted in WANTED],
    )


def _consumers(
    options: Options, cast: Cast, world: World, written: History, lives: Lives
) -> list[Consumer | Operator]:
    if not options.subscribe:
        return []
    assert world.daemon is not None
    subscriptions.create(world.daemon, written, cast.subscribed)
    return subscriptions.consumers(
        cast.subscribed, cast.consumes, world.port, world.era, written, options.seed, lives
    )


def _wait_for_records(world: World) -> None:
    """Waits until each partition has records outside the rings."""

    def there() -> bool:
        assert world.daemon is not None
        heads = [
            state["head_seq"]
            for topic in {topic for topic, _ in PLACES}
            for state in world.daemon.get(f"/v0/topics/{topic}").json["partitions"]
        ]
        return bool(min(heads) >= FIRST_RECORDS)

    wait_until(there, f"{FIRST_RECORDS} records in each partition", 10 * HANG_S)


def _steps(
    options: Options, world: World, is_met: Callable[[], bool], is_done: Callable[[], bool]
) -> None:
    ended = threading.Event()  # only its timeouts are used: the run's own pace
    end_ns = monotonic_ns() + int(options.seconds * 1e9)
    said_ns = monotonic_ns()
    for step in world.steps():
        if monotonic_ns() >= end_ns and is_done():
            return
        if options.kills and world.kills >= options.kills and is_met():
            return
        ended.wait(step.pause_ms / 1000)
        if options.steps:
            world.do(step, ended)
        if monotonic_ns() - said_ns > 10e9:
            said_ns = monotonic_ns()
            options.say(f"{world.kills} kills, {(end_ns - said_ns) / 1e9:.0f} s left")


@contextlib.contextmanager
def _running(clients: Sequence[Client]) -> Iterator[None]:
    for client in clients:
        client.daemon = True  # one that hangs must not keep the report from being made
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.stopping.set()


def _stop(clients: Sequence[Client], hang_s: float = 2 * HANG_S) -> None:
    for client in clients:
        client.stopping.set()
    for client in clients:
        client.join(hang_s)
        assert not client.is_alive(), f"{client.name} hangs"
        if client.failure is not None:
            raise client.failure
