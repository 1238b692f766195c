"""Which requests the modeled shard withdraws at a deadline, as ``Answers.expired`` does it."""

from __future__ import annotations

from collections.abc import Container, Iterable

from uploader.pipeline.voids import Run


def runs_of(void: Container[int], waiting: Iterable[int], head: int) -> list[Run]:
    """Runs from each void position to the next one in ``waiting`` that is not void."""
    runs: list[Run] = []
    start = -1
    for position in waiting:
        if position in void:
            start = position if start < 0 else start
        elif start >= 0:
            runs.append((start, position))
            start = -1
    if start >= 0:
        runs.append((start, head))
    return runs
