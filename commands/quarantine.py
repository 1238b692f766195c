"""``headgate quarantine``: its commands, what they open and print. The work is
``daemon/upkeep/quarantine.py``'s, imported by who needs it: pyarrow is of no use to other
commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from commands.shell.exits import FAILED, CommandFailed
from commands.shell.options import loaded, output_option, place_options, yes_option
from commands.shell.output import count_text, print_json, progress, table
from compaction.access.operations import NOW
from daemon.config import Config
from daemon.lake_settings import lake_settings
from daemon.upkeep.exclusive import opened_ledger
from ledger.lake import quarantine as ledger_quarantine
from ledger.lake.types import Quarantined
from ledger.tx import Transactions

if TYPE_CHECKING:
    from daemon.upkeep.quarantine import Outcome


class Row(Struct, frozen=True):
    """An element of ``quarantine ls -o json``."""

    topic: str
    topic_id: int
    partition: int
    first_offset: int
    last_offset: int
    key: str
    reason: str
    found_ms: int
    readable: bool


def rows(config: Config) -> list[Row]:
    """What is in quarantine, by object."""
    with opened_ledger(config) as ledger:
        return [
            Row(
                one.topic, one.hole.topic_id, one.hole.partition, one.hole.first_offset,
                one.hole.last_offset, one.hole.key, one.hole.reason, one.found_ms, one.readable,
            )
            for one in ledger.read(ledger_quarantine.rows)
        ]  # fmt: skip


def rows_text(found: Sequence[Row]) -> str:
    """The rows for people."""
    if not found:
        return "nothing is in quarantine"
    return table(
        ("topic", "partition", "offsets", "object", "since", "reason"),
        [
            (
                row.topic or f"(deleted, id {row.topic_id})", str(row.partition),
                f"{row.first_offset}-{row.last_offset}", row.key, _time(row.found_ms),
                row.reason if row.readable else f"evicted; {row.reason}",
            )
            for row in found
        ],
    )  # fmt: skip


def retry(config: Config, keys: Sequence[str], advance: Callable[[int], object]) -> list[Outcome]:
    """Reads objects again. Raises CommandFailed."""
    from compaction.run.session import SparkMissing

    settings = lake_settings(config)
    with opened_ledger(config) as access:
        found = _chosen(access, keys)
        if not found:
            return []
        try:
            from compaction.tables.lake import open_lake
            from daemon.upkeep.quarantine import Retry
        except ImportError as error:  # of pyiceberg, which only the extra brings
            raise SparkMissing from error
        outcomes: list[Outcome] = []
        with open_lake(settings, access) as lake:
            work = Retry(access, settings, lake)
            work.compare()
            for _, of_object in groupby(found, key=lambda one: one.hole.key):
                outcomes += work.retry(list(of_object))
                advance(1)
        return outcomes


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """What a retry did, for people."""
    if not outcomes:
        return "nothing is in quarantine"
    lines = [
        f"{one.outcome.upper()} offsets {one.first_offset} to {one.last_offset} of"
        f" {one.topic or 'a deleted topic'}, partition {one.partition}"
        + (f": {one.problem}" if one.problem else "")
        for one in outcomes
    ]
    kept = sum(one.outcome == "kept" for one in outcomes)
    back = sum(one.last_offset + 1 - one.first_offset for one in outcomes
               if one.outcome == "restored")  # fmt: skip
    return "\n".join(
        [*lines, f"{count_text(back)} records are back, {count_text(kept)} holes stay"]
    )


def held(config: Config, keys: Sequence[str]) -> list[Quarantined]:
    """The holes of these objects. Raises CommandFailed."""
    with opened_ledger(config) as ledger:
        return _chosen(ledger, keys)


def accept(config: Config, keys: Sequence[str]) -> list[Quarantined]:
    """Gives up the records of these objects. Raises CommandFailed."""
    with opened_ledger(config) as access:
        found = _chosen(access, keys)
        access.write(ledger_quarantine.accept, [one.hole for one in found], NOW)
        return found


def _chosen(ledger: Transactions, keys: Sequence[str]) -> list[Quarantined]:
    found = ledger.read(ledger_quarantine.rows)
    missing = sorted(set(keys) - {one.hole.key for one in found})
    if missing:
        raise CommandFailed(
            f"not in quarantine: {', '.join(missing)}", hint="`headgate quarantine ls` lists them"
        )
    return [one for one in found if not keys or one.hole.key in keys]


def _time(epoch_ms: int) -> str:
    if not epoch_ms:
        return "-"
    return datetime.fromtimestamp(epoch_ms / 1000, tz=UTC).isoformat(sep=" ", timespec="seconds")


@click.group()
def quarantine() -> None:
    """List, retry or give up records that a compaction could not read.

    \b
    Examples:
      headgate quarantine ls --data /var/lib/headgate
      headgate quarantine retry --data /var/lib/headgate
    """


@quarantine.command("ls")
@place_options
@output_option
def quarantine_ls(as_json: bool, **options: Any) -> None:
    """List what is in quarantine, by object.

    \b
    Example:
      headgate quarantine ls --data /var/lib/headgate
    """
    found = rows(loaded(**options))
    if as_json:
        print_json(found)
    else:
        click.echo(rows_text(found))


@quarantine.command("retry")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@place_options
@output_option
@click.pass_context
def quarantine_retry(
    context: click.Context, /, keys: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Read the given objects again, or all, and bring back their records.

    Records of objects that are whole now come into the topic's table and can be read again, each
    once. Exit code 1 if some stay in quarantine.

    \b
    Examples:
      headgate quarantine retry
      headgate quarantine retry l0/000000000000000001/1-0-2
    """
    config = loaded(**options)
    with progress(0, "objects") as advance:
        outcomes = retry(config, keys, advance)
    if as_json:
        print_json(outcomes)
    else:
        click.echo(outcomes_text(outcomes))
    context.exit(FAILED if any(one.outcome == "kept" for one in outcomes) else 0)


@quarantine.command("accept")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@yes_option
@place_options
@output_option
def quarantine_accept(keys: tuple[str, ...], yes: bool, as_json: bool, **options: Any) -> None:
    """Give up the records of the given objects permanently.

    Their offsets stay declared as lost, and `gc` may delete the objects.

    \b
    Example:
      headgate quarantine accept l0/000000000000000001/1-0-2
    """
    config = loaded(**options)
    if not yes and sys.stdin.isatty():
        count = sum(q.hole.last_offset + 1 - q.hole.first_offset
                    for q in held(config, keys))  # fmt: skip
        click.confirm(f"Give up {count} records permanently?", abort=True, err=True)
    holes = [q.hole for q in accept(config, keys)]
    if as_json:
        print_json(holes)
    else:
        count = sum(hole.last_offset + 1 - hole.first_offset for hole in holes)
        click.echo(f"{count} records of {len(set(keys))} objects are given up")
