"""The fuzzer on a real daemon, and what the fuzzer must be able to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.inputs import RECORD_TOPICS, Sent, mark_of, marks_in, stream_of
from tests.fuzz.judge import UNKNOWN, Said, judged
from tests.fuzz.kafka import KafkaHunt
from tests.fuzz.run import BODY_BYTES_MAX, Options, run
from uploader.l0.kafka import CORRUPT_MESSAGE

ME, OTHER = (7, 1), (8, 0)
TWO = Sent(b"request", RECORD_TOPICS[0], marks=2)


def test_a_stream_is_the_same_for_the_same_seed_and_number() -> None:
    for number in range(50):
        assert stream_of(3, number, BODY_BYTES_MAX) == stream_of(3, number, BODY_BYTES_MAX)
    assert stream_of(3, 0, BODY_BYTES_MAX) != stream_of(4, 0, BODY_BYTES_MAX)


def test_a_damaged_mark_belongs_to_no_request() -> None:
    mark = mark_of(12, 3, 4)
    assert marks_in(f"a{mark}b{mark.replace('12', '13')}") == [(12, 3, 4)]


def findings(said: Said, stored: set[int], there: dict[int, tuple[int, int]]) -> list[str]:
    return judged("it", said, stored, there, ME)


ANSWERED = Said(TWO, whole=True, status=200, first=5, last=6)
MINE = {5: ME, 6: ME}


@pytest.mark.parametrize(
    ("said", "stored", "there"),
    [
        (ANSWERED, {0, 1}, MINE),
        (Said(TWO, whole=True, status=400), set(), {}),
        (Said(TWO, whole=False), set(), {}),
        (Said(TWO, whole=True, status=UNKNOWN), {0, 1}, MINE),
        (Said(TWO, whole=True, status=504), {0, 1}, MINE),
        (Said(TWO, whole=True, status=504), set(), {}),
        (Said(TWO._replace(framed=False), whole=True, status=UNKNOWN), {0}, {5: ME}),
        (ANSWERED._replace(deduped=True), set(), {5: OTHER, 6: OTHER}),
    ],
)
def test_a_permitted_outcome_of_a_request_is_not_a_finding(
    said: Said, stored: set[int], there: dict[int, tuple[int, int]]
) -> None:
    assert findings(said, stored, there) == []


@pytest.mark.parametrize(
    ("said", "stored", "there"),
    [
        (Said(TWO, whole=True, status=400), {0, 1}, MINE),
        (Said(TWO, whole=True, status=503), {0}, {5: ME}),
        (Said(TWO, whole=True, status=504), {0}, {5: ME}),
        (Said(TWO, whole=False), {0, 1}, MINE),
        (Said(TWO, whole=True, status=UNKNOWN), {1}, {6: ME}),
        (ANSWERED, {0}, {5: ME}),
        (ANSWERED, set(), {}),
        (ANSWERED, {0, 1}, {5: ME, 6: OTHER}),
        (ANSWERED._replace(last=7), {0, 1}, MINE),
    ],
)
def test_what_may_not_come_of_a_request_is_a_finding(
    said: Said, stored: set[int], there: dict[int, tuple[int, int]]
) -> None:
    assert findings(said, stored, there)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "tls"), [(True, False), (False, True)])
def test_nothing_that_a_client_sends_breaks_the_daemon_or_is_half_stored(
    tmp_path: Path, tokens: bool, tls: bool
) -> None:
    report = run(Options(tmp_path, seed=1, seconds=15, tokens=tokens, tls=tls))
    assert report.findings == []
    assert report.answers[200] and report.answers[400] and report.records
    assert tokens == (401 in report.answers)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [False, True])
def test_nothing_that_a_client_of_kafka_sends_breaks_the_daemon_or_is_half_stored(
    tmp_path: Path, tokens: bool
) -> None:
    report = run(Options(tmp_path, seed=1, seconds=15, tokens=tokens), KafkaHunt)
    assert report.findings == []
    assert report.answers[0] and report.answers[CORRUPT_MESSAGE] and report.records
