"""When commits were published: the commit log of a running daemon, read from its shared memory.

The supervisor's segment is a memfd; a process of the same user may open it under /proc.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Self

from bench.processes import Daemon, ServerError
from daemon.config import Override, load
from daemon.memory import layout_of
from shards import latency
from shards.commitlog import CommitLog
from shards.latency import Stage
from shards.segment import Segment

KEPT_MAX = 10_000  # commits of a topic that nobody asks for


class CommitTimes:
    """Follows the log from its present end; a context manager."""

    def __init__(self, daemon: Daemon, shards: int) -> None:
        overrides = [Override("data_dir", str(daemon.folder)), Override("shards", str(shards))]
        fd = _segment_fd(daemon.process.pid)
        try:
            self._segment = Segment.attach(fd, layout_of(load(None, {}, overrides)))
        except BaseException:
            os.close(fd)
            raise
        self._log = CommitLog(self._segment)
        self._next = self._log.end + 1
        self._counts = self._written()
        self._found: dict[int, deque[tuple[int, int]]] = {}  # by topic: head and time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._segment.close()

    def written_within_ms(self, share: float) -> float | None:
        """The daemon's own histogram since this was made: ``share`` of the writes to watchers were
        made within this time after the publication, to a factor of two."""
        pairs = zip(self._written(), self._counts, strict=True)
        since = [count - before for count, before in pairs]
        found_us = latency.quantile_us(since, share)
        return None if found_us is None else found_us / 1e3

    def _written(self) -> Sequence[int]:
        return latency.counted(self._segment, Stage.DELIVERED).buckets

    def published_ns(self, topic_id: int, seq: int) -> int:
        """When offset ``seq`` of partition 0 was published. Ask only for what has been delivered,
        and of one topic in the order of offsets."""
        while self._next <= self._log.end:
            commit = self._log.read(self._next)
            self._next += 1
            if commit is None:
                continue  # overwritten: a commit of others, from before the last question
            for head in commit.heads:
                if not head.partition:
                    found = self._found.setdefault(head.topic_id, deque(maxlen=KEPT_MAX))
                    found.append((head.head_seq, commit.published_ns))
        found = self._found.get(topic_id, deque())
        while found:
            head_seq, published_ns = found[0]
            if head_seq >= seq:
                return published_ns
            found.popleft()
        raise ServerError(f"offset {seq} was delivered, and its commit is not in the commit log")


def _segment_fd(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        if os.readlink(f"{folder}/{name}").startswith("/memfd:headgate"):
            return os.open(f"{folder}/{name}", os.O_RDWR)
    raise ServerError(f"process {pid} has no shared segment")
