"""Push settings in the ledger: what they cannot be, and how the daemon pauses a subscription."""

from __future__ import annotations

import pytest

from ledger import changes
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscription_errors import SubscriptionRefused
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.ledger import Ledger
from ledger.types import Topic

URL = "https://example.com/hook"


def pushed(ledger: Ledger, topic: Topic, **config: object) -> Subscription:
    """A subscription ``s`` that is pushed to URL."""
    settings = SubscriptionConfig(push=PushSettings(URL), **config)  # type: ignore[arg-type]
    return ledger.write(subscriptions.create, topic.name, "s", settings, "latest", 5)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (SubscriptionConfig(push=PushSettings(URL, rate_max=1 / 60, senders=2)), "push.senders"),
    ],
)
def test_push_settings_that_cannot_be_are_refused_with_the_field(
    ledger: Ledger, topic: Topic, config: SubscriptionConfig, field: str
) -> None:
    with pytest.raises(SubscriptionRefused) as refused:
        ledger.write(subscriptions.create, topic.name, "s", config, "latest", 5)
    assert refused.value.field == field
    pushed(ledger, topic)
    with pytest.raises(SubscriptionRefused):
        ledger.write(subscriptions.alter, topic.name, "s", {"push": config.push})


def test_each_sender_may_send_once_a_minute(ledger: Ledger, topic: Topic) -> None:
    push = PushSettings(URL, rate_max=1 / 60, senders=1)
    config = SubscriptionConfig(push=push)
    made = ledger.write(subscriptions.create, topic.name, "s", config, "latest", 5)
    assert ledger.read(subscriptions.find, topic.topic_id, "s") == made


def test_a_receiver_that_is_gone_pauses_its_subscription_until_an_operator_resumes_it(
    ledger: Ledger, topic: Topic
) -> None:
    made = pushed(ledger, topic)
    before = ledger.read(changes.latest)
    paused = ledger.write(subscriptions.pause, made.subscription_id, URL, "410 Gone")
    assert paused is not None and paused == ledger.read(subscriptions.find, topic.topic_id, "s")
    assert (paused.config.paused, paused.config.paused_because) == (True, "410 Gone")
    assert ledger.read(changes.latest) > before, "owners notice it"

    altered = ledger.write(subscriptions.alter, topic.name, "s", {"window_max": 7})
    assert altered.config.paused_because == "410 Gone"
    resumed = ledger.write(subscriptions.alter, topic.name, "s", {"paused": False})
    assert (resumed.config.paused, resumed.config.paused_because) == (False, "")


def test_a_pause_that_comes_too_late_changes_nothing(ledger: Ledger, topic: Topic) -> None:
    made = pushed(ledger, topic)
    elsewhere = PushSettings("https://example.com/other")
    ledger.write(subscriptions.alter, topic.name, "s", {"push": elsewhere})
    before = ledger.read(changes.latest)
    pause = subscriptions.pause
    assert ledger.write(pause, made.subscription_id, URL, "410 Gone") is None
    ledger.write(subscriptions.alter, topic.name, "s", {"paused": True, "push": made.config.push})
    assert ledger.write(pause, made.subscription_id, URL, "410 Gone") is None
    found = ledger.read(subscriptions.find, topic.topic_id, "s")
    assert found is not None and found.config.paused_because == "", "an operator has paused it"
    ledger.write(subscriptions.alter, topic.name, "s", {"paused": False, "push": None})
    assert ledger.write(pause, made.subscription_id, URL, "410 Gone") is None
    assert before < ledger.read(changes.latest)
    ledger.write(subscriptions.delete, topic.name, "s", 9)
    assert ledger.write(pause, made.subscription_id, URL, "410 Gone") is None
