"""``headgate watch``: prints the records of topics as they are committed."""

from __future__ import annotations

import click
import msgspec

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable, decoded, topic_path
from commands.client.reader import data_line, since_ms, whole_line
from commands.client.stream import Arrived, Told, WatchStream
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
    topics_argument,
)
from daemon.schemas.api import WatchAnswer, WatchedRequest, WatchRequest
from delivery.reading.followed import Key
from delivery.streams.events import WatchCaughtUp, WatchTombstone, WatchTopicDeleted
from delivery.streams.formats import NDJSON
from delivery.watch.positions import format_position, parse_position
from shards.clock import wall_ms


@click.command()
@topics_argument
@since_option
@from_seq_option
@records_option
@partition_option
@click.option("--tag", metavar="PATTERN", help="Records whose tag matches.")
@click.option("--node", metavar="PATTERN", help="Records whose node matches.")
@click.option("--key", metavar="PATTERN", help="Records whose key matches.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["data", "json"]),
    default="data",
    show_default=True,
    help="The data of records, or whole records and events.",
)
@click.option(
    "--resume",
    metavar="POSITION",
    callback=parsed_by(parse_position),
    help="Continue a run that ended; overrides --since and --from-seq.",
)
@reader_wait_option
@client_option
def watch(
    topics: tuple[str, ...],
    since: str | None,
    from_seq: int | None,
    records: int | None,
    partition: int | None,
    tag: str | None,
    node: str | None,
    key: str | None,
    output: str,
    resume: dict[Key, int] | None,
    wait_s: float | None,
    client: Client,
) -> None:
    """Print the records of topics as they are committed, as NDJSON.

    It begins with the next record by default. In a PATTERN, * stands for any text and ? for one
    character. If the run ends early, the message names a position; the same command with --resume
    continues there.

    \b
    Examples:
      headgate watch orders
      headgate watch orders payments --key 'customer-17*' -o json
      headgate watch orders --since 15m -n 100
    """
    if since is not None and from_seq is not None:
        raise click.UsageError("use only one of --since and --from-seq")
    try:
        from_ts = None if since is None else since_ms(since, wall_ms())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    client.say = say
    asked = WatchRequest(
        [WatchedRequest(topic, partition, from_seq, from_ts) for topic in dict.fromkeys(topics)],
        tag, node, key,
    )  # fmt: skip
    reach_ms = (wait_s or 0) * 1000
    stream: WatchStream | None = None
    try:
        path, query, ids = _address(client, asked, reach_ms)
        stream = WatchStream(
            client, path, query, ids, resume or {},
            patience_ms=(60 if wait_s is None else wait_s) * 1000, reach_ms=reach_ms,
        )  # fmt: skip
        _print(stream, records, output == "json")
    except KeyboardInterrupt:
        pass  # how a person ends it: not a failure
    except (Refused, Unreachable, UnknownAnswer) as error:
        position = format_position(stream.position) if stream is not None else ""
        also = f"the same command with --resume '{position}' continues there" if position else ""
        raise failure(error, also) or error from error


def _address(
    client: Client, asked: WatchRequest, reach_ms: float
) -> tuple[str, dict[str, str], dict[str, int | None]]:
    """Path and query of the stream, and the ids of its topics."""
    if len(asked.topics) == 1:
        (one,) = asked.topics
        given = {
            "partition": one.partition, "from_seq": one.from_seq, "from_ts": one.from_ts,
            "tag": asked.tag, "node": asked.node, "key": asked.key,
        }  # fmt: skip
        query = {name: str(value) for name, value in given.items() if value is not None}
        return topic_path(one.topic, "watch"), query, {one.topic: None}
    body = client.call("POST", "/v0/watch", msgspec.json.encode(asked), patience_ms=reach_ms)
    answer = decoded(client, body, WatchAnswer)
    return answer.stream_url, {}, {each.topic: each.topic_id for each in answer.topics}


def _print(stream: WatchStream, records: int | None, as_json: bool) -> None:
    left = records
    for told in stream.told():
        if not isinstance(told, list):
            _print_event(told, as_json)
            continue
        shown = told if left is None else told[:left]
        print_lines([_line(each, as_json) for each in shown])
        if left is not None:
            left -= len(shown)
            if left <= 0:
                return


def _line(arrived: Arrived, as_json: bool) -> bytes:
    if as_json:
        return whole_line(arrived.partition, arrived.record, arrived.topic)
    return data_line(arrived.record)


def _print_event(told: Told, as_json: bool) -> None:
    match told:
        case WatchTombstone():
            gap = f"{told.gap_from} to {told.gap_to} of partition {told.partition} of {told.topic}"
            name, text = "tombstone", f"records {gap} are gone: {told.reason}"
        case WatchTopicDeleted():
            name, text = "topic-deleted", f"{told.topic} was deleted"
        case WatchCaughtUp():
            name, text = "caught-up", ""
        case _:
            return
    if as_json:
        print_lines([NDJSON.event(name, told).rstrip()])
    elif text:
        say(text)
