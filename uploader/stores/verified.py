"""Bytes from a store, not called damaged before they were read again on a new connection.

What a read gives may be wrong though the object is right: a connection that a proxy mixed up, a
cache between, a bit that flipped on the way or in this machine. Whoever acts on damage (a
compaction puts offsets in quarantine, a recovery leaves a gap, a reader is answered 503) reads
through here. The store's own checksum would not do: it covers whole objects, and most reads are
ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("headgate.store")

READS_MAX = 3  # what is wrong three times is the object

T = TypeVar("T")


def verified(
    read: Callable[[], T],
    reconnect: Callable[[], None],
    damage: type[Exception] | tuple[type[Exception], ...],
    what: str,
) -> T:
    """What ``read`` returns, which checks what it reads and raises ``damage``: at most READS_MAX
    times, each on a new connection. Raises the last ``damage``, and everything else immediately."""
    for _ in range(READS_MAX - 1):
        try:
            return read()
        except damage as error:
            log.warning("%s: %s; it is read again on a new connection", what, error)
            reconnect()
    return read()
