"""``headgate produce``, against answers in the shapes of the HTTP API.

That the daemon answers so is tested with the daemon (tests/cli/test_e2e.py).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.scripted import Answer, Call, Scripted, refusal, run, says, scripted, state


def sent(server: Scripted) -> list[Call]:
    """The produce requests."""
    return [call for call in server.calls if call.method == "POST"]


def accepted(call: Call) -> Answer:
    """An acknowledgement of a produce request for one partition. A cursor is made, and none is
    there yet."""
    if call.method == "GET":
        return refusal(404, "cursor_unknown")
    if call.method != "POST":
        name = call.path.rpartition("/")[2]
        return Answer(
            200,
            {"cursor": name, "cursor_id": 1, "kind": "client", "positions": [], "created_ms": 0},
        )
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
    first, second = (call.body for call in sent(server))
    assert first["records"] == [{"data": {"k": "a"}, "key": "a"}, {"data": {"k": 1}, "key": "1"}]
    assert second["records"] == [{"data": "x"}]
    assert first["partition"] == second["partition"] == 0
    assert first["idempotency_key"] != second["idempotency_key"]


def test_produce_summary_as_json_adds_up_the_partitions() -> None:
    def script(call: Call) -> Answer:
        if call.method != "POST":
            return accepted(call)
        n = len(sent(server))
        part = {"partition": n % 2, "first_seq": n, "last_seq": n, "count": 1, "head_seq": n}
        answer = {"topic": "t", "partitions": [part], "count": 1, "deduped": n == 3}
        return Answer(200, answer)

    with scripted(script) as server:
        result = run(server, "produce", "t", "--batch", "1", "-o", "json", stdin="1\n2\n3\n")
    summary = json.loads(result.stdout)
    assert summary.pop("seconds") >= 0
    assert summary == {
        "topic": "t", "records": 3, "requests": 3, "bytes": 3, "retries": 0, "deduped": 1,
        "partitions": [
            {"partition": 0, "first_seq": 2, "last_seq": 2, "count": 1},
            {"partition": 1, "first_seq": 1, "last_seq": 3, "count": 2},
        ],
        "error": None,
    }  # fmt: skip


def test_produce_stops_at_the_refused_batch_and_names_the_line() -> None:
    def script(call: Call) -> Answer:
        if call.method == "POST" and len(sent(server)) == 2:
            return refusal(413, "too_large", "the record has 9 bytes, the limit is 8", record=1)
        return accepted(call)

    with scripted(script) as server:
        text = "1\n\n2\n3\n4\n5\n6\n"
        result = run(server, "produce", "t", "--batch", "2", "-o", "json", stdin=text)
    assert result.exit_code == 1
    assert "line 5: the record has 9 bytes" in result.stderr
    assert "the 2 records before it are stored" in result.stderr
    summary = json.loads(result.stdout)
    assert summary["records"] == 2
    assert (summary["error"]["line"], summary["error"]["code"]) == (5, "too_large")
    assert not summary["error"]["is_unsure"] and "and nothing after it" in result.stderr


def test_produce_names_all_lines_of_a_batch_that_is_refused_as_a_whole() -> None:
    with says(refusal(422, "topic_full")) as server:
        result = run(server, "produce", "t", stdin="1\n2\n3\n")
    assert result.exit_code == 1 and "lines 1 to 3: no (topic_full)" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("status", [429, 503])
def test_produce_that_is_refused_for_now_for_too_long_names_the_batch(status: int) -> None:
    with says(refusal(status, "busy")) as server:
        result = run(server, "produce", "t", "--wait", "0", stdin="1\n2\n")
    assert result.exit_code == 1 and "lines 1 to 2: no (busy)" in result.stderr


def test_produce_sends_what_stands_before_a_line_that_is_no_record() -> None:
    with scripted(accepted) as server:
        result = run(server, "produce", "t", stdin="1\n2\n{\n4\n")
    assert result.exit_code == 1
    assert "line 3: is not JSON" in result.stderr
    assert "hint: a JSON document over several lines needs --format json; the 2" in result.stderr
    assert [len(call.body["records"]) for call in sent(server)] == [2]


def test_produce_repeats_a_lost_batch_with_the_same_key() -> None:
    def script(call: Call) -> Answer:
        return Answer(0) if len(sent(server)) == 1 else accepted(call)

    with scripted(script) as server:
        result = run(server, "produce", "t", "-o", "json", stdin="1\n")
    first, second = server.calls
    assert first == second and json.loads(result.stdout)["retries"] == 1


def test_each_request_moves_a_cursor_over_its_lines_once_a_second_one_waits() -> None:
    with scripted(accepted) as server:
        assert run(server, "produce", "t", "--batch", "2", stdin="1\n\n2\n3\n4\n5\n").exit_code == 0
    put, delete = (call for call in server.calls if call.method in ("PUT", "DELETE"))
    cursor, place = put.path.rpartition("/")[2], put.body["positions"][0]["seq"]
    assert put.body == {"positions": [{"seq": place, "partition": 0, "expected": None}]}
    assert (delete.method, delete.body) == ("DELETE", None)
    # On a busy machine the second batch may be read when the first is stored already.
    moves = [
        {"cursor": cursor, "expected": expected, "next": following}
        for expected, following in ((3, 5), (5, 6))
        if expected >= place
    ]
    assert place in (3, 5)
    assert [call.body.get("advance") for call in sent(server)] == [None] * (3 - len(moves)) + moves


def test_who_may_make_no_cursor_sends_one_request_at_a_time() -> None:
    def script(call: Call) -> Answer:
        return accepted(call) if call.method == "POST" else refusal(403, "forbidden", "not yours")

    with scripted(script) as server:
        result = run(server, "produce", "t", "--batch", "1", stdin="1\n2\n3\n")
    assert result.exit_code == 0
    assert "one request is sent at a time: not yours (forbidden)" in result.stderr
    assert [call.body.get("advance") for call in sent(server)] == [None] * 3


def test_a_resumed_run_begins_where_its_cursor_is() -> None:
    def script(call: Call) -> Answer:
        if call.method == "POST":
            return accepted(call)
        where = [{"partition": 0, "seq": 3, "set_seq": 0}]
        return Answer(200, {"cursor": "c", "cursor_id": 1, "kind": "client", "positions": where,
                            "created_ms": 0})  # fmt: skip

    with scripted(script) as server:
        assert run(server, "produce", "t", "--resume", "ab:2", stdin="1\n2\n3\n4\n").exit_code == 0
    (call,) = sent(server)
    assert call.body["advance"] == {"cursor": "produce:ab", "expected": 3, "next": 4}
    assert call.body["records"] == [{"data": 4}]


def test_what_comes_after_a_request_that_is_refused_for_now_is_sent_again_after_it() -> None:
    place = moved = 0
    refused: set[str] = set()
    stored: list[int] = []

    def script(call: Call) -> Answer:
        nonlocal place, moved
        if call.method != "POST":
            return accepted(call)
        key = call.body["idempotency_key"]
        if len(sent(server)) % 5 == 0 and key not in refused:
            refused.add(key)
            return refusal(429, "throttled", retry_after_ms=1)
        move = call.body.get("advance") or {"expected": place, "next": place + 1}
        if move["expected"] != place:
            moved += 1
            return refusal(412, "cursor_moved", position=place)
        place = move["next"]
        stored.extend(each["data"] for each in call.body["records"])
        return accepted(call)

    with scripted(script) as server:
        text = "".join(f"{n}\n" for n in range(120))
        result = run(server, "produce", "t", "--batch", "1", stdin=text)
    assert result.exit_code == 0, result.stderr
    assert stored == list(range(120))
    assert moved, "several were in flight"


def test_fields_of_records_are_named_or_given() -> None:
    with scripted(accepted) as server:
        result = run(
            server, "produce", "t", "--key-field", "k", "--ts", "at", "--tag", "blue",
            "--meta", "a=b=c", "--meta", "d=", stdin='{"k": "x", "at": 7}\n',
        )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert sent(server)[0].body["records"] == [
        {"data": {"k": "x", "at": 7}, "key": "x", "ts": 7, "tag": "blue",
         "meta": {"a": "b=c", "d": ""}},
    ]  # fmt: skip
    result = run(server, "produce", "t", "--meta", "a", stdin="")
    assert result.exit_code == 2 and "must be NAME=VALUE, got 'a'" in result.stderr


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
    assert [each["data"] for each in sent(server)[0].body["records"]] == [{"a": 1}, {"a": 2}]


def test_produce_ends_with_a_resume_point_that_goes_on_with_the_same_keys() -> None:
    lost = scripted(lambda call: accepted(call) if len(sent(server)) == 1 else Answer(0))
    with lost as server:
        text = "".join(f"{n}\n" for n in range(1, 8))
        result = run(server, "produce", "t", "--batch", "3", "--wait", "0", "-o", "json",
                     stdin=text)  # fmt: skip
        first = sent(server)[1].body
    assert result.exit_code == 3
    assert "lines 4 to 6: no answer from" in result.stderr
    assert "the 3 records before it are stored" in result.stderr
    error = json.loads(result.stdout)["error"]
    assert (error["line"], error["code"]) == (4, "unreachable")
    assert error["is_unsure"] and "of the next ones that is not known" in result.stderr
    point = error["resume"]
    assert point.endswith(":4") and f"--resume {point}" in result.stderr
    with scripted(accepted) as server:
        result = run(server, "produce", "t", "--batch", "3", "--resume", point, stdin=text)
    assert result.exit_code == 0
    again, rest = (call.body for call in sent(server))
    assert again["records"] == first["records"]
    assert again["idempotency_key"] == first["idempotency_key"], (
        "the batch that may be stored has the key that it had"
    )
    assert [each["data"] for each in rest["records"]] == [7]


def test_ctrl_c_before_an_answer_claims_nothing_of_what_was_sent() -> None:
    def script(call: Call) -> Answer:
        if call.method == "POST" and len(sent(server)) > 1:
            signal.raise_signal(signal.SIGINT)
            return Answer(0)
        return accepted(call)

    with scripted(script) as server:
        text = "".join(f"{n}\n" for n in range(1, 8))
        result = run(server, "produce", "t", "--batch", "3", "-o", "json", stdin=text)
    assert result.exit_code == 1 and "stopped before line 4" in result.stderr
    assert "the 3 records before it are stored, and of the next ones that" in result.stderr
    error = json.loads(result.stdout)["error"]
    assert error["is_unsure"] and f"--resume {error['resume']}" in result.stderr
    assert "tail -n" not in result.stderr


def test_batches_that_are_cut_elsewhere_are_never_taken_for_others() -> None:
    with scripted(accepted) as server:
        for size in ("2", "3"):
            run(server, "produce", "t", "--batch", size, "--resume", "ab:1", stdin="1\n2\n3\n4\n")
    keys = [call.body["idempotency_key"] for call in sent(server)]
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
