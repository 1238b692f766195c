"""``spark-submit compaction/job.py --url URL``: a whole compaction in a given session, anywhere.

The driver needs HTTP to the daemon, the object store, and Headgate's environment; it opens no file
of the data directory. ``--url`` is the daemon's address, or ``unix:PATH`` of its socket; ``--data``
finds the socket of the daemon that has a directory. Master, memory and packages are spark-submit's;
executors need what `make spark-archive` packs (docs/lake.md). Without a daemon there is
``headgate compact``.

It prints the report as JSON. Exit code 0: everything is in the tables; 1: something is not, or
nothing was done, and standard error says why.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Runs one compaction; returns the exit code."""
    import msgspec

    from compaction.access.http_calls import DaemonRefused, DaemonUnreachable, socket_address
    from compaction.access.ledger_access import NotBackedUp
    from compaction.access.via_daemon import ViaDaemon
    from compaction.inputs.objects import StoreFailed
    from compaction.run.backlog import UnknownTopics
    from compaction.run.driver import TaskFailed
    from compaction.run.java import NoJava
    from compaction.run.report import RunReport
    from compaction.run.run import StoreIsEmpty
    from compaction.run.session import SparkFailed, SparkMissing
    from compaction.run.start import compact
    from compaction.tables.errors import LakeError
    from ledger.errors import LedgerError
    from uploader.stores.base import StoreError

    asked = _parsed(arguments)
    address = asked.url or socket_address(asked.data)
    report = RunReport(asked.dry_run)
    try:
        access = ViaDaemon(address)
        settings = access.settings
        if asked.catalog_uri is not None:
            settings = msgspec.structs.replace(settings, catalog_uri=asked.catalog_uri)
        compact(
            lambda: contextlib.nullcontext(access), lambda: contextlib.nullcontext(access),
            settings, report, master=asked.master, chosen=frozenset(asked.topic),
            progress=lambda _: contextlib.nullcontext(lambda _: None),
        )  # fmt: skip
    except LakeError as error:
        return _failed(f"{error.problem}\n  hint: {error.hint}")
    except (
        DaemonRefused, DaemonUnreachable, LedgerError, NoJava, NotBackedUp, SparkFailed,
        SparkMissing, StoreError, StoreFailed, StoreIsEmpty, TaskFailed, UnknownTopics,
    ) as error:  # fmt: skip
        return _failed(str(error))
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0 if report.sound else 1


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "job.py", description="Compact what a daemon has acknowledged into Iceberg tables."
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="the daemon: http://HOST:PORT, or unix:PATH of its socket")
    where.add_argument("--data", help="the data directory of a daemon on this machine")
    parser.add_argument("--topic", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be compacted")
    parser.add_argument("--master", help="Spark's master, where spark-submit does not give one")
    parser.add_argument(
        "--catalog-uri", help="the Iceberg catalog with its password, which the daemon tells nobody"
    )
    return parser.parse_args(arguments)


def _failed(message: str) -> int:
    sys.stderr.write(f"job.py: {message}\n")
    return 1


if __name__ == "__main__":
    # A script's own folder comes first on the path, where its modules would be top-level names.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.exit(main(sys.argv[1:]))
