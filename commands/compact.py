"""``headgate compact``: its options and what it prints. The work is done in ``compaction/run/``.

It asks the daemon that has the data directory, and without one holds the directory itself. Spark
and pyiceberg are the extra ``spark``; a run that has nothing to do starts neither.
"""

from __future__ import annotations

from functools import partial
from importlib import metadata
from typing import Any

import click
from msgspec import Struct

from commands.objects import opened_store
from commands.shell.exits import FAILED, CommandFailed
from commands.shell.options import loaded, output_option, place_options
from commands.shell.output import (
    NAMED_MAX,
    bytes_text,
    count_text,
    duration_text,
    print_json,
    progress,
    table,
)
from compaction.run import start
from compaction.run.java import NoJava
from compaction.run.report import RunReport
from compaction.run.session import SparkMissing, check_extra
from daemon.config import Config
from daemon.lake_settings import lake_settings
from daemon.upkeep.exclusive import opened_ledger, writable_ledger
from daemon.upkeep.recover import sleep_s
from uploader.stores.counted import CountedStore


@click.command()
@place_options
@click.option("--master", metavar="URL", help="Spark's master; by default local, on all CPUs.")
@click.option("--topic", "chosen", metavar="TOPIC", multiple=True, help="Only these; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only say what would be compacted; write nothing.")
@click.option("--check", is_flag=True, help="Only check whether Spark and Java are installed.")
@output_option
@click.pass_context
def compact(
    context: click.Context,
    /,
    master: str | None,
    chosen: tuple[str, ...],
    dry_run: bool,
    check: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write committed records into Iceberg tables.

    It compacts everything that was acknowledged before it began, exactly once, even if a run is
    killed and repeated. Works with and without a running daemon. Exit code 1 if an object is
    damaged or a topic could not be compacted; the rest is done.

    \b
    Examples:
      headgate compact --check
      headgate compact --data /var/lib/headgate
      headgate compact --data /var/lib/headgate --topic orders --dry-run
    """
    config = loaded(**options)
    if check:
        found = needs()
        print_json(found) if as_json else click.echo(needs_text(found))
        return
    report = run_compaction(config, master=master, chosen=frozenset(chosen), dry_run=dry_run)
    if as_json:
        print_json(report)
    else:
        click.echo(compact_text(report))
    context.exit(0 if report.sound else FAILED)


def run_compaction(
    config: Config, *, master: str | None, chosen: frozenset[str], dry_run: bool
) -> RunReport:
    """One run, or what one would do. Raises CommandFailed, LedgerError, StoreError."""
    report = RunReport(dry_run)
    with opened_store(config) as opened:
        store = CountedStore(opened)
        report.requests = store.requests
        start.compact(
            partial(opened_ledger, config), partial(writable_ledger, config, store, sleep_s),
            lake_settings(config), report, master=master, chosen=chosen,
            progress=lambda n: progress(n, "compacting"),
        )  # fmt: skip
    return report


class Needs(Struct, frozen=True):
    """What a compaction needs beside the wheel: the versions that are installed, and the Java."""

    pyspark: str
    pyiceberg: str
    java: str


def needs() -> Needs:
    """What there is of it. Raises CommandFailed where something is missing."""
    from compaction.run.java import find_java

    try:
        check_extra()
        java = find_java()
    except (SparkMissing, NoJava) as error:
        raise CommandFailed(str(error)) from error
    return Needs(metadata.version("pyspark"), metadata.version("pyiceberg"), str(java))


def compact_text(report: RunReport) -> str:
    """The report for people."""
    if report.dry_run:
        return _dry_text(report)
    if not report.objects and not report.made_up_for and report.sound:
        return (
            f"nothing to compact: everything acknowledged is in the tables, {report.seconds:.1f} s"
        )
    lines = []
    if report.tables:
        rows = [
            (t.topic, t.table, count_text(t.rows), count_text(t.files), bytes_text(t.bytes),
             count_text(t.rewritten))
            for t in report.tables[:NAMED_MAX]
        ]  # fmt: skip
        lines.append(table(("topic", "table", "rows", "files", "size", "rewritten"), rows))
        if len(report.tables) > NAMED_MAX:
            lines.append(f"and {count_text(len(report.tables) - NAMED_MAX)} more tables")
    lines += [
        f"completed an earlier run: {name} was committed; readers are switched to it now"
        for name in report.made_up_for[:NAMED_MAX]
    ]
    lines += [
        f"QUARANTINED offsets {q.first_offset} to {q.last_offset} of {q.topic}, partition"
        f" {q.partition}: {q.problem}"
        for q in report.quarantined[:NAMED_MAX]
    ]
    lines += [
        f"SET ASIDE ts of {count_text(s.records)} records of {s.topic}, partition {s.partition},"
        f" offsets {s.first_offset} to {s.last_offset}: {s.value} ms is outside the years 1 to"
        " 9999 (is it microseconds?); the rows have the time of arrival instead"
        for s in report.set_aside[:NAMED_MAX]
    ]
    for failed in report.failed[:NAMED_MAX]:
        lines += [f"NOT COMPACTED {failed.topic}: {failed.problem}", f"  hint: {failed.hint}"]
    kinds = (report.quarantined, report.set_aside, report.failed)
    more = sum(max(0, len(kind) - NAMED_MAX) for kind in kinds)
    if more:
        lines.append(f"and {count_text(more)} more problems (-o json has all)")
    requests = report.requests
    lines += [
        (
            f"{count_text(report.objects)} objects, {bytes_text(report.bytes_compacted)} compacted"
            f" ({bytes_text(report.bytes_read)} read) into {count_text(report.files)} files of"
            f" {bytes_text(report.bytes_written)}, {count_text(report.rows)} rows"
        ),
        (
            f"{duration_text(report.seconds * 1000)}: start"
            f" {duration_text(report.start_up_seconds * 1000)}, Spark"
            f" {duration_text(report.spark_seconds * 1000)} ({report.mb_per_second:.0f} MB/s),"
            f" tables {duration_text(report.commit_seconds * 1000)};"
            f" at most {bytes_text(report.peak_memory_bytes)} per task"
        ),
        (
            f"{count_text(requests.gets)} gets, {count_text(requests.puts)} puts,"
            f" {count_text(requests.lists)} lists: ${report.usd:.6f}; {report.java or 'no Java'}"
        ),
    ]
    return "\n".join(lines)


def needs_text(found: Needs) -> str:
    """The same for people."""
    return f"pyspark {found.pyspark}, pyiceberg {found.pyiceberg}, {found.java}"


def _dry_text(report: RunReport) -> str:
    if not report.objects:
        return "nothing to compact"
    rows = [(name, bytes_text(size)) for name, size in report.would_compact.items()]
    return table(("topic", "to compact"), rows) + (
        f"\n{count_text(report.objects)} objects with {bytes_text(report.bytes_compacted)}"
        " would be compacted"
    )
