"""``headgate produce``: sends records from a file or stdin."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from commands.client.http import Client
from commands.client.records import Format, Numbered, RecordFields, batched, records, size_of
from commands.importing.chain import CursorSetBack
from commands.output import (
    bytes_text,
    count_text,
    counted_text,
    draw_line,
    echo,
    print_json,
    say,
)
from commands.producing.sending import (
    BatchUnanswered,
    Interrupted,
    SendResume,
    Summary,
    parse_resume,
    send,
)
from commands.quantities import Bytes
from commands.shell.exits import FAILED, UNREACHABLE, CommandFailed
from commands.shell.options import (
    client_option,
    output_option,
    parsed_by,
    topic_argument,
    wait_option,
)
from shards.clock import monotonic_ns

SPANS_SHOWN_MAX = 8
RATES_EVERY_S = 1.0  # on a terminal, where a line is drawn over the one before
RATES_LOGGED_EVERY_S = 10.0


def _parsed_meta(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[str, str] | None:
    for value in values:
        if not value.partition("=")[1] or value.startswith("="):
            raise click.BadParameter(f"must be NAME=VALUE, got {value!r}")
    return dict(value.split("=", 1) for value in values) or None


@click.command()
@topic_argument
@click.argument("file", type=click.File("rb", lazy=False), default="-")
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "lines", "json"]),
    default="ndjson",
    show_default=True,
    help="A JSON value per line, a text per line, or one JSON document (an array is its records).",
)
@click.option("--key", "--key-field", "key_field", metavar="FIELD",
              help="The field of a record that is its key; a.b is inside an object.")  # fmt: skip
@click.option("--ts", "ts_field", metavar="FIELD",
              help="The field of a record that is its time: epoch milliseconds, or ISO 8601; by"
              " default the arrival.")  # fmt: skip
@click.option("--tag", metavar="TEXT", help="The tag of all records.")
@click.option("--meta", metavar="NAME=VALUE", multiple=True, callback=_parsed_meta,
              help="A member of the meta of all records; repeatable.")  # fmt: skip
@click.option(
    "--partition", type=click.IntRange(0, 999), metavar="P", help="Send all records to this one."
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Most records in a request.",
)
@click.option(
    "--batch-bytes",
    type=Bytes(1, 1 << 30),
    default="1MiB",
    show_default=True,
    metavar="SIZE",
    help="Most bytes of records in a request; a larger record is sent alone.",
)
@click.option(
    "--resume",
    metavar="RUN:LINE",
    callback=parsed_by(parse_resume),
    help="Continue a run of this command that ended, with the same file and options.",
)
@click.option("--progress/--no-progress", "shows", default=None,
              help="Show records/s and MB/s on stderr; by default on a terminal.")  # fmt: skip
@wait_option
@client_option
@output_option
def produce(
    topic: str,
    file: Any,
    form: Format,
    key_field: str | None,
    ts_field: str | None,
    tag: str | None,
    meta: dict[str, str] | None,
    partition: int | None,
    batch: int,
    batch_bytes: int,
    resume: SendResume | None,
    shows: bool | None,
    wait_s: float,
    client: Client,
    as_json: bool,
) -> None:
    """Send records to a topic and wait until they are durable.

    The records come from FILE, or from stdin without it. If the run ends early, the message names
    a resume point; the same command with --resume continues there.

    \b
    Examples:
      headgate produce orders orders.ndjson --key customer
      tail -F app.log | headgate produce logs --format lines
      headgate produce orders orders.ndjson --key customer --resume 5f0c99e1:3005
    """
    begin = resume or SendResume(secrets.token_hex(12), 1)
    fields = RecordFields(key_field, ts_field, tag, meta)

    def batches(line: int, is_over: Callable[[], bool]) -> Iterator[list[Numbered]]:
        return batched(wanted(line, is_over), batch, batch_bytes)

    def wanted(line: int, is_over: Callable[[], bool]) -> Iterator[Numbered | None]:
        for item in records(file, form, fields):
            if item is None and is_over():
                return
            if item is None or item.line >= line:
                yield item

    rates = _Rates(size_of(file), shows)
    client.say = rates.say
    try:
        summary, problem = send(
            client,
            topic,
            batches,
            begin=begin,
            wait_s=wait_s,
            partition=partition,
            went_on=rates.show,
        )
    except CursorSetBack as error:
        raise CommandFailed(str(error)) from error
    finally:
        rates.end()
    if as_json:
        print_json(summary)
    elif summary.records or problem is None:
        echo(_text(summary))
    if summary.error is not None:
        is_unsure = summary.error.is_unsure
        rest = "of the next ones that is not known" if is_unsure else "nothing after it"
        resumes = (
            f"the {summary.records} records before it are stored, and {rest}; the same"
            f" command with --resume {summary.error.resume} continues there"
        )
        if isinstance(problem, Interrupted) and not is_unsure:
            first = summary.error.line
            resumes += f", or `tail -n +{first}` has the rest of the input"
        raise CommandFailed(
            f"{getattr(file, 'name', 'stdin')}: {problem}",
            hint="; ".join(each for each in (getattr(problem, "hint", ""), resumes) if each),
            exit_code=UNREACHABLE if isinstance(problem, BatchUnanswered) else FAILED,
        ) from problem


def _text(summary: Summary) -> str:
    spans = [
        f"partition {span.partition}: {span.first_seq}-{span.last_seq}"
        for span in summary.partitions[:SPANS_SHOWN_MAX]
    ]
    if len(summary.partitions) > SPANS_SHOWN_MAX:
        spans.append("...")
    retried = f", {counted_text(summary.retries, 'retry', 'retries')}" if summary.retries else ""
    return (
        f"{counted_text(summary.records, 'record')} ({bytes_text(summary.bytes)}) to"
        f" {summary.topic} in {counted_text(summary.requests, 'request')}{retried}"
        + (f"; {', '.join(spans)}" if spans else "")
    )


class _Rates:
    """Draws how much is stored, and how much a second, on one line of stderr; without a terminal
    it is a line now and then, if it is asked for."""

    def __init__(self, size: int, shows: bool | None) -> None:
        self._is_drawn = sys.stderr.isatty() and shows is not False
        self._shows = self._is_drawn or shows is True
        self._every_s = RATES_EVERY_S if self._is_drawn else RATES_LOGGED_EVERY_S
        self._size = size
        self._before = (monotonic_ns(), 0, 0)
        self._has_line = False

    def show(self, summary: Summary) -> None:
        """Shows the sums, if it is time."""
        now = monotonic_ns()
        seconds = (now - self._before[0]) / 1e9
        if not self._shows or seconds < self._every_s:
            return
        _, records_before, bytes_before = self._before
        self._before = (now, summary.records, summary.bytes)
        share = f" ({min(100, 100 * summary.bytes // self._size)} %)" if self._size else ""
        text = (
            f"{counted_text(summary.records, 'record')}, {bytes_text(summary.bytes)}{share};"
            f" {count_text((summary.records - records_before) / seconds)} records/s,"
            f" {(summary.bytes - bytes_before) / seconds / 1e6:.1f} MB/s"
        )
        if self._is_drawn:
            draw_line(text)
            self._has_line = True
        else:
            say(text)

    def say(self, text: str) -> None:
        """A message, on a line of its own."""
        self.end()
        say(text)

    def end(self) -> None:
        """Leaves the line."""
        if self._has_line:
            self._has_line = False
            echo("", err=True)
