"""``headgate produce``: sends records from a file or stdin."""

from __future__ import annotations

import secrets
from typing import Any

import click

from commands.client.http import Client
from commands.client.records import Format, batched, records, size_of
from commands.client.sender import BatchUnanswered, SendResume, Summary, parse_resume, send
from commands.output import bytes_text, counted_text, echo, print_json, progress, say
from commands.shell.exits import FAILED, UNREACHABLE, CommandFailed
from commands.shell.options import (
    client_option,
    output_option,
    parsed_by,
    topic_argument,
    wait_option,
)

SPANS_SHOWN_MAX = 8


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
@click.option("--key", "key_field", metavar="FIELD", help="The field of a record that is its key.")
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
    type=click.IntRange(1, 1 << 30),
    default=1 << 20,
    show_default=True,
    metavar="N",
    help="Most bytes of records in a request; a larger record is sent alone.",
)
@click.option(
    "--resume",
    metavar="RUN:LINE",
    callback=parsed_by(parse_resume),
    help="Continue a run of this command that ended, with the same file and options.",
)
@wait_option
@client_option
@output_option
def produce(
    topic: str,
    file: Any,
    form: Format,
    key_field: str | None,
    partition: int | None,
    batch: int,
    batch_bytes: int,
    resume: SendResume | None,
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
    client.say = say
    begin = resume or SendResume(secrets.token_hex(12), 1)
    source = (
        item for item in records(file, form, key_field) if item is None or item.line >= begin.line
    )
    with progress(size_of(file), "sent") as advance:
        summary, problem = send(
            client,
            topic,
            batched(source, batch, batch_bytes),
            run_id=begin.run_id,
            patience_ms=wait_s * 1000,
            partition=partition,
            progress=advance,
        )
    if as_json:
        print_json(summary)
    elif summary.records or problem is None:
        echo(_text(summary))
    if summary.error is not None:
        resumes = (
            f"the {summary.records} records before it are stored, and nothing after it; the same"
            f" command with --resume {summary.error.resume} continues there"
        )
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
