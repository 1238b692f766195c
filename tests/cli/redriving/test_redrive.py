"""What a redrive does about origins that refuse, and about messages that cannot be read now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from commands.redriving import progress
from tests.cli.managed.test_subscriptions import config
from tests.cli.managed.test_subscriptions import state as subscription
from tests.scripted import Answer, Call, Scripted, refusal, run, scripted, state


class Letters:
    """A daemon with a topic of letters, one of each of these origins in turn, whose messages have
    the offsets of their letters. ``refuses``: by the origin, or by the origin and the offset, how
    requests are answered."""

    def __init__(self, *origins: str, **refuses: Answer) -> None:
        self.refuses: dict[Any, Answer] = dict(refuses)
        self.resent: list[tuple[str, int]] = []
        self._cursors: dict[str, dict[int, int]] = {}
        self._letters = [
            {"seq": seq, "ts": 0, "data": 1, "meta": {"headgate": {
                "topic": "orders", "topic_id": 7, "partition": 0, "seq": seq,
                "subscription": name, "attempts": 1, "reason": "no",
            }}} for seq, name in enumerate(origins, 1)
        ]  # fmt: skip

    def __call__(self, call: Call) -> Answer:
        if call.path.partition("?")[0] == "/v0/cursors":
            return Answer(200, {"cursors": [], "next_after": None})
        _, _, kind, name, *rest = call.path.split("/")
        if kind == "cursors":
            return self._cursor(call, name)
        if rest == ["diff"]:
            found = [each for each in self._letters if each["seq"] > call.body["from_seq"]]
            head = len(self._letters)
            return Answer(200, {
                "records": found, "next_from_seq": head, "head_seq": head, "earliest_seq": 1,
                "caught_up": True, "lag": 0, "topic_id": 7, "tombstone": None,
            })  # fmt: skip
        if not rest:
            return Answer(200, state(name))
        origin = rest[1]
        if refused := self.refuses.get(origin):
            return refused
        if call.method == "GET":
            return Answer(200, subscription(origin, config=config()))
        seq = call.body["seq"]
        if refused := self.refuses.get((origin, seq)):
            return refused
        self.resent.append((origin, seq))
        return Answer(200, {"partition": 0, "seq": seq, "key": None, "finished": True})

    def _cursor(self, call: Call, name: str) -> Answer:
        if call.method == "PUT":
            there = self._cursors.setdefault(name, {})
            there.update({each["partition"]: each["seq"] for each in call.body["positions"]})
        if name not in self._cursors:
            return refusal(404, "cursor_unknown")
        positions = [{"partition": n, "seq": seq} for n, seq in self._cursors[name].items()]
        return Answer(200, {
            "cursor": name, "cursor_id": 1, "kind": "client", "positions": positions,
            "created_ms": 1, "changed_ms": 1,
        })  # fmt: skip


def redrive(server: Scripted, *options: str, code: int) -> tuple[Any, Result]:
    done = run(server, "deadletters", "redrive", "dead", "-o", "json", "--wait", "0", *options)
    assert done.exit_code == code, done.output
    report = json.loads(done.stdout)
    return {each["subscription"]: each for each in report["origins"]}, done


@pytest.mark.parametrize(
    ("refused", "status", "error"),
    [
        ("a", 429, "throttled"),
        (("a", 1), 503, "not_ready"),
        ("a", 403, "forbidden"),
        (("a", 1), 500, "internal"),
    ],
)
def test_an_origin_that_refuses_is_left_with_the_reason_and_the_others_are_redriven(
    refused: Any, status: int, error: str
) -> None:
    letters = Letters("a", "b", "a", "c")
    letters.refuses[refused] = refusal(status, error, "not now")
    with scripted(letters) as server:
        origins, done = redrive(server, code=1)
        assert (origins["a"]["left"], origins["a"]["reason"]) == (2, "not now")
        assert [origins[name]["redriven"] for name in "bc"] == [1, 1]
        assert "left in dead: 2 letters" in done.stderr
        del letters.refuses[refused]
        origins, _ = redrive(server, code=0)
    assert list(origins) == ["a"] and origins["a"]["redriven"] == 2
    assert letters.resent == [("b", 2), ("c", 4), ("a", 1), ("a", 3)]


def test_a_letter_whose_message_is_in_quarantine_is_named_and_redriven_when_it_has_come_back() -> (
    None
):
    letters = Letters("a", "a", "a", "b")
    letters.refuses["a", 2] = refusal(409, "quarantined")
    with scripted(letters) as server:
        for count, options in ((2, []), (0, ["--max", "1"])):
            origins, done = redrive(server, *options, code=1)
            assert (origins["a"]["redriven"], origins["a"]["left"]) == (count, 1)
            assert "in quarantine; see `headgate quarantine`" in origins["a"]["reason"]
            assert origins["a"]["quarantined_letters"] == [{"partition": 0, "seq": 2}]
            assert "left in dead: 1 letter" in done.stderr
        text = run(server, "deadletters", "redrive", "dead")
        assert "letter 2 of partition 0: its message is in quarantine" in text.stdout
        letters.refuses.clear()
        origins, _ = redrive(server, code=0)
    assert origins["a"]["redriven"] == 1
    assert letters.resent == [("a", 1), ("a", 3), ("b", 4), ("a", 2)]


def test_letters_in_quarantine_take_none_of_the_letters_to_send_back_and_a_run_of_them_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = Letters(*"aaaaab")
    letters.refuses |= {("a", seq): refusal(409, "quarantined") for seq in (1, 2, 3)}
    with scripted(letters) as server:
        redrive(server, "--max", "1", code=1)
        assert letters.resent == [("a", 4)]
        monkeypatch.setattr(progress, "TAKEN_MAX", 3)
        origins, _ = redrive(server, code=1)
    assert (origins["a"]["left"], origins["b"]["redriven"]) == (4, 1)
    assert letters.resent == [("a", 4), ("b", 6)]
