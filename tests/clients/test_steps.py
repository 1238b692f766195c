"""When a call is repeated, how long, and what is raised in the end: by a scripted world."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import calls
from headgate.batching import Batch
from headgate.errors import (
    ConditionFailed,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    Refused,
    UnknownAnswer,
    Unreachable,
)
from headgate.steps import (
    Answer,
    Look,
    Lost,
    Moment,
    Op,
    Open,
    Request,
    Send,
    Step,
    Wait,
    asked,
)


class World:
    """Answers attempts as told, the last one forever, and counts the time that is waited."""

    def __init__(self, *told: Answer | Lost, took_s: float = 0.0) -> None:
        self._told = list(told)
        self._took_s = took_s
        self.now_s = 1000.0
        self.waits: list[float] = []
        self.sent: list[Request] = []
        self.is_reached = True

    def run(self, op: Op[Any]) -> Any:
        came: Any = None
        while True:
            try:
                step = op.throw(came) if isinstance(came, Lost) else op.send(came)
            except StopIteration as end:
                return end.value
            came = self.taken(step)

    def taken(self, step: Step) -> Any:
        """What comes of a step."""
        match step:
            case Look():
                patience_s = 60.0 if self.is_reached else 5.0
                return Moment(self.now_s, patience_s, self.is_reached, f"fresh-{self.now_s}")
            case Wait(seconds):
                self.waits.append(seconds)
                self.now_s += seconds
                return None
            case Send(request) | Open(request):
                self.sent.append(request)
                self.now_s += self._took_s
                told = self._told.pop(0) if len(self._told) > 1 else self._told[0]
                self.is_reached |= isinstance(told, Answer)
                return told
        raise AssertionError(step)


def refusing(
    status: int, code: str, headers: dict[str, str] | None = None, **detail: Any
) -> Answer:
    body = {"error": {"code": code, "message": "so it is", "detail": detail}}
    return Answer(status, headers or {}, json.dumps(body).encode())


GOOD = Answer(200, {}, b"{}")
ASK = Request("GET", "/v0/status")


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        (refusing(429, "throttled", {"retry-after": "3"}), 3.0),
        (refusing(503, "store_failing", {"retry-after": "2"}), 2.0),
        (refusing(429, "throttled", {"retry-after": "3"}, retry_after_ms=250), 0.25),
        (refusing(503, "not_ready"), 1.0),
        (refusing(429, "throttled", {"retry-after": "soon"}), 1.0),
        (refusing(429, "throttled", {"retry-after": "-1"}, retry_after_ms="x"), 1.0),
    ],
)
def test_a_refusal_for_now_is_repeated_when_the_daemon_says(answer: Answer, wait_s: float) -> None:
    world = World(answer, GOOD)
    assert world.run(asked(ASK)) is GOOD
    assert world.waits == [wait_s]


def test_a_lost_connection_is_tried_again_at_growing_distances() -> None:
    lost = Lost("reset", sent=True)
    world = World(*[lost] * 7, GOOD)
    world.run(asked(ASK))
    assert world.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Refused), (401, NotAllowed), (403, NotAllowed), (404, NotFound),
                         (409, Refused), (412, ConditionFailed), (413, Refused), (500, Refused)],
)  # fmt: skip
def test_what_will_never_be_accepted_is_raised_without_a_repetition(
    status: int, kind: type[Refused]
) -> None:
    world = World(refusing(status, "no", field="x"))
    with pytest.raises(kind) as raised:
        world.run(asked(ASK))
    error = raised.value
    assert (error.status, error.code, error.message) == (status, "no", "so it is")
    assert error.detail == {"field": "x"} and not error.is_unsure and not world.waits


def test_after_the_patience_the_last_refusal_is_raised() -> None:
    world = World(refusing(503, "store_failing", {"retry-after": "7"}))
    with pytest.raises(Refused) as raised:
        world.run(asked(ASK))
    assert raised.value.code == "store_failing" and sum(world.waits) == 56


def test_a_daemon_that_never_answered_is_waited_for_briefly_even_by_the_patient() -> None:
    world = World(Lost("refused", sent=False))
    world.is_reached = False
    with pytest.raises(Unreachable, match="refused"):
        world.run(asked(ASK, patience_s=float("inf")))
    assert sum(world.waits) <= 5


@pytest.mark.parametrize("patience_s", [None, 50.0])
def test_the_patience_with_a_daemon_that_answers_is_the_whole(
    patience_s: float | None,
) -> None:
    not_ready = refusing(503, "not_ready", {"retry-after": "4"})
    world = World(Lost("refused", sent=False), not_ready)
    world.is_reached = False
    with pytest.raises(Refused):
        world.run(asked(ASK, patience_s=patience_s))
    assert (patience_s or 60) - 4 < sum(world.waits) <= (patience_s or 60)


def test_an_outcome_that_stays_unknown_is_told_before_the_daemon_forgets_the_key() -> None:
    world = World(Lost("reset", sent=True), refusing(503, "not_ready", {"retry-after": "10"}))
    lines = calls.produce_lines("t", [b"{}"], idempotency_key="k", patience_s=float("inf"))
    with pytest.raises(OutcomeUnknown) as raised:
        world.run(lines)
    assert 40 < sum(world.waits) <= 60
    assert raised.value.code == "outcome_unknown" and raised.value.hint
    assert len({request.body for request in world.sent}) == 1


@pytest.mark.parametrize("unsure", [Lost("reset", sent=True), refusing(504, "outcome_unknown"),
                                    Answer(502, {}, b"<html>")])  # fmt: skip
def test_the_window_counts_from_the_first_attempt_that_may_have_done_it(
    unsure: Answer | Lost,
) -> None:
    sure = [refusing(503, "not_ready", {"retry-after": "60"})] * 5
    world = World(*sure, unsure, refusing(503, "not_ready", {"retry-after": "10"}), took_s=1)
    with pytest.raises(OutcomeUnknown):
        world.run(asked(ASK, patience_s=float("inf"), window_s=110))
    assert 300 + 90 < world.now_s - 1000 <= 305 + 112


def test_a_cursor_has_no_window() -> None:
    unsure = [Lost("reset", sent=True)] + [refusing(503, "not_ready", {"retry-after": "60"})] * 100
    moved = refusing(412, "cursor_moved", position=5)
    batch = Batch(0, 3, [b"{}", b"{}"])
    World(*unsure, moved).run(calls.produce_batch("t", batch, "run", "c"))


@pytest.mark.parametrize(
    "told", [[refusing(412, "cursor_moved", position=5)],
             [Lost("reset", sent=False), refusing(412, "cursor_moved", position=5)],
             [Lost("reset", sent=True), refusing(412, "cursor_moved", position=4)],
             [Lost("reset", sent=True), refusing(412, "cursor_moved", position=3)]],
)  # fmt: skip
def test_a_cursor_that_another_producer_moved_is_an_error(told: Sequence[Answer | Lost]) -> None:
    batch = Batch(0, 3, [b"{}", b"{}"])
    with pytest.raises(ConditionFailed):
        World(*told).run(calls.produce_batch("t", batch, "run", "c"))


def test_a_cursor_is_put_somewhere_once_since_others_may_have_moved_it_on() -> None:
    lost = Lost("reset", sent=True)
    world = World(lost, GOOD)
    with pytest.raises(OutcomeUnknown):
        world.run(calls.put_cursor("c", 5))
    assert len(world.sent) == 1
    world = World(refusing(503, "store_failing"), GOOD)
    world.run(calls.put_cursor("c", 5))
    world = World(lost, GOOD)
    world.run(calls.put_cursor("c"))
    assert len(world.sent) == 2


def test_a_deletion_whose_answer_was_lost_is_done_when_nothing_is_there() -> None:
    World(Lost("reset", sent=True), refusing(404, "unknown_topic")).run(calls.delete_topic("t"))
    with pytest.raises(NotFound):
        World(refusing(404, "unknown_topic")).run(calls.delete_topic("t"))


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"error": 1}', b'{"error": {}}', b"\xff"]
)
def test_an_error_of_another_program_is_not_taken_for_the_daemons(body: bytes) -> None:
    with pytest.raises(UnknownAnswer) as raised:
        World(Answer(404, {}, body)).run(asked(ASK))
    assert "404" in str(raised.value)


@pytest.mark.parametrize("status", [101, 301, 302, 304])
def test_a_redirection_is_not_followed_and_says_where_it_goes(status: int) -> None:
    moved = Answer(status, {"location": "https://example.invalid/"}, b"")
    with pytest.raises(UnknownAnswer, match=rf"{status} .*https://example\.invalid/"):
        World(moved).run(asked(ASK))


def test_an_answer_that_is_not_json_is_an_unknown_answer() -> None:
    with pytest.raises(UnknownAnswer):
        World(Answer(200, {}, b"hello")).run(calls.status())


def test_a_certificate_that_is_not_trusted_is_told_immediately() -> None:
    world = World(Lost("not trusted", sent=False, is_final=True))
    with pytest.raises(Unreachable, match="not trusted"):
        world.run(asked(ASK))
    assert not world.waits


@pytest.mark.parametrize("data", [float("nan"), {1, 2}, object(), "\ud800", {"a": b"bytes"}])
def test_what_json_cannot_say_is_refused_before_anything_is_sent(data: object) -> None:
    world = World(GOOD)
    with pytest.raises((TypeError, ValueError)):
        world.run(calls.produce("t", data))
    assert not world.sent


def test_names_are_quoted_and_must_not_be_empty() -> None:
    world = World(GOOD)
    world.run(calls.topic_state("a/b?c"))
    assert world.sent[0].path == "/v0/topics/a%2Fb%3Fc"
    with pytest.raises(ValueError, match="must not be empty"):
        world.run(calls.topic_state(""))
