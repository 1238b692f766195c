"""``headgate produce``, against answers in the shapes of the HTTP API.

That the daemon answers so is tested with the daemon (tests/cli/test_e2e.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripted import Answer, Call, refusal, run, says, scripted, state


def accepted(call: Call) -> Answer:
    """An acknowledgement of a produce request for one partition."""
    count = len(call.body["records"])
    return Answer(
        200,
        {
            "topic": "t", "partition": 0, "first_seq": 1, "last_seq": count, "count": count,
            "head_seq": count, "deduped": False,
        },
    )  # fmt: skip


def test_produce_sends_lines_of_json_in_batches() -> None:
    with scripted(accepted) as server:
        result = run(
            server, "produce", "t", "--batch", "2", "--key", "k", "--partition", "0",
            stdin='{"k":"a"}\n{"k": 1}\n\n"x"\n',
        )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout == "3 records (20 B) to t in 2 requests; partition 0: 1-1\n"
    first, second = (call.body for call in server.calls)
    assert first["records"] == [{"data": {"k": "a"}, "key": "a"}, {"data": {"k": 1}, "key": "1"}]
    assert second["records"] == [{"data": "x"}]
    assert first["partition"] == second["partition"] == 0
    assert first["idempotency_key"] != second["idempotency_key"]


def test_produce_summary_as_json_adds_up_the_partitions() -> None:
    def script(call: Call) -> Answer:
        n = len(server.calls)
        part = {"partition": n % 2, "first_seq": n, "last_seq": n, "count": 1, "head_seq": n}
        answer = {"topic": "t", "partitions": [part], "count": 1, "deduped": n == 3}
        return Answer(200, answer)

    with scripted(script) as server:
        result = run(server, "produce", "t", "--batch", "1", "-o", "json", stdin="1\n2\n3\n")
    assert json.loads(result.stdout) == {
        "topic": "t", "records": 3, "requests": 3, "bytes": 3, "retries": 0, "deduped": 1,
        "partitions": [
            {"partition": 0, "first_seq": 2, "last_seq": 2, "count": 1},
            {"partition": 1, "first_seq": 1, "last_seq": 3, "count": 2},
        ],
        "error": None,
    }  # fmt: skip


def test_produce_stops_at_the_refused_batch_and_names_the_line() -> None:
    def script(call: Call) -> Answer:
        if len(server.calls) == 2:
            return refusal(413, "too_large", "the record has 9 bytes, the limit is 8", record=1)
        return accepted(call)

    with scripted(script) as server:
        text = "1\n\n2\n3\n4\n5\n6\n"
        result = run(server, "produce", "t", "--batch", "2", "-o", "json", stdin=text)
    assert result.exit_code == 1 and len(server.calls) == 2
    assert "line 5: the record has 9 bytes" in result.stderr
    assert "the 2 records before it are stored" in result.stderr
    summary = json.loads(result.stdout)
    assert summary["records"] == 2
    assert (summary["error"]["line"], summary["error"]["code"]) == (5, "too_large")


def test_produce_names_all_lines_of_a_batch_that_is_refused_as_a_whole() -> None:
    with says(refusal(422, "topic_full")) as server:
        result = run(server, "produce", "t", stdin="1\n2\n3\n")
    assert result.exit_code == 1 and "lines 1 to 3: no (topic_full)" in result.stderr
    assert result.stdout == ""


def test_produce_sends_what_stands_before_a_line_that_is_no_record() -> None:
    with scripted(accepted) as server:
        result = run(server, "produce", "t", stdin="1\n2\n{\n4\n")
    assert result.exit_code == 1
    assert "line 3: is not JSON" in result.stderr
    assert "hint: a JSON document over several lines needs --format json; the 2" in result.stderr
    assert [len(call.body["records"]) for call in server.calls] == [2]


def test_produce_repeats_a_lost_batch_with_the_same_key() -> None:
    def script(call: Call) -> Answer:
        return Answer(0) if len(server.calls) == 1 else accepted(call)

    with scripted(script) as server:
        result = run(server, "produce", "t", "-o", "json", stdin="1\n")
    first, second = server.calls
    assert first == second and json.loads(result.stdout)["retries"] == 1


def test_produce_of_nothing_is_fine_and_sends_nothing() -> None:
    with scripted(accepted) as server:
        result = run(server, "produce", "t", stdin="")
    assert result.exit_code == 0 and server.calls == []
    assert result.stdout == "0 records (0 B) to t in 0 requests\n"


def test_produce_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text('[{"a": 1}, {"a": 2}]')
    with scripted(accepted) as server:
        assert run(server, "produce", "t", str(file), "--format", "json").exit_code == 0
    assert [each["data"] for each in server.calls[0].body["records"]] == [{"a": 1}, {"a": 2}]


def test_produce_ends_with_a_resume_point_that_goes_on_with_the_same_keys() -> None:
    lost = scripted(lambda call: accepted(call) if len(server.calls) == 1 else Answer(0))
    with lost as server:
        text = "".join(f"{n}\n" for n in range(1, 8))
        result = run(server, "produce", "t", "--batch", "3", "--wait", "0", "-o", "json",
                     stdin=text)  # fmt: skip
        first = server.calls[1].body
    assert result.exit_code == 3
    assert "lines 4 to 6: no answer from" in result.stderr
    assert "the 3 records before it are stored" in result.stderr
    error = json.loads(result.stdout)["error"]
    assert (error["line"], error["code"]) == (4, "unreachable")
    point = error["resume"]
    assert point.endswith(":4") and f"--resume {point}" in result.stderr
    with scripted(accepted) as server:
        result = run(server, "produce", "t", "--batch", "3", "--resume", point, stdin=text)
    assert result.exit_code == 0
    again, rest = (call.body for call in server.calls)
    assert again == first, "the batch that may be stored has the key that it had"
    assert [each["data"] for each in rest["records"]] == [7]


def test_batches_that_are_cut_elsewhere_are_never_taken_for_others() -> None:
    with scripted(accepted) as server:
        for size in ("2", "3"):
            run(server, "produce", "t", "--batch", size, "--resume", "ab:1", stdin="1\n2\n3\n4\n")
    keys = [call.body["idempotency_key"] for call in server.calls]
    assert keys == ["ab-1-2", "ab-3-4", "ab-1-3", "ab-4-4"]


def test_a_refused_batch_is_resumed_from_its_first_line() -> None:
    with says(refusal(422, "invalid", "bad", record=1)) as server:
        result = run(server, "produce", "t", "-o", "json", stdin="1\n2\n3\n")
    error = json.loads(result.stdout)["error"]
    assert error["line"] == 2 and error["resume"].endswith(":1")


@pytest.mark.parametrize("command", ["read", "produce"])
@pytest.mark.parametrize("point", ["", "7", "7:", "x:0=1", "7:0", "ab:0", "7:0=1,"])
def test_text_that_is_not_a_resume_point_is_a_usage_error(command: str, point: str) -> None:
    with says(Answer(200, state())) as server:
        result = run(server, command, "t", "--resume", point, stdin="")
    assert result.exit_code == 2 and "is not a resume point" in result.stderr
    assert server.calls == []
