"""The receiver of pushed records behaves as it is told, and notes what it gets before it answers
it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import UNANSWERED, ask
from tools.receiver.behavior import Behavior, Endpoint, Way
from tools.receiver.log import Came, Event, Went
from tools.receiver.process import ReceiverProcess

SECOND_NS = 1_000_000_000


def endpoint(behavior: Behavior) -> Endpoint:
    made = Endpoint(random.Random(1))
    made.behave(behavior)
    return made


def test_what_is_beyond_the_capacity_is_refused_and_costs_nothing_of_it() -> None:
    made = endpoint(Behavior(capacity_per_s=100, burst_s=0.05))
    statuses = [
        made.post(n * SECOND_NS // 400, 1).status  # four times as fast, for ten seconds
        for n in range(4_000)
    ]
    assert 1_000 <= statuses.count(200) <= 1_006
    assert statuses.count(503) == 4_000 - statuses.count(200)


def test_a_capacity_below_the_rate_of_the_burst_still_serves_one() -> None:
    made = endpoint(Behavior(capacity_per_s=0.5, burst_s=0.1))
    assert [made.post(n * SECOND_NS, 1).status for n in range(5)] == [200, 503, 200, 503, 200]


def test_a_changed_capacity_counts_from_then_on() -> None:
    made = endpoint(Behavior(capacity_per_s=0))
    assert made.post(0, 1).status == 503
    made.behave(Behavior(capacity_per_s=10))
    assert made.post(1, 1).status == 200


def test_shares_are_of_all_posts() -> None:
    made = endpoint(Behavior(error_share=0.2, silent_share=0.1, cut_share=0.1, lost_share=0.1))
    ways = [made.post(0, 1) for _ in range(10_000)]
    assert 1_800 < sum(each.status == 500 for each in ways) < 2_200
    for way in (Way.SILENT, Way.CUT, Way.LOST):
        assert 850 < sum(each.way is way for each in ways) < 1_150


def test_some_records_are_always_refused_and_some_at_first() -> None:
    made = endpoint(Behavior(refused_every=5, faltered_every=5))
    texts = [f"record {n}" for n in range(1_000)]
    first = {text for text in texts if made.post(0, 1, [text]).status == 400}
    second = {text for text in texts if made.post(0, 1, [text]).status == 400}
    assert 150 < len(second) < 250
    assert second < first and 150 < len(first - second) < 250
    assert made.post(0, 2, ["record 0", next(iter(second))]).status == 400


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceiverProcess]:
    with ReceiverProcess(tmp_path_factory.mktemp("receiver") / "log") as process:
        yield process


def post(receiver: ReceiverProcess, name: str, body: bytes, **headers: str) -> int:
    """The status of a POST; 0 for an answer that did not come whole."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        return ask(receiver.port, "POST", f"/{name}", body, fields).status
    except UNANSWERED:
        return 0


def test_all_modes_of_events_are_noted_with_their_answers(receiver: ReceiverProcess) -> None:
    document = {"specversion": "1.0", "id": "b", "data": "two"}
    batch = [document, {"specversion": "1.0", "id": "c", "data": {"x": 1}}]
    assert post(receiver, "modes", b'"one"', ce_id="a", content_type="application/json") == 200
    kind = "application/cloudevents+json; charset=utf-8"
    assert post(receiver, "modes", json.dumps(document).encode(), content_type=kind) == 200
    kind = "application/cloudevents-batch+json"
    assert post(receiver, "modes", json.dumps(batch).encode(), content_type=kind) == 200
    found = [each for each in receiver.entries() if each.endpoint == "modes"]
    assert [each.events for each in found if isinstance(each, Came)] == [
        (Event("a", '"one"'),),
        (Event("b", '"two"'),),
        (Event("b", '"two"'), Event("c", '{"x":1}')),
    ]
    assert [(each.status, each.is_whole) for each in found if isinstance(each, Went)] == [
        (200, True)
    ] * 3
    counts = receiver.counts("modes")
    assert (counts.posts, counts.events, counts.statuses) == (3, 4, {200: 3})


@pytest.mark.parametrize(
    ("behavior", "status", "noted"),
    [
        (Behavior(status=204), 204, (204, True)),
        (Behavior(status=302), 302, (302, True)),
        (Behavior(capacity_per_s=0, beyond_status=429), 429, (429, True)),
        (Behavior(cut_share=1), 0, (200, False)),
        (Behavior(lost_share=1), 0, (200, False)),
    ],
)
def test_answers_are_as_told(
    receiver: ReceiverProcess, behavior: Behavior, status: int, noted: tuple[int, bool]
) -> None:
    receiver.behave("told", behavior)
    assert post(receiver, "told", b"1") == status
    last = receiver.entries()[-1]
    assert isinstance(last, Went)
    assert (last.status, last.is_whole) == noted


def test_a_killed_receiver_goes_on_with_its_log_and_its_behavior(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ReceiverProcess(log) as process:
        process.behave("some", Behavior(status=202))
        assert post(process, "some", b"1") == 202
        process.kill()
        with log.open("ab") as file:
            file.write(b'{"type":"ca')  # what a kill has cut
        process.start()
        assert post(process, "some", b"2") == 202
        numbers = [each.number for each in process.entries()]
        assert len(numbers) == 4 and len(set(numbers)) == 2
        assert process.counts("some").posts == 1
