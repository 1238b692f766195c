"""``headgate import``: files, objects and topics of Kafka become records, each exactly once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from importlib import util
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from msgspec import Struct

from commands.client.http import Client, Refused, topic_path
from commands.client.topics import state_of
from commands.importing.byte_budget import ByteBudget
from commands.importing.chain_sender import ImportDaemon
from commands.importing.flow import Limits
from commands.importing.following import Following, FollowingObjects, TooManyFiles
from commands.importing.governed import ImportPlan, SourceReport, TopicTarget
from commands.importing.importer import Importer, ImportTotals
from commands.importing.kafka import address as kafka
from commands.importing.names import SourceCursors
from commands.importing.reading.buckets import SCHEME, Buckets, Endpoint
from commands.importing.reading.finding import NotFound, find
from commands.importing.reading.problems import SourceProblem
from commands.importing.reading.reader import Form
from commands.importing.reading.rules import DROP, FAIL, Rules
from commands.output import (
    bytes_text,
    count_text,
    counted_text,
    duration_text,
    limited,
    progress,
    say,
    show,
    table,
)
from commands.quantities import Bytes, Duration
from commands.shell.exits import FAILED, UNREACHABLE, CommandFailed
from commands.shell.options import client_option, output_option, topic_argument
from daemon.schemas.api import TopicState
from delivery.filters import FieldCondition, parse_condition
from shards.clock import monotonic_ns

NOTICE_EVERY_S = 30.0
# Of a topic of Kafka's: as many as files that are followed; each has a connection to the daemon.
KAFKA_PARTITIONS_MAX = 256


def _parsed_where(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> tuple[FieldCondition, ...]:
    try:
        return tuple(map(parse_condition, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("import")
@topic_argument
@click.argument("sources", metavar="SOURCE...", nargs=-1)
@click.option("--format", "form", type=click.Choice(["auto", "ndjson", "json"]), default="auto",
              show_default=True, help="A JSON value per line, or one JSON document (an array is its"
              " records); auto: a document if the text begins with [.")  # fmt: skip
@click.option("--key", metavar="FIELD", help="The field of a record that is its key.")
@click.option("--explode", metavar="FIELD",
              help="The elements of this array are the records.")  # fmt: skip
@click.option("--where", metavar="FIELD=PATTERN", multiple=True, callback=_parsed_where,
              help="Only records whose field matches; repeatable, and all must match.")  # fmt: skip
@click.option("--invalid", default=FAIL, show_default=True, metavar="drop|fail|TOPIC",
              help="What becomes of what is not a record: dropped, the end of its source, or a"
              " dead letter in this topic.")  # fmt: skip
@click.option("--partition", type=click.IntRange(0, 999), metavar="P",
              help="Send all records to this one.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with files that grow, rotate or appear, with"
              " objects that appear, with what is sent to Kafka.")  # fmt: skip
@click.option("--restart", is_flag=True,
              help="Begin at the starts of the sources, whatever was imported before.")  # fmt: skip
@click.option("--identity", type=click.Choice(["inode", "path"]), default="inode",
              show_default=True, help="How a file is found again.")  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
              help="Most sources that are read simultaneously.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1_000_000), default=5_000, show_default=True,
              metavar="N", help="Most records in a request.")  # fmt: skip
@click.option("--batch-bytes", type=Bytes(1, 1 << 30), default="1MiB", show_default=True,
              metavar="SIZE", help="Most bytes of records in a request; a larger record is sent"
              " alone.")  # fmt: skip
@click.option("--record-bytes", type=Bytes(1, 1 << 30), default="1MiB", show_default=True,
              metavar="SIZE", help="A larger record is invalid.")  # fmt: skip
@click.option("--wait", "wait_s", type=Duration(0, 86_400), metavar="DURATION",
              help="How long to wait for a daemon that does not answer or is busy, 60s by default,"
              " a day with --follow.")  # fmt: skip
@click.option("--s3-endpoint", envvar="HEADGATE_S3_ENDPOINT_URL", metavar="URL",
              show_envvar=True, help="For sources in S3; by default that of AWS.")  # fmt: skip
@click.option("--s3-region", envvar="HEADGATE_S3_REGION", metavar="REGION", show_envvar=True,
              help="For sources in S3.")  # fmt: skip
@click.option("--kafka-config", type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Properties of Kafka's client, with its secrets.")  # fmt: skip
@client_option
@output_option
def import_(
    topic: str,
    sources: tuple[str, ...],
    form: Form,
    key: str | None,
    explode: str | None,
    where: tuple[FieldCondition, ...],
    invalid: str,
    partition: int | None,
    follow: bool,
    restart: bool,
    identity: str,
    parallel: int,
    batch: int,
    batch_bytes: int,
    record_bytes: int,
    wait_s: float | None,
    s3_endpoint: str | None,
    s3_region: str | None,
    kafka_config: Path | None,
    client: Client,
    as_json: bool,
) -> None:
    """Import files, objects and topics of Kafka into a topic, each record exactly once.

    A SOURCE is a file, a pattern, - for stdin, or s3://BUCKET/PREFIX; NDJSON or one JSON document,
    plain, gzip or zstd. Or it is kafka://BROKER[,BROKER]/TOPIC, with the extra `kafka`. The place
    in each source is a cursor of the daemon, so the same command continues after a kill, also a
    week later. Only stdin begins anew.

    \b
    Examples:
      headgate import orders orders.ndjson 'archive/*.ndjson.gz' --key customer
      headgate import logs '/var/log/app.log*' --follow --where level=err* --invalid bad-logs
      headgate import events s3://exports/2026/ --parallel 16
      headgate import orders kafka://broker-1:9092,broker-2:9092/orders --follow
    """
    if not sources:
        raise click.UsageError("give the topic first, and then a SOURCE to import")
    objects = [each for each in sources if each.startswith(SCHEME)]
    topics = [each for each in sources if each.startswith(kafka.SCHEME)]
    if topics and len(sources) > 1:
        raise click.UsageError("a topic of Kafka is the only source of its command")
    if topics and (key or explode or form != "auto" or identity == "path"):
        raise click.UsageError(
            "records of Kafka have keys and are whole: --key, --explode, --format and --identity"
            " are for text"
        )
    if kafka_config is not None and not topics:
        raise click.UsageError("--kafka-config is for a source kafka://BROKER[,BROKER]/TOPIC")
    if follow and (identity == "path" or "-" in sources):
        raise click.UsageError("--follow is for files, and finds them again by their inodes")
    if follow and objects and len(objects) < len(sources):
        raise click.UsageError("--follow takes files or objects, not both: run a command for each")
    client.say = say
    patience_s = wait_s if wait_s is not None else 86_400 if follow else 60
    with ExitStack() as closing:
        try:
            if topics:
                found = _kafka_topic(topics[0], kafka_config, parallel, patience_s, closing)
            else:
                buckets = Buckets(Endpoint(s3_endpoint, s3_region), parallel)
                closing.callback(buckets.close)
                found = _texts(
                    sources, buckets, parallel, patience_s,
                    by_path=identity == "path", follow=follow, of_objects=bool(objects),
                )  # fmt: skip
            state = _topic(client, topic, patience_s, found.partitions)
            if partition is None and len(state.partitions) < found.partitions:
                raise CommandFailed(
                    f"{sources[0]} has {found.partitions} partitions, which keep their numbers, and"
                    f" topic {topic!r} has {len(state.partitions)}",
                    hint=f"`headgate topics alter {topic} --partitions {found.partitions}`, or send"
                    " all records to one with --partition P",
                )
            plan = ImportPlan(
                _target(state),
                None if invalid in (DROP, FAIL) else _target(_topic(client, invalid, patience_s)),
                partition,
                form,
                Limits(batch_bytes, batch),
                restart,
                follow,
                lambda: Rules(
                    where=where, key=key, explode=explode, invalid=invalid,
                    record_bytes_max=record_bytes,
                ),
            )  # fmt: skip
            work = partial(found.work, partitions=len(state.partitions))
            summary = _imported(client, plan, found.size, work, parallel, patience_s)
        except NotFound as error:
            raise CommandFailed(f"nothing was imported:\n  {error}", hint=error.hint) from error
        except kafka.BadAddress as error:
            raise CommandFailed(str(error), hint=error.hint) from error
        except TooManyFiles as error:
            raise CommandFailed(
                str(error), hint="several commands can follow a part each"
            ) from error
    show(summary, as_json, summary_text)
    _end(summary, follow)


class _Found(NamedTuple):
    """Sources that are there: the bytes of what has an end; how many partitions they need; and
    their import, which is told how many partitions the topic has."""

    size: int
    partitions: int
    work: Callable[..., Awaitable[None]]


def _texts(
    sources: tuple[str, ...],
    buckets: Buckets,
    parallel: int,
    wait_s: float,
    *,
    by_path: bool,
    follow: bool,
    of_objects: bool,
) -> _Found:
    """Files, pipes and objects. Raises NotFound."""
    found = [] if follow else find(sources, buckets, by_path=by_path)

    async def work(importer: Importer, partitions: int) -> None:
        if not follow:
            await importer.run(found)
        elif of_objects:
            say = _Notices("the store")
            await FollowingObjects(importer, buckets, sources, parallel, wait_s, _now_s, say).run()
        else:
            await Following(importer, sources, parallel).run()

    return _Found(sum(each.size or 0 for each in found), 1, work)


def _kafka_topic(
    url: str, config: Path | None, parallel: int, wait_s: float, closing: ExitStack
) -> _Found:
    """A topic of Kafka's. Raises BadAddress and NotFound."""
    properties = {} if config is None else kafka.read_properties(config)
    address = kafka.parse_url(url, properties)
    if util.find_spec("confluent_kafka") is None:
        raise CommandFailed(
            "a source in Kafka needs confluent-kafka, which is not installed",
            hint="pip install 'headgate[kafka]'",
        )
    # Other commands, and other sources, load no librdkafka.
    from commands.importing.kafka.cluster import KafkaTopic
    from commands.importing.kafka.moving import Moving

    topic = KafkaTopic(address)
    closing.callback(topic.close)
    try:
        seen = topic.look()
        if len(seen.ends) > KAFKA_PARTITIONS_MAX:
            raise SourceProblem(
                f"has {len(seen.ends):,} partitions, and at most {KAFKA_PARTITIONS_MAX} can be"
                " imported"
            )
    except SourceProblem as error:
        raise NotFound([(url, error)]) from error
    topic.open(len(seen.ends))

    async def work(importer: Importer, partitions: int) -> None:
        say = _Notices(url)
        moving = Moving(importer, topic, url, seen, partitions, wait_s, _now_s, say)
        await moving.run(parallel)

    return _Found(0, len(seen.ends), work)


