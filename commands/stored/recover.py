"""``headgate recover``: rebuilds the ledger from the store."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import click

from commands.output import count_text, limited, progress, say, show
from commands.shell.exits import FAILED
from commands.shell.options import loaded, output_option, place_options
from daemon.config import Config
from daemon.upkeep.directory import open_config_store, take_directory
from daemon.upkeep.recover import FOOTER_THREADS, RecoveryReport, sleep_s
from daemon.upkeep.recover import recover as rebuild
from shards import locks
from shards.locks import SharedLock


def _refuse_url(_: click.Context, __: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "recover takes no --url: it rebuilds a data directory of this machine that no daemon"
            " uses; name it with --data, and its store with --store"
        )


@click.command()
@place_options
@click.option(
    "--url", hidden=True, callback=_refuse_url, expose_value=False, help="Not taken by recover."
)
@click.option(
    "--take-over", is_flag=True, help="Take the store even from a daemon that is known to run."
)
@click.option("--allow-empty", is_flag=True, help="Accept a store that has no objects.")
@output_option
@click.pass_context
def recover(
    context: click.Context, /, take_over: bool, allow_empty: bool, as_json: bool, **options: Any
) -> None:
    """Rebuild the ledger from the store.

    No daemon may use the data directory. A ledger that is there is kept under another name. Exit
    code 1 if an object is damaged or missing; the rest is recovered.

    \b
    Examples:
      headgate recover --data /var/lib/headgate --store s3://my-bucket/headgate
      headgate recover --data /var/lib/headgate --store s3://my-bucket/headgate --take-over
    """
    report = _recovered(loaded(**options), take_over=take_over, allow_empty=allow_empty)
    show(report, as_json, text)
    context.exit(0 if report.sound else FAILED)


def _recovered(config: Config, *, take_over: bool, allow_empty: bool) -> RecoveryReport:
    with (
        closing(take_directory(config)) as lock_file,
        closing(open_config_store(config, threads=FOOTER_THREADS)) as store,
    ):
        return rebuild(
            config,
            SharedLock(lock_file, locks.LEDGER),
            store,
            take_over=take_over,
            allow_empty=allow_empty,
            sleep_s=_wait,
            progress=(lambda n: progress(n, "objects")) if sys.stderr.isatty() else None,
        )


def _wait(seconds: float) -> None:
    if seconds >= 1:
        say(f"waiting {seconds:.0f} s, so that a former owner of the store stops by itself")
    sleep_s(seconds)


def text(report: RecoveryReport) -> str:
    """The report for people."""
    found = f"{count_text(report.objects)} objects and {count_text(report.entries)} entries"
    rate = f"{report.seconds:.1f} s ({count_text(report.objects_per_second)} objects/s)"
    kinds = [
        ("listed", report.objects_listed, f"{count_text(report.records_listed)} records"),
        (
            "unlisted",
            report.objects_taken,
            f"{count_text(report.records_taken)} records, kept: they may have been acknowledged",
        ),
        ("orphan", report.objects_orphan, "never committed"),
        ("named", report.objects_named_for_deletion, "for deletion"),
    ]
    lines = [f"{found} in {rate}"]
    lines += [f"  {kind:<9} {count_text(count)} objects, {what}" for kind, count, what in kinds]
    if report.records_may_be_doubled:
        lines.append(
            f"{count_text(report.records_may_be_doubled)} of the unlisted records have neither an"
            " idempotency key nor an expected_seq nor a cursor, so they may be stored twice"
        )
    if report.records_void:
        lines.append(
            f"{count_text(report.records_void)} of the unlisted records are not stored: their"
            " expected_seq or the position of their cursor did not match"
        )
    if report.records_copied_again:
        lines.append(
            f"{count_text(report.records_copied_again)} of the unlisted records are not stored:"
            " they are copies, and their routers or subscriptions make them again"
        )
    if report.topics_restored:
        lines.append(
            "topics whose settings are in no entry, now with default settings: "
            + ", ".join(limited(report.topics_restored))
        )
    lines += limited(
        [f"gap       {g.topic}, partition {g.partition}: offsets {g.gap_from} to {g.gap_to}"
         for g in report.gaps]
    )  # fmt: skip
    lines += limited([f"CORRUPT   {p.key}: {p.problem}" for p in report.corrupt])
    lines += limited([f"MISSING   {key}" for key in report.missing])
    if report.tables_registered:
        lines.append(
            "tables of the lake that are registered in the catalog again: "
            + ", ".join(limited(report.tables_registered))
        )
    if report.kept_ledger is not None:
        lines.append(f"the previous ledger is kept as {report.kept_ledger}")
    return "\n".join(lines)
