"""From options to offsets: where the read of each partition begins and ends, and sizes of batches.

Offsets are those of the *next* record, as in Kafka: a read covers [from, to). An offset below those
of the partition is a loss. One above is a mistake or a loss (the topic was created again, the
ledger was restored from an old copy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from compaction.source.errors import DataLoss, SourceError
from compaction.source.options import EARLIEST, LATEST, Bound
from compaction.source.planner import TopicPartitions
from compaction.source.schemas import Offsets
from ledger.types import PartitionState

log = logging.getLogger("headgate.spark")

# (topic, partition, timestamp) -> the first offset at or after the timestamp
AtTime = Callable[[TopicPartitions, PartitionState, int], int]


def bounds(
    option: str, bound: Bound, topics: Mapping[str, TopicPartitions], at_time: AtTime, *, fail: bool
) -> Offsets:
    """The first or last offsets of all partitions of all topics.

    Raises SourceError for a partition that does not exist, DataLoss.
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


def beyond(topic: str, state: PartitionState, offset: int, what: str) -> DataLoss:
    """The loss of a request for offsets after the end."""
    return DataLoss(
        topic, state.partition, state.next_seq, offset - 1,
        f"{what}, and the partition's next offset is {state.next_seq}",
    )  # fmt: skip


def lose(loss: DataLoss, *, fail: bool) -> None:
    """Raises the loss, or logs it."""
    if fail:
        raise loss
    log.warning("%s", loss)


def limited(begins: Offsets, ends: Offsets, records_max: int) -> Offsets:
    """Ends such that a batch has at most ``records_max`` offsets, in proportion to those available.

    Each partition with records gets at least one offset, unless there are more partitions than
    ``records_max``, so that a small partition is not starved by a large one.
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
