"""What a ScaledObject may ask for, and what follows from the scaling signal."""

from __future__ import annotations

import pytest

from commands.keda.trigger import SubscriptionGone, Trigger, TriggerRefused, trigger_of
from daemon.schemas.api import Scaling, SubscriptionScaling

NAMED = {"topic": "orders", "subscription": "billing"}
ROW = SubscriptionScaling("orders", "billing", 50, 2_000, 9_000, 1_000, 3, 1, 1_000, "")
OTHER = SubscriptionScaling("orders", "audit", 0, 0, 0, 0, 0, 1, 1_000, "")
SCALING = Scaling(0, {}, {}, 1, [OTHER, ROW])


def test_a_trigger_finds_its_subscription() -> None:
    assert trigger_of(NAMED).row(SCALING) == ROW


@pytest.mark.parametrize("other", [{"topic": "others"}, {"subscription": "others"}])
def test_a_subscription_that_is_gone_is_named(other: dict[str, str]) -> None:
    with pytest.raises(SubscriptionGone, match=r"topic '.+' has no subscription '.+'"):
        trigger_of(NAMED | other).row(SCALING)


def test_a_consumer_is_to_have_as_much_as_the_subscription_lets_it_unless_told_otherwise() -> None:
    assert trigger_of(NAMED).target(ROW) == 1_000
    assert trigger_of(NAMED | {"lagPerConsumer": "50"}).target(ROW) == 50


def test_a_trigger_is_active_above_its_activation_lag() -> None:
    for lag, active in ((1_999, True), (2_000, False), (2_001, False)):
        assert trigger_of(NAMED | {"activationLag": str(lag)}).is_active(ROW) is active
    assert trigger_of(NAMED).is_active(ROW)
    assert not trigger_of(NAMED).is_active(OTHER)


def test_what_keda_adds_to_the_metadata_is_not_ours_to_refuse() -> None:
    added = {"scalerAddress": "headgate-scaler:7441", "enableTLS": "true"}
    assert trigger_of(NAMED | added) == Trigger("orders", "billing")


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "has no 'topic'"),
        ({"topic": "orders"}, "has no 'subscription'"),
        (NAMED | {"subscription": ""}, "has no 'subscription'"),
        (NAMED | {"lagPerConsumers": "5"}, "'lagPerConsumers', which the scaler does not know"),
        (NAMED | {"lagPerConsumer": "0"}, "lagPerConsumer must be an integer from 1 to"),
        (NAMED | {"lagPerConsumer": "-1"}, "lagPerConsumer must be .+, got '-1'"),
        (NAMED | {"lagPerConsumer": "1.5"}, "lagPerConsumer must be .+, got '1.5'"),
        (NAMED | {"lagPerConsumer": "9" * 5_000}, "lagPerConsumer must be"),
        (NAMED | {"lagPerConsumer": "٣"}, "lagPerConsumer must be"),
        (NAMED | {"activationLag": "1000000001"}, "activationLag must be .+ to 1,000,000,000"),
        (NAMED | {"activationLag": ""}, "activationLag must be .+, got ''"),
    ],
)
def test_metadata_that_cannot_be_used_is_refused_with_what_to_change(
    metadata: dict[str, str], problem: str
) -> None:
    with pytest.raises(TriggerRefused, match=problem):
        trigger_of(metadata)
