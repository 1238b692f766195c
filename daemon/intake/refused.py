"""Why produce requests are refused, as numbers in shared memory.

A reason's name in lower case is the code of its answer, and a label of the metrics. Its number is
the place of its count (``shards/layout.py``: S_REFUSED), which only the shard's loop raises.
"""

from __future__ import annotations

from enum import IntEnum, unique

from shards.layout import REFUSED_MAX


@unique
class RefusalReason(IntEnum):
    """The reasons: 429 for the first one, 503 for all others."""

    THROTTLED = 0  # no ring space
    STORE_FAILING = 1
    DISK_FULL = 2
    ACK_TIMEOUT = 3
    SUPERSEDED = 4
    SHUTTING_DOWN = 5
    MEMORY_SHORT = 6


assert len(RefusalReason) <= REFUSED_MAX
BY_CODE = {reason.name.lower(): reason for reason in RefusalReason}
