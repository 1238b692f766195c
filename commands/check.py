"""``headgate check`` and ``headgate gc``: what they open, and what they print.

The work is ``daemon/upkeep/check.py``'s, and that of ``daemon/upkeep/collect.py`` and its two
neighbors. Both work while a daemon runs.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from commands.objects import opened_store
from commands.shell.exits import FAILED
from commands.shell.options import loaded, output_option, place_options
from commands.shell.output import (
    NAMED_MAX,
    bytes_text,
    count_text,
    duration_text,
    print_json,
    progress,
)
from daemon.config import Config
from daemon.upkeep.check import Check
from daemon.upkeep.check import Report as CheckReport
from daemon.upkeep.collect import Collection
from daemon.upkeep.collect import Report as CollectReport
from daemon.upkeep.collect_lake import LakeCollection
from daemon.upkeep.collect_spent import SpentCollection
from daemon.upkeep.cover import Cover, covering, may_collect
from daemon.upkeep.exclusive import opened_ledger
from daemon.upkeep.recover import sleep_s
from daemon.upkeep.retention import CLOCK_NOTE
from daemon.upkeep.upkeep import clocks
from ledger import ages, notes
from ledger.errors import LedgerMissing
from ledger.lake import runs
from ledger.ledger import Ledger
from shards.clock import monotonic_ns
from uploader.stores.counted import CountedStore


@click.command()
@place_options
@click.option("--deep", is_flag=True, help="Read every object and verify every byte.")
@output_option
@click.pass_context
def check(context: click.Context, /, deep: bool, as_json: bool, **options: Any) -> None:
    """Compare the ledger with the store and report every problem.

    It writes nothing, and works with and without a running daemon. Exit code 1 if there is a
    problem.

    \b
    Examples:
      headgate check --data /var/lib/headgate
      headgate check --data /var/lib/headgate --deep -o json
    """
    report = compare(loaded(**options), deep=deep)
    if as_json:
        print_json(report)
    else:
        click.echo(check_text(report))
    context.exit(0 if report.sound else FAILED)


def compare(config: Config, *, deep: bool) -> CheckReport:
    """Compares ledger and store. Raises LedgerError, StoreError."""
    with opened_ledger(config) as access, opened_store(config) as store:
        return Check(config, access, store, sleep_s, deep=deep).run(
            lambda length: progress(length, "objects")
        )


def check_text(report: CheckReport) -> str:
    """The report for people: counts, then each problem with what to do."""
    read = "each read" if report.deep else "sizes compared; --deep reads them"
    where = f"a daemon runs, pid {report.daemon_pid}" if report.daemon_pid else "no daemon runs"
    lines = [
        f"{report.data_dir} against {report.store} ({where})",
        f"  objects   {count_text(report.objects)} of {bytes_text(report.object_bytes)}, {read}",
        (
            f"  others    {count_text(report.orphans)} orphans, {count_text(report.in_flight)} in"
            f" flight, {count_text(report.named_for_deletion)} named for deletion,"
            f" {count_text(report.foreign)} foreign"
        ),
        f"  offsets   {count_text(report.gaps_declared)} declared gaps",
    ]
    last = report.last_entry
    if last is not None:
        lines.append(
            f"  log       {count_text(report.entries)} entries, the last ({last.kind})"
            f" {duration_text(last.age_s * 1000)} ago by {last.host}, pid {last.pid}"
        )
    kinds = dict.fromkeys(problem.kind for problem in report.problems)
    for kind in kinds:
        some = [problem for problem in report.problems if problem.kind == kind]
        lines.append(f"{kind.upper()}: {some[0].hint}")
        lines += [f"  {problem.problem}" for problem in some[:NAMED_MAX]]
        if len(some) > NAMED_MAX:
            lines.append(f"  and {count_text(len(some) - NAMED_MAX)} more")
    total = len(report.problems) + report.problems_more
    many = f"{count_text(total)} problem{'s' if total != 1 else ''}"
    lines.append(f"{'sound' if report.sound else many}, {report.seconds:.1f} s")
    return "\n".join(lines)


def collect(config: Config, *, dry_run: bool, accept_clock: bool = False) -> CollectReport:
    """Deletes what nothing needs, or says what. Raises CommandFailed, LedgerError, StoreError."""
    began_ns = monotonic_ns()
    report = CollectReport(dry_run)
    with opened_store(config) as opened:
        store = CountedStore(opened)
        report.requests = store.requests
        _collect(config, store, report, dry_run=dry_run, accept_clock=accept_clock)
    report.usd = report.requests.usd(store.url)
    report.seconds = (monotonic_ns() - began_ns) / 1e9
    return report


def _collect(
    config: Config, store: CountedStore, report: CollectReport, *, dry_run: bool, accept_clock: bool
) -> None:
    if not Path(config.ledger_path).exists():
        raise LedgerMissing(Path(config.ledger_path))
    with contextlib.ExitStack() as stack:
        if dry_run:
            ledger = Ledger(Path(config.ledger_path), contextlib.nullcontext(), must_exist=True)
            stack.enter_context(contextlib.closing(ledger))
            report.daemon_pid, report.epoch_floor = may_collect(config, ledger, store, sleep_s)
            collector = Collector(config, ledger, store, report, None)
        else:
            ledger, cover = stack.enter_context(covering(config, store, sleep_s))
            report.daemon_pid = cover.daemon_pid
            if accept_clock:
                ledger.write(notes.put, CLOCK_NOTE, "")
            collector = Collector(config, ledger, store, report, cover)
        collector.run()


class Collector:
    """All parts of one collection, in order. Without a cover it is a look."""

    def __init__(
        self, config: Config, ledger: Ledger, store: CountedStore, report: CollectReport,
        cover: Cover | None,
    ) -> None:  # fmt: skip
        self._report = report
        self._cover = cover
        now = clocks()
        ahead_ms = max(0, ledger.read(ages.now_ms, now) - now.wall_ms)

        def age_ms() -> int:
            return ledger.read(ages.now_ms, clocks())

        def store_age_ms() -> int:
            """Not above the clock by which a store dates what it takes."""
            return age_ms() - ahead_ms

        def compacting() -> bool:
            return ledger.read(runs.living, age_ms()) is not None

        what = (ledger, store, report, config.gc_grace_ms)
        self._spent = SpentCollection(*what, age_ms, sleep_s, compacting)
        self._orphans = Collection(*what, store_age_ms, sleep_s)
        self._lake = LakeCollection(config, ledger, report, age_ms, cover, ahead_ms)

    def run(self) -> None:
        """Objects first: copies of what was collected are orphans then."""
        if self._cover is None:
            self._spent.look()
            self._orphans.look(self._report.epoch_floor)
        else:
            floor = self._cover.raise_floor()
            floor = self._spent.collect(self._cover) or floor
            self._report.epoch_floor = floor
            self._orphans.collect(self._cover, floor)
        self._lake.run()


def collect_text(report: CollectReport) -> str:
    """The report for people."""
    orphans = report.orphans - report.young if report.dry_run else report.deleted
    going = orphans + report.collected
    verb = "would be deleted" if report.dry_run else "deleted"
    requests = report.requests
    lines = [
        (
            f"{count_text(report.objects)} objects below the epoch {report.epoch_floor},"
            f" {count_text(report.orphans)} orphans of {bytes_text(report.orphan_bytes)} among them"
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
            f" ({bytes_text(report.collected_bytes)}), {count_text(report.waiting)} wait for their"
            f" time, {count_text(report.kept_by_lease)} are kept for readers,"
            f" {count_text(report.quarantined)} in quarantine"
        ),
        (
            f"lake      {count_text(report.lake_files)} files {verb}"
            f" ({bytes_text(report.lake_bytes)}), {count_text(report.lake_snapshots)} snapshots"
            f" {'would expire' if report.dry_run else 'expired'}"
            + (f"; left alone, for {report.lake_skipped}" if report.lake_skipped else "")
        ),
    ]
    lines += [f"PROBLEM   {problem}" for problem in report.problems]
    lines.append(
        f"{count_text(requests.puts)} puts, {count_text(requests.lists)} lists,"
        f" {count_text(requests.gets)} gets, {count_text(requests.deletes)} deletes:"
        f" ${report.usd:.6f}, {report.seconds:.1f} s"
    )
    return "\n".join(lines)
