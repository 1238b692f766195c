"""More senders are wanted only where they would help."""

from __future__ import annotations

import pytest

from delivery.push.senders import wants_more
from ledger.delivery.push_rates import LearnedRate
from shards.boards.pushboard import NOTHING_LEARNED, LimiterMode, PushSenderRow

BUSY_ROW = PushSenderRow(
    shard=0, is_present=True, granted=100.0, in_use=100.0, use=0.5,
    state=LearnedRate(LimiterMode.NORMAL, 100.0, None), changed_ns=1, held_until_ns=0, next_ns=0,
    in_flight=16, attempts=10, records=10, outcomes=(10,), latency_sum_ns=1, latencies=(10,),
)  # fmt: skip


def row(**fields: object) -> PushSenderRow:
    """A sender with connections that are busy, but for some fields."""
    values = {name: getattr(BUSY_ROW, name) for name in PushSenderRow.__struct_fields__}
    return PushSenderRow(**(values | fields))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, True),
        ({"is_present": False}, False),
        ({"use": -1.0}, False),  # not known yet
        ({"records": 0}, False),  # nobody knows whether the receiver answers
        ({"use": 0.95}, False),  # the limit is reached
        ({"state": LearnedRate(LimiterMode.NORMAL, 52.0, 52.0)}, False),  # it takes no more
        ({"state": LearnedRate(LimiterMode.NORMAL, 60.0, 60.0)}, True),
        ({"state": LearnedRate(LimiterMode.SLOW, 100.0, None)}, False),
        ({"state": LearnedRate(LimiterMode.HEARTBEAT, 100.0, None)}, False),
        ({"state": NOTHING_LEARNED}, False),
        ({"held_until_ns": 6}, False),
        ({"held_until_ns": 5}, True),
        ({"granted": 0.0, "state": LearnedRate(LimiterMode.NORMAL, 0.0, None)}, False),
    ],
)
def test_a_sender_wants_help_if_it_may_send_more_than_it_can(
    fields: dict[str, object], wanted: bool
) -> None:
    assert wants_more([row(**fields)], 5) == wanted
    assert wants_more([row(use=0.95), row(**fields)], 5) == wanted


def test_without_senders_nothing_is_wanted() -> None:
    assert not wants_more([], 0)
