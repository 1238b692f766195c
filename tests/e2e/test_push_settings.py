"""Push settings of a real daemon change live, at shards that own a subscription and that do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.pushing import TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.process import ReceiverProcess

pytestmark = pytest.mark.slow  # a daemon and a receiver; tests/delivery/push has the rules


@pytest.fixture(scope="module")
def receiver() -> Iterator[ReceiverProcess]:
    with ReceiverProcess() as started:
        yield started


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Two shards, so that owners are asked through pipes, too."""
    data = tmp_path_factory.mktemp("push") / "data"
    with running(data, shards=2, settings=TIMES) as started:
        yield started


def delivered(pushing: Pushing) -> None:
    """Waits until everything has been delivered."""
    wait_until(lambda: pushing.state["lag"] == 0, f"{pushing.name} to be delivered")


def attempts_of(pushing: Pushing) -> Any:
    """The attempts that its owner keeps."""
    return pushing.daemon.get(f"{pushing.path}/push/attempts?limit=1000").json


def headgate(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, at this daemon."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments, "--url", f"http://127.0.0.1:{daemon.port}"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["first", "second"])  # of two shards
def test_a_receiver_that_is_gone_pauses_its_subscription_until_it_is_resumed(
    daemon: Daemon, receiver: ReceiverProcess, name: str
) -> None:
    receiver.behave(name, Behavior(status=410))
    pushing = Pushing(daemon, receiver, name, rate_max=200)
    pushing.fill(20)

    def is_paused() -> Any:
        """Paused, and what was under way by then is over."""
        told = pushing.state
        attempts = told["push"] and told["push"]["attempts"]
        is_over = attempts == receiver.counts(name).posts
        return told if told["config"]["paused"] and is_over else None

    state: Any = wait_until(is_paused, f"{name} to be paused")
    assert "410" in state["config"]["paused_because"]
    assert state["lag"] == 20 and state["dead_lettered"] == state["blocked_keys"] == 0
    assert state["push"]["outcomes"].keys() == {"gone"}
    posts = receiver.counts(name).posts
    tested = daemon.json("POST", f"{pushing.path}/push/test", {})
    assert (tested.status, tested.json["outcome"]) == (200, "gone")
    receiver.behave(name, Behavior())
    assert daemon.json("POST", f"{pushing.path}/push/test", {}).json["outcome"] == "success"
    assert receiver.counts(name).posts == posts + 2, "nothing else is sent while it is paused"
    resumed = pushing.set(paused=False)
    assert resumed.json["config"]["paused_because"] == ""
    delivered(pushing)


def test_a_push_goes_elsewhere_ends_and_begins_again(
    daemon: Daemon, receiver: ReceiverProcess
) -> None:
    pushing = Pushing(daemon, receiver, "moves", rate_max=500)
    pushing.fill(10)
    delivered(pushing)
    consume = f"{pushing.path}/consume?consumer=c&max=10&wait_ms=1000"
    refused = daemon.get(consume)
    assert (refused.status, refused.code) == (409, "push_subscription")

    assert pushing.set(push={"endpoint": receiver.url("there")}).status == 200
    wait_until(lambda: pushing.state["config"]["push"]["endpoint"].endswith("there"), "the change")
    pushing.fill(10)
    delivered(pushing)
    assert receiver.counts("moves").events + receiver.counts("there").events >= 20

    assert pushing.set(push=None).status == 200
    wait_until(lambda: daemon.get(consume).status == 200, "consumers to be let in")
    pushing.fill(5)
    messages = wait_until(lambda: daemon.get(consume).json["messages"], "a message")
    assert messages and pushing.state["push"] is None
    assert pushing.set(push={"endpoint": receiver.url("again")}).status == 200
    delivered(pushing)
    assert receiver.counts("again").events >= 5, "what the consumer had is sent to the receiver"


def test_what_senders_do_is_shown_for_each_of_them(
    daemon: Daemon, receiver: ReceiverProcess
) -> None:
    pushing = Pushing(daemon, receiver, "shown", rate_max=100, senders=2, format="batch")
    pushing.fill(500)
    delivered(pushing)
    state: Any = wait_until(
        lambda: len((told := pushing.state)["push_senders"]) == 2 and told, "two senders"
    )
    push, senders = state["push"], state["push_senders"]
    assert {each["shard"] for each in senders} == {0, 1}
    assert sum(each["granted"] for each in senders) <= 100.001
    assert (push["mode"], push["senders"], push["failures"]) == ("normal", 2, 0)
    assert push["records"] == sum(each["records"] for each in senders) == 500
    assert push["p50_ms"] is not None
    shown = headgate(daemon, "subscriptions", "show", "shown", "shown")
    assert "records 500" in shown.stdout and "next attempt" in shown.stdout, shown.stderr
    for _ in range(4):  # at the shard that owns it, and at the other one
        # A sender tells of them after it has told what was delivered.
        wait_until(lambda: attempts_of(pushing)["kept"] == 200, "attempts of both, the last")
        attempts = attempts_of(pushing)["attempts"]
        assert {each["outcome"] for each in attempts} == {"success"} and len(attempts) == 200
    tried = headgate(daemon, "push", "attempts", "shown", "shown", "--limit", "3")
    assert tried.stdout.count("success") == 3, tried.stderr
    listed = headgate(daemon, "push", "ls", "shown")
    assert receiver.url("shown") in listed.stdout, listed.stderr
    # A sender that had nothing to do has given its share away, and gets it back when it is alone.
    assert pushing.set(push={"senders": 1}).status == 200
    wait_until(
        lambda: [each["granted"] for each in pushing.state["push_senders"]] == [100.0],
        "the sender of tests to have the whole rate",
    )
    tested = headgate(daemon, "push", "test", "shown", "shown", "--key", "k")
    assert tested.returncode == 0 and "success" in tested.stdout, tested.stderr
