"""What the scheduler costs a shard's loop: ``python -m bench.ready``.

Figures are CPU of this process, as medians over repetitions, so that a busy minute of the machine
counts little.

``mark``: a commit makes an entry ready. ``fresh``, ``aging``: a turn with nothing to do (take and
finish) while N entries are ready. Fresh ones wait less than a tick; aging ones wait for
seconds, at 30 us a turn, so that most cross bands before their turn.

``rows``: one heartbeat of a shard with 1,024 watched topics; reading one topic's rows and those
of a page of 100 topics, with 64 shards and 10,000 watched topics.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from itertools import pairwise

from delivery.ready import EntryView, Kind, PriorityInputs, ReadySet
from delivery.scheduler.scheduler import BandedReadySet
from shards.boards.topicrows import TopicRows, TopicRowsReader
from shards.clock import process_cpu_ns
from shards.layout import TOPIC_ROWS, Layout
from shards.segment import Segment

READY = (1, 1_000, 10_000, 100_000)
REPETITIONS = 5
TURNS = 20_000
START_NS = 10**12
PRIORITIES = (-1000, -300, -1, 0, 100, 250, 499, 500, 750, 1000)
INPUTS = [PriorityInputs(priority=each) for each in PRIORITIES] + [
    PriorityInputs(consumed_ns=START_NS - idle_s * 10**9) for idle_s in (0, 10, 60, 200)
]


def turns_of(ready: ReadySet, count: int, turn_ns: int) -> tuple[float, float]:
    """CPU in us of a mark, and of a take with its finish."""
    rng = random.Random(1)
    marks = [((number, Kind.WATCH), rng.choice(INPUTS)) for number in range(count)]
    began_ns = process_cpu_ns()
    for key, inputs in marks:
        ready.mark(key, inputs, START_NS, START_NS)
    marked_ns = process_cpu_ns()
    now_ns = START_NS
    for _ in range(max(TURNS, count)):
        now_ns += turn_ns
        turn = ready.take(now_ns)
        assert turn is not None
        ready.finish(turn, 8192, True, now_ns)
    taken_ns = process_cpu_ns()
    return (marked_ns - began_ns) / count / 1e3, (taken_ns - marked_ns) / max(TURNS, count) / 1e3


def median(measure: Callable[[], tuple[float, ...]]) -> list[float]:
    """The median of each figure."""
    return [statistics.median(figures) for figures in zip(*(measure() for _ in range(REPETITIONS)),
                                                          strict=True)]  # fmt: skip


def print_turns() -> None:
    """The table of ready sets."""
    print("CPU in us\n")
    names = ("ready", "mark", "fresh", "aging")
    print(" | ".join(f"{name:>8}" for name in names))
    for count in READY:
        mark, fresh = median(lambda: turns_of(BandedReadySet(), count, 30))  # noqa: B023
        _, aging = median(lambda: turns_of(BandedReadySet(), count, 30_000))  # noqa: B023
        figures = (mark, fresh, aging)
        print(" | ".join([f"{count:>8}", *(f"{figure:>8.2f}" for figure in figures)]))


def print_rows() -> None:
    """What the rows of watched topics cost."""
    layout = Layout(64, 1 << 16)
    segment = Segment.create(layout)
    try:
        shards = [TopicRows(segment.words, layout, shard) for shard in range(layout.shards)]
        for topic_id in range(1, 10_001):
            shards[topic_id % layout.shards].watched(topic_id, 3)
        for topic_id in range(1, TOPIC_ROWS + 1):
            shards[0].watched(topic_id, 3)
        reader = TopicRowsReader(segment.words, layout)
        view = EntryView(2, START_NS, False)

        def measure() -> tuple[float, ...]:
            times = [process_cpu_ns()]
            for _ in range(8):
                shards[0].refresh(lambda _: view)
            times.append(process_cpu_ns())
            for topic_id in range(1, 101):
                reader.of(topic_id)
            times.append(process_cpu_ns())
            found = reader.of_each(range(101, 201))
            times.append(process_cpu_ns())
            assert len(found) == 100
            each = [after - before for before, after in pairwise(times)]
            return each[0] / 8e3, each[1] / 100e3, each[2] / 1e3

        heartbeat, one, page = median(measure)
    finally:
        segment.close()
    print(f"\nrows: heartbeat {heartbeat:.0f}, one topic {one:.0f}, a page {page:.0f}")


def main() -> int:
    """Prints the tables."""
    print_turns()
    print_rows()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