def _topic(client: Client, topic: str, wait_s: float, partitions: int = 1) -> TopicState:
    """A topic, which is created if there is none."""
    try:
        return state_of(client, topic, wait_s * 1000)
    except Refused as error:
        if error.code != "unknown_topic":
            raise
        settings = msgspec.json.encode({"partitions": partitions} if partitions > 1 else {})
        client.call("PUT", topic_path(topic), settings, patience_ms=wait_s * 1000)
        return state_of(client, topic, wait_s * 1000)


def _target(state: TopicState) -> TopicTarget:
    """Its id is in the names of cursors, so a topic that is created anew gets everything again."""
    return TopicTarget(state.topic, state.topic_id, state.config.kafka_value)


def _imported(
    client: Client,
    plan: ImportPlan,
    size: int,
    work: Callable[[Importer], Awaitable[None]],
    parallel: int,
    wait_s: float,
) -> ImportSummary:
    begin_ns = monotonic_ns()
    with progress(size, "imported", of_bytes=True) as went_on:
        daemon = ImportDaemon(
            client.url,
            client.address,
            ByteBudget(),
            wait_s,
            _now_s,
            _Notices(client.url),
        )
        cursors = SourceCursors(client, wait_s * 1000)
        importer = Importer(plan, daemon, cursors, parallel, went_on)
        asyncio.run(_until_stopped(importer, work))
    seconds = (monotonic_ns() - begin_ns) / 1e9
    return ImportSummary.of(plan, importer, seconds)


