"""What stands still, by when the first unfinished messages moved last and what they wait for."""

from __future__ import annotations

from delivery.standstill import LOOK_NS, LOOKED_MAX, FirstUnfinished, Fronts, Since, Why
from delivery.subscriptions.shown.standing import why_not_posted
from ledger.delivery.push_rates import LearnedRate
from shards.boards.pushboard import LimiterMode, PushSenderRow

S = 1_000_000_000


def blocked(front: FirstUnfinished) -> Why:
    return Why("is blocked")


def test_a_message_that_does_not_move_stands_still_since_it_is_the_first() -> None:
    fronts = Fronts()
    assert fronts.look({0: 5}, 10 * S, blocked) is None
    found = fronts.look({0: 5}, 12 * S, blocked)
    assert found == (10 * S, "0:5 is blocked")
    assert fronts.look({0: 6}, 13 * S, blocked) is None, "it has moved"
    assert fronts.look({}, 20 * S, blocked) is None
    assert fronts.look({0: 6}, 21 * S, blocked) is None, "another one since then"


def test_what_waits_for_something_that_ends_by_itself_does_not_stand() -> None:
    fronts = Fronts()
    fronts.look({0: 5, 1: 7}, S, blocked)
    asked: list[FirstUnfinished] = []

    def why(front: FirstUnfinished) -> Why | None:
        asked.append(front)
        return Why("is blocked", 3 * S) if front.partition else None

    found = fronts.look({0: 5, 1: 7}, 9 * S, why)
    assert found == (3 * S, "1:7 is blocked"), "a reason may be younger than the message"
    assert asked == [(0, 5, S), (1, 7, S)]


def test_the_one_that_stands_longest_is_named_and_few_are_looked_up() -> None:
    fronts = Fronts()
    fronts.look({9: 1}, S, blocked)
    many = dict.fromkeys(range(1000), 1)
    fronts.look(many, 2 * S, blocked)
    asked: list[int] = []

    def why(front: FirstUnfinished) -> Why:
        asked.append(front.partition)
        return Why("is blocked")

    found = fronts.look(many, 3 * S + LOOK_NS, why)
    assert found == (S, "9:1 is blocked")
    assert len(asked) == LOOKED_MAX


def test_a_pause_begins_the_time_again() -> None:
    fronts = Fronts()
    fronts.look({0: 5}, S, blocked)
    fronts.clear()
    assert fronts.look({0: 5}, 9 * S, blocked) is None
    assert fronts.look({0: 5}, 10 * S, blocked) == (9 * S, "0:5 is blocked")


def test_since_is_when_a_value_changed_last() -> None:
    since = Since()
    assert [since.look(*each) for each in ((0, S), (0, 2 * S), (1, 3 * S), (1, 9 * S))] == [
        S, S, 3 * S, 3 * S,
    ]  # fmt: skip


def sender(**changes: object) -> PushSenderRow:
    row: dict[str, object] = {
        "shard": 0, "is_present": True, "granted": 5.0, "in_use": 5.0, "use": 0.0,
        "state": LearnedRate(LimiterMode.NORMAL, 5.0, None), "changed_ns": S, "held_until_ns": 0,
        "next_ns": 0, "in_flight": 0, "attempts": 3, "records": 3, "outcomes": (), "latencies": (),
        "latency_sum_ns": 0,
    }  # fmt: skip
    return PushSenderRow(**(row | changes))  # type: ignore[arg-type]


def test_a_message_at_a_sender_waits_for_what_the_senders_row_says() -> None:
    def why(row: PushSenderRow | None) -> str | None:
        found = why_not_posted(row, 4 * S, 9 * S)
        return None if found is None else found.text

    assert why(sender(in_flight=1)) is None, "it is POSTed now"
    assert why(sender(next_ns=10 * S)) is None, "the rate does not allow it yet"
    assert "not there" in str(why(None)) and "not there" in str(why(sender(is_present=False)))
    assert "heartbeat mode" in str(why(sender(state=LearnedRate(LimiterMode.HEARTBEAT, 1.0, None))))
    assert "asked for a pause" in str(why(sender(held_until_ns=10 * S)))
    assert "granted a rate" in str(why(sender(granted=0.0)))
    assert why_not_posted(sender(), 4 * S, 9 * S) == Why(
        "waits for nothing that is known: report this, with the log; a restart may help", 4 * S
    )
