"""A read of the whole ledger in a process of its own.

    python -m daemon.api.handlers.ledger_check LEDGER NAME

Such a read takes seconds to minutes on a large ledger. In a shard it would take the interpreter's
lock from the shard's loop; in a command's process it would pin the ledger's WAL for as long as the
command is stopped. So the shard that is asked starts this program, on any CPU and with low
priority, and ends it when the caller is gone. It prints the answer as JSON.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec

from compaction.access.operations import operation
from ledger.checks import invariants, soundness
from ledger.ledger import Ledger

CHECKS = {operation(each).name: each for each in (invariants.broken, soundness.problems)}


def main() -> int:
    """Runs one check with the arguments on the standard input."""
    path, name = sys.argv[1:]
    os.nice(10)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a shard that starts this is pinned
    asked = operation(CHECKS[name])
    arguments = msgspec.json.decode(sys.stdin.buffer.read(), type=list[msgspec.Raw])
    with closing(Ledger(Path(path), nullcontext(), must_exist=True)) as ledger:
        found = ledger.read(asked.function, **asked.decode(arguments, 0))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
