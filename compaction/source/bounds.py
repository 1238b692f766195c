"""From options to offsets: where each partition's read begins and ends, and how far a batch goes.

Offsets by topic and partition are of the *next* record, as Kafka's: a read of [from, to). What
lies outside a partition's offsets is a loss when it is below, and a mistake or a loss when it is
above (a topic that was made anew, a ledger that was restored from an old copy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from compaction.source.errors import DataLoss, SourceError
from compaction.source.options import EARLIEST, LATEST, Bound
from compaction.source.planner import TopicState
from compaction.source.read_tasks import Loss
from compaction.source.schemas import Offsets
from ledger.types import PartitionState

log = logging.getLogger("headgate.spark")

# (topic, partition, timestamp) -> the first offset that late
AtTime = Callable[[TopicState, PartitionState, int], int]


def bounds(
    option: str, bound: Bound, topics: Mapping[str, TopicState], at_time: AtTime, *, fail: bool
) -> Offsets:
    """The offsets of one end for every partition of every topic.

    Raises SourceError for a partition that is not there, DataLoss.
    """
    found: Offsets = {}
    for name, topic in topics.items():
        named = bound.offsets.get(name, {})
        for partition in named:
            if partition >= len(topic.partitions):
                raise SourceError(
                    f"option {option!r} names partition {partition} of topic {name!r}, which has"
                    f" partitions 0 to {len(topic.partitions) - 1}"
                )
        for state in topic.partitions:
            offset = named.get(state.partition, bound.default)
            if bound.timestamp_ms is not None:
                offset = at_time(topic, state, bound.timestamp_ms)
            elif offset == EARLIEST:
                offset = state.earliest_seq
            elif offset == LATEST:
                offset = state.next_seq
            elif offset > state.next_seq:
                lose(beyond(name, state, offset, f"{option!r} is {offset}"), fail=fail)
                offset = state.next_seq
            found.setdefault(name, {})[state.partition] = offset
    return found


def beyond(topic: str, state: PartitionState, offset: int, what: str) -> Loss:
    """What it is that an offset behind the end asks for."""
    return Loss(
        topic, state.partition, state.next_seq, offset - 1,
        f"{what}, and the partition's next offset is {state.next_seq}",
    )  # fmt: skip


def lose(loss: Loss, *, fail: bool) -> None:
    """Raises DataLoss, or says it in the log."""
    error = DataLoss(loss.topic, loss.partition, loss.first, loss.last, loss.reason)
    if fail:
        raise error
    log.warning("%s", error)


def limited(begins: Offsets, ends: Offsets, records_max: int) -> Offsets:
    """Ends so that at most ``records_max`` offsets lie between, in proportion to what is there.

    Every partition that has something gets at least one offset, unless there are more of them
    than ``records_max``: a partition with little is not starved by one with much.
    """
    sizes = {
        (topic, partition): end - begins.get(topic, {}).get(partition, end)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    }
    sizes = {key: size for key, size in sizes.items() if size > 0}
    total = sum(sizes.values())
    if total <= records_max:
        return ends
    if len(sizes) > records_max:
        most = sorted(sizes, key=lambda key: (-sizes[key], key))[:records_max]
        shares = dict.fromkeys(most, 1)
    else:
        left = records_max - len(sizes)
        over = total - len(sizes)
        exact = {key: (size - 1) * left for key, size in sizes.items()}
        shares = {key: 1 + each // over for key, each in exact.items()}
        rest = records_max - sum(shares.values())
        for key in sorted(exact, key=lambda key: (-(exact[key] % over), key))[:rest]:
            shares[key] += 1
    return {
        topic: {
            partition: begins.get(topic, {}).get(partition, end)
            + (shares.get((topic, partition), 0) if (topic, partition) in sizes else 0)
            for partition, end in partitions.items()
        }
        for topic, partitions in ends.items()
    }
