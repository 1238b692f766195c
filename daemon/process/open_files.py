"""Open files: each connection is one, and the number that a process may open is limited.

The supervisor raises its soft limit as far as it may; shards inherit it. A shard that may open
fewer files than its connections and streams could need serves fewer of them: without files, it
could neither accept nor write to the store.
"""

from __future__ import annotations

import resource
import sys

import msgspec

from daemon.http.limits import HttpLimits

# Libraries, the segment, the ledger's files, connections to the store, files being read.
OTHER_FILES = 512
FILES_PER_SHARD = 3  # the bell of each shard, and a pipe in each direction


def raise_limit() -> None:
    """Raises the soft limit to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int:
    """How many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _others(shards: int) -> int:
    return OTHER_FILES + FILES_PER_SHARD * shards


def needed(limits: HttpLimits, shards: int) -> int:
    """How many files each of ``shards`` shards opens at most."""
    clients = limits.connections_max + limits.connections_told_max + limits.streams_max
    return clients + _others(shards)


def fitted(limits: HttpLimits, files: int, shards: int) -> HttpLimits:
    """``limits`` for one of ``shards`` shards that may open ``files``. If they are too few,
    connections keep up to half of them: producers come before watchers."""
    if files >= needed(limits, shards):
        return limits
    room = max(files - _others(shards), 4)
    told = min(limits.connections_told_max, room // 8)
    connections = min(limits.connections_max, room // 2)
    return msgspec.structs.replace(
        limits,
        connections_max=connections,
        connections_told_max=told,
        streams_max=min(limits.streams_max, room - connections - told),
    )
