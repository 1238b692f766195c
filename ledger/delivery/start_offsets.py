"""Where a subscription begins or goes on, as an offset of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ledger import reads
from ledger.delivery.subscription_errors import SubscriptionRefused
from ledger.tx import ReadTx
from ledger.types import INTEGER_MAX, Offset, PartitionState


class AtTime(Struct, frozen=True, forbid_unknown_fields=True):
    """Before the first record with this timestamp or a later one."""

    ts: Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="epoch milliseconds")]


SubscriptionStart = Literal["earliest", "latest"] | Offset | list[Offset] | AtTime
"""Before the first record that can be read, after the last one, after an offset, or at a time; a
list has the offset of each partition."""


def floors_at(
    tx: ReadTx, topic_id: int, name: str, start: SubscriptionStart, field: str = "start"
) -> dict[int, int]:
    """The floors, by partition, of a subscription that goes on at ``start``; ``field`` is what the
    place is called where it was asked for.

    Raises SubscriptionRefused for offsets that the topic does not have.
    """
    states = reads.partition_states(tx, topic_id)
    if isinstance(start, AtTime):
        return {
            each.partition: reads.offset_at_time(tx, topic_id, each.partition, start.ts) - 1
            for each in states
        }
    if isinstance(start, str):
        is_latest = start == "latest"
        return {
            each.partition: each.head_seq if is_latest else each.earliest_seq - 1 for each in states
        }
    return _checked(name, field, [start] if isinstance(start, int) else start, states)


def _checked(
    name: str, field: str, seqs: Sequence[int], states: Sequence[PartitionState]
) -> dict[int, int]:
    if len(seqs) != len(states):
        raise SubscriptionRefused(
            name,
            field,
            f"has {len(seqs)} offsets, but its topic has {len(states)} partitions; give a list with"
            f" the offset of each",
        )
    for seq, state in zip(seqs, states, strict=True):
        if seq > state.head_seq:
            raise SubscriptionRefused(
                name,
                field,
                f"is {seq} for partition {state.partition}, whose last offset is {state.head_seq}",
            )
    return {state.partition: seq for seq, state in zip(seqs, states, strict=True)}
