"""``compaction/job.py`` that may stop itself: ``-m tests.e2e.remote_driver POINT ...``.

``no point`` runs to the end. ``stopped before a swap`` stops itself there, as by SIGSTOP from
outside, with two seconds left of its lease; once continued it goes on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import compaction.run.run_lease
from compaction import job
from compaction.access.operations import NOW
from compaction.access.via_daemon import ViaDaemon
from ledger.lake import catalog, runs

STOPPED = "stopped before a swap"
NO_POINT = "no point"
LEASE_MS = 2_000


def stop_before_a_swap() -> None:
    """The driver stops once, with its tables' files and metadata written."""
    operate = ViaDaemon._operate
    left = [1]

    def called(access: ViaDaemon, kind: str, function: Callable[..., Any], *rest: Any) -> Any:
        if function is catalog.swap and left:
            left.pop()
            compaction.run.run_lease.LEASE_MS = LEASE_MS
            assert access.run is not None
            access.write(runs.renew, access.run, NOW, LEASE_MS)
            os.kill(os.getpid(), signal.SIGSTOP)
        return operate(access, kind, function, *rest)

    ViaDaemon._operate = called  # type: ignore[method-assign, assignment]


def main() -> None:
    """Runs the job."""
    point, *arguments = sys.argv[1:]
    if point == STOPPED:
        stop_before_a_swap()
    sys.exit(job.main(arguments))


if __name__ == "__main__":
    main()
