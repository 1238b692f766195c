"""What a status says of subscriptions and routers that stand still; for tests that end with it.

A daemon for such a test is started with ``standstill_after_ms`` well below the test's patience.
"""

from __future__ import annotations

from typing import Any

Status = dict[str, Any]


def standing(status: Status) -> dict[tuple[str, str], str]:
    """Why each one stands still, by topic and name; of a router, the topic is its source."""
    found = {(each["topic"], each["name"]): each["message"] for each in status["standing"]}
    raised = {alarm["alarm"] for alarm in status["alarms"]}
    assert bool(found) == ("stands_still" in raised), (found, raised)
    return found


def assert_nothing_stands(status: Status) -> None:
    """No subscription and no router stands still."""
    assert not standing(status), f"stands still: {status['standing']}"


def assert_stands(status: Status, topic: str, name: str, *words: str) -> str:
    """One does, for a reason that has these words; returns it."""
    why = standing(status).get((topic, name))
    assert why is not None, f"{name} of {topic} is not among what stands: {status['standing']}"
    assert "waits for nothing that is known" not in why, why
    for word in words:
        assert word in why, why
    return why
