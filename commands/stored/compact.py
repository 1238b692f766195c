"""``headgate compact``: its options and what it prints. The work is done in ``compaction/run/``.

It asks the daemon that has the data directory, and without one holds the directory itself. Spark
and pyiceberg are the extra ``spark``; a run that has nothing to do starts neither.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from functools import partial
from importlib import metadata
from typing import Any

import click
from msgspec import Struct

from commands.output import (
    NAMED_MAX,
    bytes_text,
    count_text,
    duration_text,
    limited,
    progress,
    show,
    table,
)
from commands.shell.exits import FAILED
from commands.shell.options import (
    daemon_url_option,
    loaded,
    output_option,
    place_options,
    refuse_with_url,
)
from compaction.access.via_daemon import ViaDaemon
from compaction.run import start
from compaction.run.java import find_java
from compaction.run.report import FileSizes, RunReport
from compaction.run.session import check_extra
from daemon.config.lake_settings import lake_settings
from daemon.upkeep.directory import open_config_store
from daemon.upkeep.exclusive import opened_ledger, writable_ledger
from daemon.upkeep.recover import sleep_s
from uploader.stores.counted import CountedStore


class Needs(Struct, frozen=True):
    """What ``compact --check`` prints: the installed versions, and the Java that is used."""

    pyspark: str
    pyiceberg: str
    java: str


@click.command()
@place_options
@daemon_url_option
@click.option("--master", metavar="URL", help="Spark's master; by default local, on all CPUs.")
@click.option("--topic", "chosen", metavar="TOPIC", multiple=True, help="Only these; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only say what would be compacted; write nothing.")
@click.option("--check", is_flag=True, help="Only check whether Spark and Java are installed.")
@output_option
@click.pass_context
def compact(
    context: click.Context,
    /,
    url: str | None,
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

    With --url, from another machine, the daemon must have admin_over_tcp = true.

    \b
    Examples:
      headgate compact --check
      headgate compact --data /var/lib/headgate
      headgate compact --data /var/lib/headgate --topic orders --dry-run
      headgate compact --url http://daemon:7440
    """
    if check:
        show(_needs(), as_json, _needs_text)
        return
    report = RunReport(dry_run)
    compacted = partial(
        start.compact, report=report, master=master, chosen=frozenset(chosen),
        progress=lambda n: progress(n, "compacting"),
    )  # fmt: skip
    if url is not None:
        refuse_with_url(options)
        access = ViaDaemon(url)
        compacted(lambda: nullcontext(access), lambda: nullcontext(access), access.settings)
    else:
        config = loaded(**options)
        with closing(open_config_store(config)) as opened:
            store = CountedStore(opened)
            report.requests = store.requests
            compacted(
                partial(opened_ledger, config), partial(writable_ledger, config, store, sleep_s),
                lake_settings(config),
            )  # fmt: skip
    show(report, as_json, _text)
    context.exit(0 if report.sound else FAILED)


def _needs() -> Needs:
    check_extra()
    return Needs(metadata.version("pyspark"), metadata.version("pyiceberg"), str(find_java()))


def _sizes_text(sizes: FileSizes) -> str:
    if not sizes.files:
        return "-"
    ends = " to ".join(dict.fromkeys(map(bytes_text, (sizes.smallest, sizes.largest))))
    return f"{count_text(sizes.files)} of {ends}"


def _text(report: RunReport) -> str:
    if report.dry_run:
        return _dry_text(report)
    if not (report.objects or report.made_up_for or report.registered) and report.sound:
        return (
            f"nothing to compact: everything acknowledged is in the tables, {report.seconds:.1f} s"
        )
    lines = []
    if report.tables:
        rows = [
            (t.topic, t.table, count_text(t.rows), count_text(t.files), bytes_text(t.bytes),
             count_text(t.rewritten), _sizes_text(t.files_now))
            for t in report.tables[:NAMED_MAX]
        ]  # fmt: skip
        lines.append(
            table(("topic", "table", "rows", "files", "size", "rewritten", "all files"), rows)
        )
        if len(report.tables) > NAMED_MAX:
            lines.append(f"and {count_text(len(report.tables) - NAMED_MAX)} more tables")
    lines += limited(
        [
            f"completed an earlier run: {name} was committed; readers are switched to it now"
            for name in report.made_up_for
        ]
    )
    lines += limited(
        [f"registered {name}, which the catalog had lost, again" for name in report.registered]
    )
    lines += limited(
        [
            f"QUARANTINED offsets {q.first_offset} to {q.last_offset} of {q.topic}, partition"
            f" {q.partition}: {q.problem}"
            for q in report.quarantined
        ]
    )
    lines += limited(
        [
            f"SET ASIDE ts of {count_text(s.records)} records of {s.topic}, partition"
            f" {s.partition}, offsets {s.first_offset} to {s.last_offset}: {s.value} ms is outside"
            " the years 1 to 9999 (is it microseconds?); the rows have the time of arrival instead"
            for s in report.set_aside
        ]
    )
    lines += limited(
        [f"NOT COMPACTED {f.topic}: {f.problem}\n  hint: {f.hint}" for f in report.failed]
    )
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


def _needs_text(found: Needs) -> str:
    return f"pyspark {found.pyspark}, pyiceberg {found.pyiceberg}, {found.java}"


def _dry_text(report: RunReport) -> str:
    if not report.objects:
        return "nothing to compact"
    rows = [(name, bytes_text(size)) for name, size in report.would_compact.items()]
    return table(("topic", "to compact"), rows) + (
        f"\n{count_text(report.objects)} objects with {bytes_text(report.bytes_compacted)}"
        " would be compacted"
    )
