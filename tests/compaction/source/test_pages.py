"""Reading through diff: answers with more than was asked for, and topics created again."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from compaction.inputs.place import Place
from compaction.source.errors import DataLoss, TopicRecreated
from compaction.source.planner import DaemonPlanner, TopicPartitions
from compaction.source.read_tasks import OffsetRange, ReadTask
from compaction.source.reader import TaskReader
from tests.scripted import Answer, Script, Scripted, scripted


def page(*seqs: int, next_from_seq: int, topic_id: int = 7, **more: Any) -> Answer:
    """An answer of diff."""
    records = [{"seq": seq, "ts": 5, "data": seq} for seq in seqs]
    common = {
        "records": records, "next_from_seq": next_from_seq, "head_seq": 99, "earliest_seq": 1,
        "caught_up": False, "lag": 0, "topic_id": topic_id, "tombstone": None,
    }  # fmt: skip
    return Answer(200, common | more)


def read(server: Scripted, start: int, stop: int, *, fail: bool = True) -> list[int]:
    """The offsets of what a task reads."""
    reader = TaskReader(Place("file:///nowhere"), DaemonPlanner(server.url), fail_on_data_loss=fail)
    task = ReadTask("", {7: "t"}, through_diff=(OffsetRange(7, 0, start, stop),))
    return [seq for batch in reader.read(task) for seq in batch.column("offset").to_pylist()]


def gap(first: int, last: int, reason: str) -> dict[str, Any]:
    return {"gap_from": first, "gap_to": last, "reason": reason}


def test_records_after_the_end_of_the_range_are_left_out() -> None:
    """A gap in the range leaves room for more records than were asked for."""
    after = page(6, 7, 8, 9, next_from_seq=9, tombstone=gap(3, 5, "recovery"))
    answers = iter([page(1, 2, next_from_seq=2), after])
    with scripted(lambda call: next(answers)) as server:
        assert read(server, 1, 8) == [1, 2, 6, 7]
        assert [call.body["limit"] for call in server.calls] == [7, 5]


def test_a_task_says_of_which_topic_its_offsets_are() -> None:
    with scripted(lambda call: page(3, 4, next_from_seq=4)) as server:
        assert read(server, 3, 5) == [3, 4]
    assert server.calls[0].body == {"partition": 0, "from_seq": 2, "limit": 2, "topic_id": 7}


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_was_made_anew_under_a_task_is_a_loss_and_not_its_records(
    fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    anew = page(1, 2, 3, next_from_seq=3, topic_id=8, tombstone=gap(5, 9, "recreated"))
    answers = iter([page(3, 4, next_from_seq=4), anew])
    script: Script = lambda call: next(answers)  # noqa: E731
    with scripted(script) as server, caplog.at_level(logging.WARNING):
        if fail:
            with pytest.raises(DataLoss, match=r"offsets 5 to 7 of topic 't'.*created again"):
                read(server, 3, 8)
        else:
            assert read(server, 3, 8, fail=False) == [3, 4]
            assert "offsets 5 to 7 of topic 't'" in caplog.text


def test_a_time_that_is_looked_up_in_a_topic_that_was_made_anew_is_refused() -> None:
    with (
        scripted(lambda call: page(1, next_from_seq=1, topic_id=8)) as server,
        pytest.raises(TopicRecreated, match="created again"),
    ):
        DaemonPlanner(server.url).extent_at(TopicPartitions("t", 7, []), 0, 5)
