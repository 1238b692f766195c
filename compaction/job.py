"""``spark-submit compaction/job.py --data DIR ...``: ``headgate compact`` in a given session.

The options are those of ``headgate compact``; master, memory and packages are spark-submit's. The
driver needs the ledger, so it runs on the daemon's machine (deploy mode client) in Headgate's
environment; executors need what `make spark-archive` packs (docs/lake.md).

A script, not a module: though it stands here it is the command, above all floors.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A script's own folder comes first on the path, where schema.py and plan.py would be found.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from cli import headgate

    headgate(["compact", *sys.argv[1:]], prog_name="spark-submit job.py")
