"""``headgate recover``: the ledger rebuilt from the store, and the report of it.

Works on a data directory that no daemon uses. The work is ``daemon/upkeep/recover.py``'s.
"""

from __future__ import annotations

import contextlib
import sys

import click

from commands.exits import CommandFailed
from commands.output import count_text, progress
from daemon import serve
from daemon.config import Config
from daemon.upkeep.owner import OtherHistory
from daemon.upkeep.recover import FOOTER_THREADS, NothingThere, Report, recover, sleep_s
from ledger.log.entry import EntryError
from shards import locks
from shards.locks import SharedLock
from uploader.ownership.ownerlog import OwnedByAnother
from uploader.stores.open import open_store

NAMED_MAX = 20  # of a kind, for people; JSON has them all


def run(config: Config, *, take_over: bool, allow_empty: bool) -> Report:
    """Recovers into the data directory. Raises CommandFailed, LedgerError, StoreError."""
    try:
        with contextlib.closing(serve.take_directory(config)) as lock_file:
            store = open_store(
                config.store_url,
                endpoint_url=config.s3_endpoint_url,
                region=config.s3_region,
                threads=FOOTER_THREADS,
            )
            with contextlib.closing(store):
                return recover(
                    config,
                    SharedLock(lock_file, locks.LEDGER),
                    store,
                    take_over=take_over,
                    allow_empty=allow_empty,
                    sleep_s=_wait,
                    progress=(lambda n: progress(n, "objects")) if sys.stderr.isatty() else None,
                )
    except OwnedByAnother as error:
        raise CommandFailed(
            str(error), hint="stop that daemon, or take the store from it with --take-over"
        ) from error
    except (serve.StartError, OtherHistory, NothingThere, EntryError) as error:
        raise CommandFailed(str(error)) from error


def _wait(seconds: float) -> None:
    if seconds >= 1:
        click.echo(
            f"headgate: waiting {seconds:.0f} s, in which the former owner would stop by itself",
            err=True,
        )
    sleep_s(seconds)


def text(report: Report) -> str:
    """The report for people."""
    found = f"{count_text(report.objects)} objects and {count_text(report.entries)} entries"
    rate = f"{report.seconds:.1f} s ({count_text(report.objects_per_second)} objects/s)"
    kinds = [
        ("listed", report.objects_listed, f"{count_text(report.records_listed)} records"),
        (
            "unlisted",
            report.objects_taken,
            f"{count_text(report.records_taken)} records, taken: they may have been acknowledged",
        ),
        ("orphan", report.objects_orphan, "never committed"),
        ("named", report.objects_named_for_deletion, "for deletion"),
    ]
    lines = [f"{found} in {rate}"]
    lines += [f"  {kind:<9} {count_text(count)} objects, {what}" for kind, count, what in kinds]
    if report.records_may_be_doubled:
        lines.append(
            f"{count_text(report.records_may_be_doubled)} of the unlisted records have neither an"
            " idempotency key nor an expected_seq, and may be doubled"
        )
    if report.records_void:
        lines.append(
            f"{count_text(report.records_void)} of the unlisted records are not stored: their"
            " expected_seq did not hold"
        )
    if report.topics_restored:
        lines.append(
            "topics whose settings no entry has, now with the default ones: "
            + _named(report.topics_restored)
        )
    lines += _limited(
        [f"gap       {g.topic}, partition {g.partition}: offsets {g.gap_from} to {g.gap_to}"
         for g in report.gaps]
    )  # fmt: skip
    lines += _limited([f"CORRUPT   {p.key}: {p.problem}" for p in report.corrupt])
    lines += _limited([f"MISSING   {key}" for key in report.missing])
    if report.kept_ledger is not None:
        lines.append(f"the ledger that was there is kept as {report.kept_ledger}")
    return "\n".join(lines)


def _named(names: list[str]) -> str:
    return ", ".join(_limited(names))


def _limited(lines: list[str]) -> list[str]:
    more = len(lines) - NAMED_MAX
    return [*lines[:NAMED_MAX], f"and {more} more"] if more > 0 else lines
