"""`headgate deadletters` against a real daemon: letters go back where they came from, once."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.processes import kill_shards
from tests.e2e.subscribing import Message, Subscription, seqs

POLICY: dict[str, Any] = {
    "poison": "dead_letter", "dead_letter_topic": "dead", "redeliveries_max": 0,
    "ack_timeout_ms": 600_000,
}  # fmt: skip


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    """The shared one, with both topics new."""
    return with_topics(shared_daemon)


def with_topics(daemon: Daemon) -> Daemon:
    for topic in ("orders", "dead"):
        daemon.ask("DELETE", f"/v0/topics/{topic}?force=true")
        assert daemon.json("PUT", f"/v0/topics/{topic}", {}).status == 201
    return daemon


def headgate(daemon: Daemon, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli.headgate, ["deadletters", *arguments, "--url", daemon.url], catch_exceptions=False
    )


def redriven(daemon: Daemon, *options: str, code: int = 0) -> Any:
    """The report of a run that ends by itself."""
    done = headgate(daemon, "redrive", "dead", "-o", "json", *options)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def listed(daemon: Daemon, *options: str) -> list[Any]:
    done = headgate(daemon, "ls", "dead", "-o", "json", *options)
    assert done.exit_code == 0, done.output
    found: list[Any] = json.loads(done.stdout)
    return found


class Run:
    """A run in a process of its own."""

    def __init__(self, daemon: Daemon, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", "deadletters", "redrive", "dead", "-o", "json",
             "--url", daemon.url, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ends(self) -> tuple[int, str, str]:
        """Its exit code and what it said."""
        out, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, out, err

    def killed(self, number: int = signal.SIGKILL) -> None:
        """It is ended, and gone."""
        self.process.send_signal(number)
        self.process.communicate(timeout=HANG_S)


@contextlib.contextmanager
def redriving(daemon: Daemon, *options: str) -> Iterator[Run]:
    run = Run(daemon, *options)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate(timeout=HANG_S)


def dead(daemon: Daemon, *keys: str | None, name: str = "s", **settings: Any) -> Subscription:
    """A subscription whose first messages, with these keys, are dead letters."""
    before = len(daemon.read_all("dead"))
    found = Subscription(daemon, "orders", name, start="latest", **POLICY | settings)
    found.produce(*keys)
    found.nack("c", found.take("c", len(keys)), reason="status 503")
    wait_until(
        lambda: len(daemon.read_all("dead")) == before + len(keys), "letters of all messages"
    )
    return found


def test_letters_are_listed_with_their_origins_and_redriven_once(daemon: Daemon) -> None:
    first = dead(daemon, *"abc")
    second = dead(daemon, "d", None, name="t")
    first.ack("c", first.take("c", 2))
    daemon.produce("dead", {"not": "a letter"})
    letters = listed(daemon)
    assert [(each["seq"], each["key"], each["redriven"]) for each in letters] == [
        (1, "a", False), (2, "b", False), (3, "c", False), (4, "d", False), (5, None, False)
    ]  # fmt: skip
    assert letters[3]["origin"] == {
        "topic": "orders", "topic_id": letters[0]["origin"]["topic_id"], "partition": 0, "seq": 4,
        "subscription": "t", "attempts": 1, "reason": "status 503",
    }  # fmt: skip
    assert [each["seq"] for each in listed(daemon, "--where", "subscription=t")] == [4, 5]
    assert [each["seq"] for each in listed(daemon, "--where", "key=[a-z]")] == []
    shown = headgate(daemon, "ls", "dead", "--limit", "2")
    assert "orders/s" in shown.stdout and "--limit is 2" in shown.stderr
    assert len(shown.stdout.splitlines()) == 3

    with redriving(daemon, "--where", "subscription=s") as run:
        sent = first.take("c", 3)
        assert seqs(sent) == [1, 2, 3] and {each["attempt"] for each in sent} == {1}
        first.ack("c", sent)
        code, out, err = run.ends()
    assert code == 0, err
    assert json.loads(out)["origins"] == [
        {"topic": "orders", "subscription": "s", "letters": 3, "redriven": 3, "unfinished": 0,
         "evicted": 0, "left": 0, "reason": "", "evicted_letters": [], "quarantined_letters": []}
    ]  # fmt: skip
    assert [each["redriven"] for each in listed(daemon)] == [True] * 3 + [False] * 2
    with redriving(daemon) as run:
        second.ack("c", second.take("c", 2))
        code, out, err = run.ends()
    report = json.loads(out)
    assert code == 0 and (report["redriven"], report["others"]) == (2, 1)
    assert redriven(daemon)["origins"] == [] and first.gets_nothing("c")
    text = headgate(daemon, "redrive", "dead")
    assert text.stdout == "no letters of dead are to be redriven\n", "it begins after them"


def test_cursors_of_a_topic_that_was_deleted_go_with_the_first_run_of_the_next_one(
    daemon: Daemon,
) -> None:
    def names() -> set[str]:
        return {
            each["cursor"]
            for each in daemon.json("GET", "/v0/cursors?limit=1000").json["cursors"]
            if each["cursor"].startswith("redrive:") and each["cursor"].split(":")[4] == "dead"
        }

    def run() -> set[str]:
        found = dead(daemon, "a", "b")
        with redriving(daemon) as run:
            found.ack("c", found.take("c", 2))
            assert run.ends()[0] == 0
        return names()

    former = run()
    assert len(former) == 2, "the floors, and what is noted of the one origin"
    with_topics(daemon)
    assert names() == former
    assert len(run()) == 2 and not names() & former


def test_a_message_that_fails_again_is_another_letter_for_the_next_run(daemon: Daemon) -> None:
    found = dead(daemon, "a")

    def letters(count: int) -> list[Any]:
        return wait_until(
            lambda: [] if len(one := listed(daemon)) < count else one, "another letter"
        )

    for number in (2, 3):
        with redriving(daemon) as run:
            (sent,) = found.take("c", 1)
            assert sent["seq"] == 1
            found.nack("c", [sent], reason=f"again {number}")
            code, out, err = run.ends()
        assert code == 0 and json.loads(out)["redriven"] == 1, err
        there = letters(number)
        assert there[-1]["origin"]["reason"] == f"again {number}"
        assert [each["redriven"] for each in there] == [True] * (number - 1) + [False]
    assert found.state["dead_lettered"] == 3 and found.gets_nothing("c")


def test_killed_anywhere_each_letter_is_delivered_and_none_that_is_done_once_more(
    daemon: Daemon,
) -> None:
    found = dead(daemon, *"abcdefgh")
    with redriving(daemon) as run:
        sent = found.take("c", 8)
        found.ack("c", sent[2:5])
        wait_until(
            lambda: [each["redriven"] for each in listed(daemon)].count(True) == 3,
            "what is done to be noted",
        )
        run.killed()
    with redriving(daemon) as run:
        assert found.gets_nothing("c"), "the owner knows what it was asked for"
        kill_shards(daemon, found.state["owner_shard"])
        again = sorted(found.take("c", 5), key=itemgetter("seq"))  # several are sent back together
        assert seqs(again) == [1, 2, 6, 7, 8]
        found.ack("c", again[:1])
        wait_until(lambda: listed(daemon)[0]["redriven"], "the first one to be noted")
        run.killed(signal.SIGTERM)
    kill_shards(daemon, found.state["owner_shard"])
    last: list[Message] = []
    with redriving(daemon, "--parallel", "1") as run:
        for _ in range(4):
            last += found.take("c", 1)
            assert found.gets_nothing("c"), "one at a time"
            found.ack("c", last[-1:])
        code, out, err = run.ends()
    assert seqs(last) == [2, 6, 7, 8] and code == 0, err
    assert json.loads(out)["redriven"] == 4


def test_what_cannot_be_sent_back_is_named_and_left(daemon: Daemon) -> None:
    found = dead(daemon, *"ab")
    gone = dead(daemon, "c", name="gone")
    found.ack("c", found.take("c", 1))
    assert daemon.ask("DELETE", gone.path).status == 200
    found.set(paused=True)
    report = redriven(daemon, code=1)
    reasons = {each["subscription"]: (each["left"], each["reason"]) for each in report["origins"]}
    assert reasons["s"] == (2, "orders/s is paused")
    assert reasons["gone"][0] == 1 and "no subscription 'gone'" in reasons["gone"][1]
    found.set(paused=False)
    report = redriven(daemon, "--idle", "0.3", "--where", "subscription=s", code=1)
    assert "none of 2 messages was finished for 0.3 s" in report["origins"][0]["reason"]
    found.ack("c", found.take("c", 2))
    assert redriven(daemon, "--where", "subscription=s")["redriven"] == 2, "the owner knows them"
    assert daemon.ask("DELETE", "/v0/topics/orders?force=true").status == 200
    assert daemon.json("PUT", "/v0/topics/orders", {}).status == 201
    Subscription(daemon, "orders", "gone", **POLICY)
    daemon.produce("orders", *range(9))
    report = redriven(daemon, code=1)
    assert "was deleted and created again" in report["origins"][0]["reason"]


def test_letters_whose_messages_retention_removed_are_named_and_counted_once(
    daemon: Daemon,
) -> None:
    dead(daemon, *"ab")
    assert daemon.json("POST", "/v0/topics/orders/trim", {"before_seq": 2}).status == 200
    done = headgate(daemon, "redrive", "dead", "--max", "1")
    assert done.exit_code == 1
    assert "letter 1 of partition 0: its message was evicted" in done.stdout
    assert "1 letter could not be sent back" in done.stderr
    (hint,) = re.findall("`headgate (.*)`", done.stderr)
    asked = [*hint.split(), "-n", "1", "--url", daemon.url]
    shown = CliRunner().invoke(cli.headgate, asked, catch_exceptions=False)
    assert json.loads(shown.stdout)["meta"]["headgate"]["reason"] == "status 503"


def test_ctrl_c_notes_what_is_done_and_says_what_is_left(daemon: Daemon) -> None:
    found = dead(daemon, *"abc")
    with redriving(daemon) as run:
        sent = found.take("c", 3)
        found.ack("c", sent[1:2])
        wait_until(lambda: listed(daemon)[1]["redriven"], "the second one to be noted")
        run.process.send_signal(signal.SIGINT)
        code, out, err = run.ends()
    report = json.loads(out)
    assert code == 1 and "left in dead: 2 letters" in err
    assert (report["stopped"], report["redriven"], report["left"]) == (True, 1, 2)


def test_two_runs_at_a_time_send_nothing_twice(daemon: Daemon) -> None:
    found = dead(daemon, *"abcd")
    with redriving(daemon) as one, redriving(daemon) as other:
        sent = found.take("c", 4)
        assert found.gets_nothing("c")
        found.ack("c", sent)
        codes = [one.ends()[0], other.ends()[0]]
    assert 0 in codes and found.gets_nothing("c")
    assert all(each["redriven"] for each in listed(daemon))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ls", "none"], "unknown_topic"),
        (["ls", "dead", "--partition", "7"], "has no partition 7"),
        (["ls", "dead", "--where", "seq=1"], "must be topic=PATTERN"),
        (["ls", "dead", "--since", "soon"], "must be a duration"),
        (["redrive", "none"], "unknown_topic"),
        (["redrive", "dead", "--where", "key=a"], "or subscription=PATTERN"),
        (["redrive", "dead", "--where", "topic=a", "--where", "topic=b"], "each once"),
        (["redrive", "dead", "--where", "topic=" + "a" * 2_000], "topic is a pattern of 2000"),
        (["redrive", "dead", "--parallel", "500"], "--parallel"),
        (["redrive", "dead", "--max", "0"], "--max"),
    ],
)
def test_bad_input_is_named(shared_daemon: Daemon, arguments: list[str], says: str) -> None:
    shared_daemon.json("PUT", "/v0/topics/dead", {})
    done = headgate(shared_daemon, *arguments)
    assert done.exit_code in (1, 2) and says in done.stderr


def test_what_only_looks_like_a_letter_is_none_and_keeps_none_from_being_redriven(
    daemon: Daemon,
) -> None:
    topic_id = daemon.ask("GET", "/v0/topics/orders").json["topic_id"]
    real: dict[str, Any] = {
        "topic": "orders", "topic_id": topic_id, "partition": 0, "seq": 1, "subscription": "s",
        "attempts": 1, "reason": "\x1b[2J",
    }  # fmt: skip
    forged: list[dict[str, Any]] = [
        {"topic": ".."}, {"topic": "a/../admin"}, {"subscription": ""}, {"topic_id": -1},
        {"subscription": "s/../../x\x1b"}, {"subscription": "x" * 256}, {"partition": -1},
        {"seq": 0}, {"seq": 1 << 63}, {"seq": 1 << 70}, {"attempts": -1}, {"attempts": "1"},
    ]  # fmt: skip
    metas: list[Any] = [{}, {"headgate": 1}, {"headgate": {"topic": "orders"}}]
    metas += [{"headgate": real | each} for each in forged]
    records = [{"data": 1, "meta": meta} for meta in metas]
    assert daemon.json("POST", "/v0/topics/dead", {"records": records}).status == 200
    found = dead(daemon, "a")
    letter = {"data": 1, "meta": {"headgate": real | {"subscription": "none"}}}
    assert daemon.json("POST", "/v0/topics/dead", {"records": [letter]}).status == 200
    shown = headgate(daemon, "ls", "dead")
    assert shown.exit_code == 0 and "\x1b" not in shown.stdout
    with redriving(daemon) as run:
        found.ack("c", found.take("c", 1))
        code, out, err = run.ends()
    report = json.loads(out)
    assert code == 1 and "left in dead: 1 letter" in err
    assert (report["others"], report["left"], report["redriven"]) == (len(metas), 1, 1)
