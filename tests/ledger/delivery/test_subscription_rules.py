"""What the modes of subscriptions are."""

from __future__ import annotations

from typing import get_args

import pytest

from ledger.delivery.subscription_rules import MODES, KeyFallback, Mode, SubscriptionRules


def test_each_mode_has_its_facts() -> None:
    assert [*MODES] == [*get_args(Mode)]


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("key_fallback", get_args(KeyFallback))
def test_only_a_mode_with_an_order_by_key_takes_nodes(
    mode: Mode, key_fallback: KeyFallback
) -> None:
    rules = SubscriptionRules(mode=mode, key_fallback=key_fallback)
    takes_nodes = MODES[mode].order == "key" and key_fallback == "node"
    assert rules.takes_nodes is takes_nodes
