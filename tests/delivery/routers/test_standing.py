"""What a router stands still at: the reason that its plan knows, for as long as it holds."""

from __future__ import annotations

from delivery.routers.router_plan import HOLD_NS, RouterPlan
from delivery.routers.standing import RouterStanding
from delivery.standstill import LOOK_NS, UNKNOWN

S = 1_000_000_000


def stands(plan: RouterPlan, standing: RouterStanding, now_ns: int, gated: str = "") -> str:
    """What a router with five records to copy stands still at."""
    standing.look(plan, lambda _: 0, lambda _: 5, gated, now_ns)
    return "" if standing.stands is None else standing.stands.text


def test_a_router_that_is_held_names_the_reason_however_long_ago_it_was_tried() -> None:
    plan, standing = RouterPlan(1), RouterStanding()
    plan.hold("the destination is full", S)
    standing.hold("the destination is full", S)
    assert stands(plan, standing, S) == "", "not for long enough"
    long_ago_ns = S + 100 * (LOOK_NS + HOLD_NS)
    assert stands(plan, standing, long_ago_ns) == "record 0:1 waits: the destination is full"
    assert stands(plan, standing, long_ago_ns, "paused for memory").endswith("paused for memory")
    plan.release()
    assert stands(plan, standing, long_ago_ns) == f"record 0:1 {UNKNOWN}"


def test_a_hold_that_comes_and_goes_is_named_between_two_tries() -> None:
    plan, standing = RouterPlan(1), RouterStanding()
    stands(plan, standing, S)
    plan.hold("the destination is full", 9 * S)
    standing.hold("the destination is full", 9 * S)
    plan.release()
    assert stands(plan, standing, 9 * S + HOLD_NS) == "record 0:1 waits: the destination is full"
    assert stands(plan, standing, 9 * S + HOLD_NS + LOOK_NS) == f"record 0:1 {UNKNOWN}"


def test_a_router_whose_token_is_gone_stands_and_says_so() -> None:
    plan, standing = RouterPlan(1), RouterStanding()
    plan.barred = "token revoked: 'leaver'"
    plan.hold("the destination is full", S)
    stands(plan, standing, S)
    assert stands(plan, standing, 9 * S) == "record 0:1 waits: token revoked: 'leaver'"


def test_a_router_that_is_paused_does_not_stand() -> None:
    plan, standing = RouterPlan(1), RouterStanding()
    plan.stopped = "its source was deleted"
    stands(plan, standing, S)
    assert stands(plan, standing, 9 * S) == "record 0:1 waits forever: its source was deleted"
    plan.paused = True
    assert stands(plan, standing, 10 * S) == "" and standing.lag == 5