async def _until_stopped(importer: Importer, work: Callable[[Importer], Awaitable[None]]) -> None:
    """Ctrl-C and SIGTERM stop the import, with what was read stored; a second Ctrl-C ends it."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        importer.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await work(importer)


class _Notices:
    """Says what is waited for, not too often."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._said_s: float | None = None

    def __call__(self, reason: str) -> None:
        now = _now_s()
        if self._said_s is None or now - self._said_s > NOTICE_EVERY_S:
            self._said_s = now
            say(f"waiting for {self._url}: {reason}")


def _now_s() -> float:
    return monotonic_ns() / 1e9


def _end(summary: ImportSummary, follow: bool) -> None:
    """Raises CommandFailed unless everything was imported."""
    failed = [
        f"{each.source}: {each.error.message}" for each in summary.sources if each.error is not None
    ]
    if failed:
        more = summary.totals.failed - len(failed)
        lines = limited(failed + [f"and {more} more"] * (more > 0))
        hints = [each.error.hint for each in summary.sources if each.error and each.error.hint]
        is_away = any(each.error and each.error.code == "unreachable" for each in summary.sources)
        raise CommandFailed(
            "not everything was imported:\n  " + "\n  ".join(lines),
            hint="; ".join(
                [*dict.fromkeys(hints[:3]), "the same command continues where it ended"]
            ),
            exit_code=UNREACHABLE if is_away else FAILED,
        )
    if summary.totals.stopped and not follow:
        raise CommandFailed(
            f"stopped: {summary.totals.stopped:,} of {summary.totals.sources:,} sources are not"
            " imported to their ends",
            hint="the same command continues where it ended",
        )


