"""``headgate read``: prints the records of a topic."""

from __future__ import annotations

import click

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable
from commands.client.reader import ReadResume, Start, TopicReader, parse_resume, since_ms
from commands.output import print_lines, say
from commands.shell.exits import failure
from commands.shell.options import (
    client_option,
    from_seq_option,
    parsed_by,
    partition_option,
    reader_wait_option,
    records_option,
    since_option,
    topic_argument,
)
from delivery.filters import Filter, FilterError
from shards.clock import wall_ms

TAIL_MAX = 100_000  # a tail is held in memory


@click.command()
@topic_argument
@click.option("--follow", "-f", is_flag=True, help="Wait for new records, until Ctrl-C.")
@since_option
@click.option("--tail", type=click.IntRange(1, TAIL_MAX), metavar="N", help="The newest N records.")
@from_seq_option
@records_option
@partition_option
@click.option("--tag", metavar="PATTERN", help="Only records whose tag matches, with * and ?.")
@click.option("--node", metavar="PATTERN", help="Only records whose node matches.")
@click.option("--key", metavar="PATTERN", help="Only records whose key matches.")
@click.option("--format", "form", type=click.Choice(["ndjson", "lines"]), default="ndjson",
              show_default=True,
              help="The data as JSON, or texts without their quotes.")  # fmt: skip
@click.option("--with-meta", is_flag=True, help="Whole records, not only their data.")
@click.option(
    "--resume",
    metavar="POINT",
    callback=parsed_by(parse_resume),
    help="Continue a run that ended; overrides --since, --tail and --from-seq.",
)
@reader_wait_option
@client_option
def read(
    topic: str,
    follow: bool,
    since: str | None,
    tail: int | None,
    from_seq: int | None,
    records: int | None,
    partition: int | None,
    tag: str | None,
    node: str | None,
    key: str | None,
    form: str,
    with_meta: bool,
    resume: ReadResume | None,
    wait_s: float | None,
    client: Client,
) -> None:
    """Print the records of a topic as NDJSON.

    It starts at the first record by default. If the run ends early, the message names a resume
    point; the same command with --resume continues there.

    \b
    Examples:
      headgate read orders --tail 10 --follow
      headgate read orders --since 15m --with-meta
      headgate read logs --key 'host-1*' --tag error --format lines
      headgate read orders --follow --resume 7:0=120,1=98
    """
    if sum(choice is not None for choice in (since, tail, from_seq)) > 1:
        raise click.UsageError("use only one of --since, --tail and --from-seq")
    try:
        from_ts = None if since is None else since_ms(since, wall_ms())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    if with_meta and form == "lines":
        raise click.UsageError("--with-meta prints JSON: leave --format lines out")
    only = Filter(tag, node, key)
    try:
        only.check()
    except FilterError as error:
        raise click.BadParameter(str(error), param_hint=f"--{error.field}") from error
    client.say = say
    reader = TopicReader(
        client,
        topic,
        resume or Start(from_seq=from_seq, from_ts=from_ts, tail=tail),
        partition,
        patience_ms=(60 if wait_s is None else wait_s) * 1000,
        reach_ms=(wait_s or 0) * 1000,
        emit=print_lines,
        warn=say,
        with_meta=with_meta,
        as_text=form == "lines",
        only=only,
        records_max=records,
    )
    try:
        reader.read()
        if follow:
            reader.follow()
    except KeyboardInterrupt:
        pass  # how a person ends it: not a failure
    except (Refused, Unreachable, UnknownAnswer) as error:
        point = reader.resume()
        also = f"the same command with --resume {point} continues there" if point else ""
        raise failure(error, also) or error from error
