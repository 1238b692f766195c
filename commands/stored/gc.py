"""``headgate gc``: deletes what nothing needs any more (``daemon/upkeep/collection/``)."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import click

from commands.output import NAMED_MAX, bytes_text, count_text, show
from commands.shell.exits import FAILED
from commands.shell.options import (
    daemon_url_option,
    loaded,
    output_option,
    place_options,
    refuse_with_url,
)
from compaction.access.ledger_access import LedgerAccess
from compaction.access.via_daemon import ViaDaemon
from daemon.config import Config
from daemon.config.lake_settings import lake_settings
from daemon.upkeep.collection import run
from daemon.upkeep.collection.orphans import TakenAtStart
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.directory import open_config_store
from daemon.upkeep.exclusive import former_owner, opened_ledger, writable_ledger
from daemon.upkeep.recover import sleep_s
from daemon.upkeep.retention import CLOCK_NOTE
from ledger import epochs, notes
from ledger.types import LeaseId
from shards.clock import monotonic_ns
from uploader.ownership.ownerlog import Former
from uploader.stores import open_store
from uploader.stores.base import ObjectStore
from uploader.stores.counted import CountedStore

Access = AbstractContextManager[LedgerAccess]


@click.command()
@place_options
@daemon_url_option
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted; write nothing.")
@click.option(
    "--accept-clock", is_flag=True, help="Trust the wall clock again after `status` says it jumped."
)
@output_option
@click.pass_context
def gc(
    context: click.Context,
    /,
    url: str | None,
    dry_run: bool,
    accept_clock: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Delete objects and files that nothing needs any more.

    These are objects whose records are compacted, evicted or of deleted topics; objects that were
    never committed; and old snapshots and dropped files of the lake. Each is kept for gc_grace_ms
    first. Works with and without a running daemon. Exit code 1 if the lake has a problem.

    With --url, from another machine, the daemon must have admin_over_tcp = true.

    \b
    Examples:
      headgate gc --data /var/lib/headgate --dry-run
      headgate gc --data /var/lib/headgate
      headgate gc --url http://daemon:7440
    """
    if dry_run and accept_clock:
        raise click.UsageError("--dry-run writes nothing, so it excludes --accept-clock")
    began_ns = monotonic_ns()
    report = CollectionReport(dry_run)
    if url is not None:
        refuse_with_url(options)
        daemon = ViaDaemon(url)
        access: Access = nullcontext(daemon)
        settings = daemon.settings
        opened: ObjectStore = open_store(
            settings.store_url, endpoint_url=settings.s3_endpoint_url, region=settings.s3_region
        )
    else:
        config = loaded(**options)
        settings = lake_settings(config)
        opened = open_config_store(config)
    with closing(opened):
        store = CountedStore(opened)
        report.requests = store.requests
        if url is None:
            access = opened_ledger(config) if dry_run else writable_ledger(config, store, sleep_s)
        with access as ledger:
            report.daemon_pid = ledger.daemon_pid
            live_leases: Callable[[], Container[LeaseId]] = ledger.live_leases
            if dry_run and url is None:
                live_leases = _leases_at_start(config, ledger, store)
            if accept_clock:
                ledger.write(notes.put, CLOCK_NOTE, "")
            run.collect(settings, ledger, store, report, live_leases)
    report.usd = report.requests.usd(settings.prices)
    report.seconds = (monotonic_ns() - began_ns) / 1e9
    show(report, as_json, _text)
    context.exit(0 if report.sound else FAILED)


def _leases_at_start(
    config: Config, ledger: LedgerAccess, store: CountedStore
) -> Callable[[], Container[LeaseId]]:
    """The leases that live; without a daemon after a boot, those that a start would take over."""
    former = former_owner(config, ledger, store, sleep_s)
    if ledger.daemon_pid is not None or former is not Former.REBOOTED:
        return ledger.live_leases
    last = max(ledger.read(epochs.incarnations), default=0)
    taken = TakenAtStart(last, ledger.read(epochs.floor))
    return lambda: taken


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
