"""A process that commits one run to the table of the topic ``orders``, for tests that kill it.

    python -m tests.compaction.committing DIRECTORY RUN FIRST LAST MOMENT

MOMENT says when it kills itself: "before" the catalog is told, "after" the catalog knows and
before the caller does, or "never". The lake lies in DIRECTORY; the book of the ledger is empty
but for the watermark, so the run begins at the table's own.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from compaction.tables.commit import commit_table
from compaction.tables.lake import Lake
from tests.compaction.lakes import catalog_properties, commit_of, place_in, prepared, rows, topic


def main(directory: Path, run: str, first: int, last: int, moment: str) -> None:
    """Commits offsets FIRST to LAST of partition 0."""
    real = SqlCatalog.commit_table

    def killed(self: SqlCatalog, *arguments: Any) -> Any:
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(self, *arguments)
        if moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    with Lake(place_in(directory), catalog_properties(directory)) as lake:
        commit = commit_of(lake.place, prepared(lake, topic()), run, rows(0, first, last))
        setattr(SqlCatalog, "commit_table", killed)  # noqa: B010 - mypy knows the method
        commit_table(lake, run, commit)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
