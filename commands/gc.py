"""``headgate gc``: deletes what nothing needs any more (``daemon/upkeep/collection/``)."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import closing
from typing import Any

import click

from commands.shell.exits import FAILED
from commands.shell.options import loaded, output_option, place_options
from commands.shell.output import NAMED_MAX, bytes_text, count_text, show
from daemon.config import Config
from daemon.serve import open_config_store
from daemon.upkeep.collection import run
from daemon.upkeep.collection.orphans import TakenAtStart
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.exclusive import former_owner, opened_ledger, writable_ledger
from daemon.upkeep.recover import sleep_s
from daemon.upkeep.retention import CLOCK_NOTE
from ledger import epochs, notes
from ledger.types import LeaseId
from shards.clock import monotonic_ns
from uploader.ownership.ownerlog import Former
from uploader.stores.counted import CountedStore


@click.command()
@place_options
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted; write nothing.")
@click.option(
    "--accept-clock", is_flag=True, help="Trust the wall clock again after `status` says it jumped."
)
@output_option
@click.pass_context
def gc(
    context: click.Context, /, dry_run: bool, accept_clock: bool, as_json: bool, **options: Any
) -> None:
    """Delete objects and files that nothing needs any more.

    These are objects whose records are compacted, evicted or of deleted topics; objects that were
    never committed; and old snapshots and dropped files of the lake. Each is kept for gc_grace_ms
    first. Works with and without a running daemon. Exit code 1 if the lake has a problem.

    \b
    Examples:
      headgate gc --data /var/lib/headgate --dry-run
      headgate gc --data /var/lib/headgate
    """
    if dry_run and accept_clock:
        raise click.UsageError("--dry-run writes nothing, so it excludes --accept-clock")
    config = loaded(**options)
    began_ns = monotonic_ns()
    report = CollectionReport(dry_run)
    with closing(open_config_store(config)) as opened:
        store = CountedStore(opened)
        report.requests = store.requests
        if dry_run:
            _look(config, store, report)
        else:
            _collect(config, store, report, accept_clock=accept_clock)
    report.usd = report.requests.usd(config.store_prices)
    report.seconds = (monotonic_ns() - began_ns) / 1e9
    show(report, as_json, _text)
    context.exit(0 if report.sound else FAILED)


def _look(config: Config, store: CountedStore, report: CollectionReport) -> None:
    with opened_ledger(config) as ledger:
        report.daemon_pid = ledger.daemon_pid
        former = former_owner(config, ledger, store, sleep_s)
        live_leases: Callable[[], Container[LeaseId]] = ledger.live_leases
        if ledger.daemon_pid is None and former is Former.REBOOTED:
            last = max(ledger.read(epochs.incarnations), default=0)
            taken = TakenAtStart(last, ledger.read(epochs.floor))
            live_leases = lambda: taken  # noqa: E731
        run.collect(config, ledger, store, report, live_leases)


def _collect(
    config: Config, store: CountedStore, report: CollectionReport, *, accept_clock: bool
) -> None:
    with writable_ledger(config, store, sleep_s) as ledger:
        report.daemon_pid = ledger.daemon_pid
        if accept_clock:
            ledger.write(notes.put, CLOCK_NOTE, "")
        run.collect(config, ledger, store, report, ledger.live_leases)


def _text(report: CollectionReport) -> str:
    orphans = report.orphans - report.young if report.dry_run else report.deleted
    going = orphans + report.collected
    verb = "would be deleted" if report.dry_run else "deleted"
    requests = report.requests
    lines = [
        (
            f"{count_text(report.objects)} objects, among them {count_text(report.orphans)} orphans"
            f" of {bytes_text(report.orphan_bytes)}"
        )
    ]
    lines += [f"  {key}" for key in report.keys[:NAMED_MAX]]
    if going > NAMED_MAX:
        lines.append(f"  and {count_text(going - NAMED_MAX)} more")
    lines += [
        (
            f"orphans   {count_text(orphans)} {verb}, {count_text(report.young)} too young"
            f" (gc_grace_ms), {count_text(report.foreign)} foreign and left alone"
        ),
        (
            f"objects   {count_text(report.collected)} {verb} that nothing needs any more"
            f" ({bytes_text(report.collected_bytes)}), {count_text(report.waiting)} within"
            f" their grace, {count_text(report.kept_by_lease)} kept for readers,"
            f" {count_text(report.quarantined)} in quarantine"
        ),
        (
            f"lake      {count_text(report.lake_files)} files {verb}"
            f" ({bytes_text(report.lake_bytes)}), {count_text(report.lake_snapshots)} snapshots"
            f" {'would expire' if report.dry_run else 'expired'}"
            + (f"; left alone: {report.lake_skipped}" if report.lake_skipped else "")
        ),
    ]
    lines += [f"PROBLEM   {problem}" for problem in report.problems]
    lines.append(
        f"{count_text(requests.puts)} puts, {count_text(requests.lists)} lists,"
        f" {count_text(requests.gets)} gets, {count_text(requests.deletes)} deletes:"
        f" ${report.usd:.6f}, {report.seconds:.1f} s"
    )
    return "\n".join(lines)