class ImportSummary(Struct):
    """An import. ``sources``: at most 10,000 are named; ``totals`` counts all."""

    topic: str
    dead_letter_topic: str | None
    seconds: float
    totals: ImportTotals
    sources: list[SourceReport]

    @classmethod
    def of(cls, plan: ImportPlan, importer: Importer, seconds: float) -> ImportSummary:
        """The summary of an import that has ended."""
        dead = None if plan.dead_target is None else plan.dead_target.topic
        return cls(plan.target.topic, dead, round(seconds, 3), importer.totals, importer.reports)


def summary_text(summary: ImportSummary) -> str:
    """A line for each source, and the sums."""
    totals = summary.totals
    rows = [
        [each.source, each.state, count_text(each.records), count_text(each.filtered),
         count_text(each.invalid), bytes_text(each.read_bytes)]
        for each in summary.sources
    ]  # fmt: skip
    head = ("source", "state", "records", "filtered", "invalid", "read")
    lines = table(head, rows).splitlines()
    rate = totals.read_bytes / summary.seconds if summary.seconds else 0
    more = []
    if totals.filtered:
        more.append(f"{count_text(totals.filtered)} filtered out")
    if totals.invalid:
        more.append(f"{count_text(totals.invalid)} invalid")
    if totals.dead_letters:
        more.append(
            f"{counted_text(totals.dead_letters, 'dead letter')} in {summary.dead_letter_topic}"
        )
    if totals.absent:
        more.append(f"{counted_text(totals.absent, 'offset')} without a record")
    if totals.retries:
        more.append(counted_text(totals.retries, "retry", "retries"))
    sums = (
        f"{counted_text(totals.records, 'record')} to {summary.topic} from"
        f" {counted_text(totals.sources, 'source')} in {duration_text(summary.seconds * 1000)}"
        f" ({bytes_text(rate)}/s)"
    )
    return "\n".join([*limited(lines), "", ", ".join([sums, *more])])
