"""The table of answers, and pauses that receivers ask for."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.push.posts.answers import (
    HOUR_MS,
    LOCAL_HOLD_MS,
    RETRY_AFTER_MS_MAX,
    TABLE,
    AnswerOutcome,
    PushAnswer,
    PushFailure,
    judge,
    markdown,
    meaning,
    retry_after_ms,
)

NOW_MS = 1_795_000_000_000


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_any_2xx_is_a_success(status: int) -> None:
    assert judge(PushAnswer(status=status)).outcome is AnswerOutcome.SUCCESS


@pytest.mark.parametrize(
    "status",
    [100, 101, 199, 301, 302, 307, 308, 401, 403, 404, 405, 407, 408, 421, 423, 425, 429,
     500, 501, 502, 503, 504, 507, 599, 600, 999, 0],
)  # fmt: skip
def test_these_statuses_are_failures_of_the_receiver(status: int) -> None:
    verdict = judge(PushAnswer(status=status))
    assert verdict.outcome is AnswerOutcome.RECEIVER
    assert verdict.is_failure
    assert str(status) in verdict.sentence


@pytest.mark.parametrize("status", [400, 406, 409, 411, 412, 413, 414, 415, 416, 417, 422, 431])
def test_these_statuses_are_failures_of_the_record_and_say_nothing_about_speed(status: int) -> None:
    verdict = judge(PushAnswer(status=status))
    assert verdict.outcome is AnswerOutcome.RECORD
    assert not verdict.is_failure


def test_410_pauses_the_subscription() -> None:
    assert judge(PushAnswer(status=410)).outcome is AnswerOutcome.GONE


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_the_receiver_asks_for_is_no_failure(status: int) -> None:
    verdict = judge(PushAnswer(status=status, retry_after_ms=7_000))
    assert (verdict.outcome, verdict.retry_after_ms) == (AnswerOutcome.HELD, 7_000)
    assert not verdict.is_failure


def test_other_statuses_with_a_pause_are_what_they_are_without_it() -> None:
    assert judge(PushAnswer(status=500, retry_after_ms=7_000)).outcome is AnswerOutcome.RECEIVER
    assert judge(PushAnswer(status=400, retry_after_ms=7_000)).outcome is AnswerOutcome.RECORD


@pytest.mark.parametrize("failure", [each for each in PushFailure if each != "local"])
def test_an_answer_that_does_not_count_is_a_failure_of_the_receiver(failure: PushFailure) -> None:
    # The status that came before the connection broke does not help it.
    for status in (None, 200, 400, 410):
        verdict = judge(PushAnswer(status=status, failure=failure, message="it broke"))
        assert (verdict.outcome, verdict.sentence) == (
            AnswerOutcome.RECEIVER,
            f"{failure}: it broke",
        )


def test_what_this_machine_is_short_of_holds_the_endpoint_for_a_second() -> None:
    verdict = judge(PushAnswer(failure=PushFailure.LOCAL, message="no files"))
    assert (verdict.outcome, verdict.retry_after_ms) == (AnswerOutcome.HELD, LOCAL_HOLD_MS)
    assert not verdict.is_failure


def test_each_status_and_each_failure_has_exactly_one_row() -> None:
    assert {meaning(PushAnswer(failure=failure)) for failure in PushFailure} <= set(TABLE)
    for status in range(-1, 1_002):
        assert meaning(PushAnswer(status=status)) in TABLE
    assert all(row.statuses or row.failures for row in TABLE)
    named = [failure for row in TABLE for failure in row.failures]
    assert sorted(named) == sorted(PushFailure)


@given(
    st.integers(0, 999),
    st.none() | st.sampled_from(PushFailure),
    st.none() | st.integers(1, RETRY_AFTER_MS_MAX),
)
def test_only_what_is_held_has_a_pause(
    status: int, failure: PushFailure | None, pause_ms: int | None
) -> None:
    verdict = judge(PushAnswer(status=status, failure=failure, retry_after_ms=pause_ms))
    assert (verdict.retry_after_ms is not None) == (verdict.outcome is AnswerOutcome.HELD)
    assert verdict.sentence


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1_000),
        (" 120 ", 120_000),
        ("3600", HOUR_MS),
        ("3601", HOUR_MS),
        ("9" * 5_000, HOUR_MS),
        ("0", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
        ("٣", None),
        ("Sun, 99 Nov 2026 99:99:99 GMT", None),
        ("x" * 100_000, None),
        (formatdate(NOW_MS / 1_000 + 90, usegmt=True), 90_000),
        (formatdate(NOW_MS / 1_000 - 90, usegmt=True), None),
        (formatdate(NOW_MS / 1_000 + 1e6, usegmt=True), HOUR_MS),
    ],
)  # fmt: skip
def test_a_pause_is_seconds_or_a_date_and_at_most_an_hour(value: str, expected: int | None) -> None:
    assert retry_after_ms(value, None, NOW_MS) == expected


def test_a_date_is_compared_with_the_receivers_own_clock() -> None:
    theirs = NOW_MS / 1_000 - 86_400
    value, date = formatdate(theirs + 60, usegmt=True), formatdate(theirs, usegmt=True)
    assert retry_after_ms(value, date, NOW_MS) == 60_000
    assert retry_after_ms(value, "nonsense", NOW_MS) is None


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", ""),
        (b'{"error":\n "no such customer"}', ': {"error": "no such customer"}'),
        (b"\x1b[31mred\x00\xff", ": [31mred \ufffd"),
        (b"x" * 1_024, ": " + "x" * 200 + "..."),
    ],
)
def test_a_sentence_says_what_the_receiver_said_in_a_line(head: bytes, said: str) -> None:
    sentence = judge(PushAnswer(status=422, head=head)).sentence
    assert sentence == f"the receiver answered 422 (the receiver refuses these records){said}"


def test_the_table_in_the_documentation_is_the_one_that_is_gone_by() -> None:
    page = (Path(__file__).parents[4] / "docs" / "push.md").read_text()
    assert markdown() in page, "docs/push.md must have the table of delivery/push/posts/answers.py"


@given(st.text() | st.from_regex(r"[0-9A-Za-z,: +-]{0,40}"), st.none() | st.text())
def test_no_text_of_a_receiver_is_too_odd_for_it(value: str, date: str | None) -> None:
    pause_ms = retry_after_ms(value, date, NOW_MS)
    assert pause_ms is None or 0 < pause_ms <= RETRY_AFTER_MS_MAX
