"""A compaction from its start to its report, for the command and spark-submit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.access.ledger_access import LedgerAccess
from compaction.access.settings import LakeSettings
from compaction.run.backlog import Backlog, look
from compaction.run.report import RunReport
from compaction.run.run import Progress, Run, run_bytes_of
from compaction.run.session import check_extra
from shards.clock import monotonic_ns

if TYPE_CHECKING:
    from compaction.tables.lake import Lake


def compact(
    opened: Callable[[], AbstractContextManager[LedgerAccess]],
    writable: Callable[[], AbstractContextManager[LedgerAccess]],
    settings: LakeSettings, report: RunReport, *,
    master: str | None, chosen: frozenset[str], progress: Progress,
) -> None:  # fmt: skip
    """One run, or with ``report.dry_run`` what one would do; fills the report.

    ``opened`` gives the ledger to look at, ``writable`` the one to change and back up: a run that
    has nothing to do writes nothing, and starts neither Java nor Spark. Raises SparkMissing,
    NoJava, UnknownTopics, RunUnfinished, RunLost, StoreIsEmpty, LakeError, TaskFailed, SparkFailed,
    NotBackedUp, LedgerError, StoreError, DaemonRefused, DaemonUnreachable.
    """
    began_ns = monotonic_ns()
    with opened() as access:
        own_catalog = settings.catalog_uri is None and settings.catalog_name is None
        ready = look(access, chosen, own_catalog)
    if report.dry_run:
        report.objects = ready.objects
        report.bytes_compacted = ready.bytes
        report.would_compact = ready.topics
    elif ready.objects or ready.unfinished:
        check_extra()
        with writable() as access:
            _compact(access, settings, ready, report, master, chosen, progress)
    report.usd = report.requests.usd(settings.prices)
    report.seconds = (monotonic_ns() - began_ns) / 1e9
    if report.spark_seconds:
        report.mb_per_second = report.bytes_compacted / report.spark_seconds / 1e6


def _compact(
    access: LedgerAccess, settings: LakeSettings, ready: Backlog, report: RunReport,
    master: str | None, chosen: frozenset[str], progress: Progress,
) -> None:  # fmt: skip
    from compaction.tables.lake import open_lake

    report.bytes_compacted = ready.bytes
    with open_lake(settings, access) as lake:
        run = Run(access, settings, ready.to_commit, chosen, report)
        run.begin()
        try:
            run.reconcile(lake)
            if ready.objects:
                _with_spark(settings, master, run, lake, report, progress)
            run.end()
        finally:
            run.stop()


def _with_spark(
    settings: LakeSettings, master: str | None, run: Run, lake: Lake, report: RunReport,
    progress: Progress,
) -> None:  # fmt: skip
    from compaction.run.java import find_java
    from compaction.run.session import spark_session
    from compaction.run.splits import SplitLimits

    began_ns = monotonic_ns()
    java = find_java()
    report.java = str(java)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-compact-") as scratch,
        spark_session(master, Path(scratch), app_name="headgate compact", java=java) as spark,
    ):
        report.start_up_seconds = (monotonic_ns() - began_ns) / 1e9
        report.master = str(spark.sparkContext.master)
        cores = spark.sparkContext.defaultParallelism
        limits = SplitLimits(split_bytes=run_bytes_of(settings, cores))
        run.rounds(lake, spark, cores, limits, progress)
