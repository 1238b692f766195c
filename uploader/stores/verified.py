"""Reads that look damaged are repeated on a new connection before they count as damaged.

A read may be wrong although the object is right: a proxy mixed up two connections, a cache is
stale, a bit flipped on the network or in this machine. Code that acts on damage (a compaction that
quarantines offsets, a recovery that leaves a gap, a reader that answers 503) reads through here.
The store's own checksum does not help: it covers whole objects, and most reads are ranges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("headgate.store")

READS_MAX = 3  # after three wrong reads the object itself is wrong

T = TypeVar("T")


def verified(
    read: Callable[[], T],
    reconnect: Callable[[], None],
    damage: type[Exception] | tuple[type[Exception], ...],
    what: str,
) -> T:
    """What ``read`` returns. ``read`` checks its bytes and raises ``damage`` if they are wrong; it
    is called up to READS_MAX times, each time on a new connection. Raises the last ``damage``, and
    any other error immediately."""
    for _ in range(READS_MAX - 1):
        try:
            return read()
        except damage as error:
            log.warning("%s: %s; reading it again on a new connection", what, error)
            reconnect()
    return read()
