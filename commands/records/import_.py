"""``headgate import``: files, pipes and objects become records, each exactly once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial

import click
from msgspec import Struct

from commands.client.http import Client, Refused, topic_path
from commands.client.topics import state_of
from commands.importing.byte_budget import ByteBudget
from commands.importing.flow import Limits
from commands.importing.following import Following, TooManyFiles
from commands.importing.importer import Importer, ImportTotals
from commands.importing.names import SourceCursors
from commands.importing.reading.buckets import SCHEME, Buckets, Endpoint
from commands.importing.reading.finding import FoundSource, NotFound, find
from commands.importing.reading.reader import Form
from commands.importing.reading.rules import DROP, FAIL, Rules, WhereField, parse_where
from commands.importing.sender import ImportDaemon
from commands.importing.source import ImportPlan, SourceReport, TopicTarget
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
from compaction.access.connection import DaemonAddress
from shards.clock import monotonic_ns

NOTICE_EVERY_S = 30.0


def _parsed_where(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> tuple[WhereField, ...]:
    try:
        return tuple(parse_where(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("import")
@topic_argument
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--format", "form", type=click.Choice(["auto", "ndjson", "json"]), default="auto",
              show_default=True, help="A JSON value per line, or one JSON document (an array is its"
              " records); auto: a document if the text begins with [.")  # fmt: skip
@click.option("--key", metavar="FIELD", help="The field of a record that is its key.")
@click.option("--where", metavar="FIELD=GLOB", multiple=True, callback=_parsed_where,
              help="Only records whose field matches; repeatable, and all must match.")  # fmt: skip
@click.option("--invalid", default=FAIL, show_default=True, metavar="drop|fail|TOPIC",
              help="What becomes of what is not a record: dropped, the end of its source, or a"
              " dead letter in this topic.")  # fmt: skip
@click.option("--partition", type=click.IntRange(0, 999), metavar="P",
              help="Send all records to this one.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on with files that grow, rotate or appear.")
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
@client_option
@output_option
def import_(
    topic: str,
    sources: tuple[str, ...],
    form: Form,
    key: str | None,
    where: tuple[WhereField, ...],
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
    client: Client,
    as_json: bool,
) -> None:
    """Import files and objects into a topic, each record exactly once.

    A SOURCE is a file, a pattern, - for stdin, or s3://BUCKET/PREFIX; NDJSON or one JSON document,
    plain, gzip or zstd. The place in each source is a cursor of the daemon, so the same command
    continues after a kill, also a week later. Only stdin begins anew.

    \b
    Examples:
      headgate import orders orders.ndjson 'archive/*.ndjson.gz' --key customer
      headgate import logs '/var/log/app.log*' --follow --where level=err* --invalid bad-logs
      headgate import events s3://exports/2026/ --parallel 16
    """
    if follow and (identity == "path" or any(_is_no_file(each) for each in sources)):
        raise click.UsageError("--follow is for files, and finds them again by their inodes")
    client.say = say
    patience_s = wait_s if wait_s is not None else 86_400 if follow else 60
    buckets = Buckets(Endpoint(s3_endpoint, s3_region), parallel)
    try:
        found = [] if follow else find(sources, buckets, by_path=identity == "path")
        plan = ImportPlan(
            _target(client, topic, patience_s),
            None if invalid in (DROP, FAIL) else _target(client, invalid, patience_s),
            partition,
            form,
            Limits(batch_bytes, batch),
            restart,
            follow,
            lambda: Rules(where=where, key=key, invalid=invalid, record_bytes_max=record_bytes),
        )
        summary = _imported(client, plan, found, sources if follow else (), parallel, patience_s)
    except NotFound as error:
        raise CommandFailed(f"nothing was imported:\n  {error}", hint=error.hint) from error
    except TooManyFiles as error:
        raise CommandFailed(str(error), hint="several commands can follow a part each") from error
    finally:
        buckets.close()
    show(summary, as_json, summary_text)
    _end(summary, follow)


def _is_no_file(source: str) -> bool:
    return source == "-" or source.startswith(SCHEME)


def _target(client: Client, topic: str, wait_s: float) -> TopicTarget:
    """A topic, which is created if there is none. Its id is in the names of cursors, so a topic
    that is created anew gets everything again."""
    try:
        state = state_of(client, topic, wait_s * 1000)
    except Refused as error:
        if error.code != "unknown_topic":
            raise
        client.call("PUT", topic_path(topic), b"{}", patience_ms=wait_s * 1000)
        state = state_of(client, topic, wait_s * 1000)
    return TopicTarget(topic, state.topic_id)


def _imported(
    client: Client,
    plan: ImportPlan,
    found: list[FoundSource],
    followed: tuple[str, ...],
    parallel: int,
    wait_s: float,
) -> ImportSummary:
    begin_ns = monotonic_ns()
    size = sum(each.size or 0 for each in found)
    with progress(size, "imported", of_bytes=True) as went_on:
        daemon = ImportDaemon(
            client.url,
            DaemonAddress.of(client.url),
            ByteBudget(),
            wait_s,
            _now_s,
            _Notices(client.url),
        )
        cursors = SourceCursors(client, wait_s * 1000)
        importer = Importer(plan, daemon, cursors, parallel, went_on)
        work: Callable[[], Awaitable[None]]
        if followed:
            work = Following(importer, followed, parallel).run
        else:
            work = partial(importer.run, found)

        asyncio.run(_until_stopped(importer, work))
    seconds = (monotonic_ns() - begin_ns) / 1e9
    return ImportSummary.of(plan, importer, seconds)


async def _until_stopped(importer: Importer, work: Callable[[], Awaitable[None]]) -> None:
    """Ctrl-C and SIGTERM stop the import, with what was read stored; a second Ctrl-C ends it."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        importer.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await work()


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
    if totals.retries:
        more.append(counted_text(totals.retries, "retry", "retries"))
    sums = (
        f"{counted_text(totals.records, 'record')} to {summary.topic} from"
        f" {counted_text(totals.sources, 'source')} in {duration_text(summary.seconds * 1000)}"
        f" ({bytes_text(rate)}/s)"
    )
    return "\n".join([*limited(lines), "", ", ".join([sums, *more])])
