"""``headgate quarantine``: lists, retries and gives up what a compaction could not read.

The work of a retry is in ``daemon/upkeep/quarantine.py``. It needs pyiceberg, which the other
commands do without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from commands.output import count_text, progress, show, table, time_text
from commands.shell.exits import FAILED, CommandFailed
from commands.shell.options import loaded, output_option, place_options, yes_option
from compaction.access.ledger_access import LedgerAccess
from compaction.access.operations import NOW
from compaction.access.settings import LakeSettings
from compaction.run.run import new_run
from compaction.run.run_lease import RunLease
from compaction.run.session import SparkMissing
from daemon.config.lake_settings import lake_settings
from daemon.upkeep.exclusive import opened_ledger
from ledger.lake import pages
from ledger.lake import quarantine as ledger_quarantine
from ledger.lake.types import Quarantined

if TYPE_CHECKING:
    from daemon.upkeep.quarantine import RetryOutcome


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
    with opened_ledger(loaded(**options)) as access:
        rows = [
            Row(
                one.topic, one.hole.topic_id, one.hole.partition, one.hole.first_offset,
                one.hole.last_offset, one.hole.key, one.hole.reason, one.found_ms, one.readable,
            )
            for one in pages.quarantined(access)
        ]  # fmt: skip
    show(rows, as_json, _rows_text)


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
    with opened_ledger(config) as access:
        outcomes = _retried(lake_settings(config), access, _chosen(access, keys))
    show(outcomes, as_json, _outcomes_text)
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
    with opened_ledger(loaded(**options)) as access:
        holes = [one.hole for one in _chosen(access, keys)]
        count = sum(hole.last_offset + 1 - hole.first_offset for hole in holes)
        if not yes and sys.stdin.isatty():
            click.confirm(f"Give up {count} records permanently?", abort=True, err=True)
        lease = RunLease(access, new_run())
        lease.begin("quarantine")  # refused during a compaction, which may restore the same records
        try:
            access.write(ledger_quarantine.accept, holes, NOW)
            lease.end()
        finally:
            lease.stop()
    done = f"{count} records of {len(set(keys))} objects are given up"
    show(holes, as_json, lambda _: done)


def _chosen(access: LedgerAccess, keys: Sequence[str]) -> list[Quarantined]:
    """What is in quarantine of these objects, or of all. Raises CommandFailed."""
    found = pages.quarantined(access)
    missing = sorted(set(keys) - {one.hole.key for one in found})
    if missing:
        raise CommandFailed(
            f"not in quarantine: {', '.join(missing)}", hint="`headgate quarantine ls` lists them"
        )
    return [one for one in found if not keys or one.hole.key in keys]


def _retried(
    settings: LakeSettings, access: LedgerAccess, chosen: list[Quarantined]
) -> list[RetryOutcome]:
    if not chosen:
        return []
    try:
        from compaction.tables.lake import open_lake
        from daemon.upkeep.quarantine import QuarantineRetry
    except ImportError as error:  # of pyiceberg, which only the extra brings
        raise SparkMissing from error
    by_object = [list(each) for _, each in groupby(chosen, key=lambda one: one.hole.key)]
    outcomes: list[RetryOutcome] = []
    with open_lake(settings, access) as lake, progress(len(by_object), "objects") as advance:
        work = QuarantineRetry(access, settings, lake)
        work.compare()
        for each in by_object:
            outcomes += work.retry(each)
            advance(1)
    return outcomes


def _rows_text(rows: Sequence[Row]) -> str:
    if not rows:
        return "nothing is in quarantine"
    return table(
        ("topic", "partition", "offsets", "object", "since", "reason"),
        [
            (
                row.topic or f"(deleted, id {row.topic_id})", str(row.partition),
                f"{row.first_offset}-{row.last_offset}", row.key,
                time_text(row.found_ms) if row.found_ms else None,
                row.reason if row.readable else f"evicted; {row.reason}",
            )
            for row in rows
        ],
    )  # fmt: skip


def _outcomes_text(outcomes: Sequence[RetryOutcome]) -> str:
    if not outcomes:
        return "nothing is in quarantine"
    lines = [
        f"{one.outcome.upper()} offsets {one.first_offset} to {one.last_offset} of"
        f" {one.topic or 'a deleted topic'}, partition {one.partition}"
        + (f": {one.problem}" if one.problem else "")
        for one in outcomes
    ]
    kept = sum(one.outcome == "kept" for one in outcomes)
    back = sum(
        one.last_offset + 1 - one.first_offset for one in outcomes if one.outcome == "restored"
    )
    return "\n".join(
        [*lines, f"{count_text(back)} records are back, {count_text(kept)} holes stay"]
    )
