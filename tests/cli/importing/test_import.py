"""``headgate import`` against answers in the shapes of the HTTP API: refusals and lost answers.

That the daemon answers so is tested with the daemon (tests/e2e/test_import.py).
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import Result

from commands.importing import governed, source
from commands.importing.names import END, POSITION
from commands.importing.reading.text import PEEK_BYTES
from daemon.schemas.api import SOURCE_NAME_MAX
from tests.scripted import Answer, Call, Script, refusal, run, scripted, state

ZSTD_BLOCK_BYTES = 128 << 10  # text comes out of it a block at a time


class Cursors:
    """A script that does with topics and cursors what the daemon does. ``fault`` may answer a
    produce request instead, told its number; an answer of status 0 hangs up, after the request was
    stored or, with a body, before."""

    def __init__(self, fault: Callable[[int, Call], Answer | None] = lambda n, call: None) -> None:
        self.stored: list[Any] = []
        self.positions: dict[str, dict[int, int]] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.told: list[str] = []
        self.produced: list[Any] = []
        self.connections: list[str] = []
        self.fault = fault

    def __call__(self, call: Call) -> Answer:
        path, _, query = call.path.partition("?")
        kind, name = path.removeprefix("/v0/").split("/", 1)
        if kind == "cursors":
            return self._cursor(call, name)
        if call.method != "POST":
            return Answer(200, state(name))
        assert query == "create=false" and call.body["dedupe"] == "none"
        self.produced.append(call.body)
        answer = self.fault(len(self.produced), call)
        if answer is not None and (answer.status or answer.body):
            return answer
        advance = call.body["advance"]
        there = self.positions[advance["cursor"]]
        if there.get(0, 0) != advance["expected"]:
            return refusal(412, "cursor_moved", position=there.get(0, 0))
        there[0] = advance["next"]
        records = [each.get("data", each.get("data_b64")) for each in call.body["records"]]
        self.stored += records
        if answer is not None:
            return answer
        head = len(self.stored)
        return Answer(200, {"topic": name, "partition": 0, "first_seq": head - len(records) + 1,
                            "last_seq": head, "count": len(records), "head_seq": head,
                            "deduped": False})  # fmt: skip

    def _cursor(self, call: Call, name: str) -> Answer:
        if call.method == "DELETE":
            self.positions.pop(name, None)
            return Answer(200, {"cursor": name})
        if call.method == "PUT":
            there = self.positions.setdefault(name, {})
            for each in call.body["positions"]:
                if each.get("expected") is not None and each["expected"] != there.get(0, 0):
                    return refusal(412, "cursor_moved", position=there.get(0, 0))
                there[each.get("partition", 0)] = each["seq"]
            if call.body.get("source"):
                self.sources[name] = call.body["source"]
                self.told.append(call.body["source"]["name"])
        elif name not in self.positions:
            return refusal(404, "cursor_unknown")
        positions = [{"partition": p, "seq": s} for p, s in self.positions[name].items()]
        return Answer(200, {"cursor": name, "cursor_id": 1, "kind": "client",
                            "positions": positions, "created_ms": 1,
                            "source": self._source(name)})  # fmt: skip

    def _source(self, name: str) -> dict[str, Any] | None:
        told = self.sources.get(name)
        if told is None:
            return None
        at, size = self.positions[name].get(0, 0), told.get("size_bytes")
        lag = None if size is None else max(0, size - at)
        return {"size_bytes": None, **told, "lag_bytes": lag, "told_ms": 1}


def imported(script: Script, path: Path, *options: str) -> Result:
    with scripted(script) as server:
        return run(server, "import", "t", str(path), "-o", "json", "--wait", "20", *options)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file with the numbers 0 to 9."""
    path = tmp_path / "numbers"
    path.write_text("".join(f"{n}\n" for n in range(10)))
    return path


def steps(script: Cursors) -> list[tuple[int, int]]:
    return [(each["advance"]["expected"], each["advance"]["next"]) for each in script.produced]


def test_requests_of_a_source_make_a_chain_on_one_connection(lines: Path) -> None:
    script = Cursors()
    with scripted(script) as server:
        done = run(server, "import", "t", str(lines), "--batch", "4", "--partition", "2")
    assert done.exit_code == 0
    assert script.stored == list(range(10))
    assert steps(script) == [(0, 8), (8, 16), (16, 20)]
    assert [each["partition"] for each in script.produced] == [2, 2, 2]
    assert server.connections == 2, "one for requests, and one for topics and cursors"


@pytest.mark.parametrize(
    "busy",
    [
        refusal(429, "throttled", retry_after_ms=5),
        refusal(503, "store_failing", retry_after_ms=5),
        Answer(503, refusal(503, "not_ready").body, {"Retry-After": "0"}),
    ],
)
def test_a_request_that_is_refused_for_now_is_sent_again_and_so_are_those_after_it(
    busy: Answer, lines: Path
) -> None:
    script = Cursors(lambda number, call: busy if number in (2, 4) else None)
    done = imported(script, lines, "--batch", "2")
    assert done.exit_code == 0, done.stderr
    assert script.stored == list(range(10))
    assert json.loads(done.stdout)["totals"]["retries"] == 2
    assert steps(script)[:3] == [(0, 4), (4, 8), (8, 12)], "the chain goes on until it is refused"


@pytest.mark.parametrize("is_stored", [False, True])
def test_what_was_lost_with_its_connection_is_stored_once(is_stored: bool, lines: Path) -> None:
    lost = Answer(0) if is_stored else Answer(0, "not stored")
    script = Cursors(lambda number, call: lost if number == 2 else None)
    done = imported(script, lines, "--batch", "2")
    assert done.exit_code == 0, done.stderr
    assert script.stored == list(range(10))
    totals = json.loads(done.stdout)["totals"]
    # The answer to the first may be lost too: a connection that is reset drops what is not read.
    assert totals["already_stored"] in ((2, 4) if is_stored else (0, 2))
    assert totals["records"] + totals["already_stored"] == 10


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_request_whose_outcome_is_unknown_is_stored_once(is_stored: bool, lines: Path) -> None:
    def fault(number: int, call: Call) -> Answer | None:
        if number != 2:
            return None
        if is_stored:
            script.fault = lambda number, call: None
            script(call)
            script.fault = fault
        return refusal(504, "outcome_unknown")

    script = Cursors(fault)
    done = imported(script, lines, "--batch", "2")
    assert done.exit_code == 0, done.stderr
    assert script.stored == list(range(10))


def test_patience_ends_and_what_the_daemon_said_is_the_message(lines: Path) -> None:
    script = Cursors(lambda number, call: refusal(429, "throttled", "full", retry_after_ms=60_000))
    done = imported(script, lines)
    assert done.exit_code == 1 and f"{lines}: full (throttled)" in done.stderr
    (position,) = script.positions.values()
    assert position.get(0, 0) == 0 and script.stored == [], "the source is paused where it is"


def test_a_refusal_for_good_ends_all_sources_that_have_not_begun(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}").write_text(f"{n}\n")
    script = Cursors(lambda number, call: refusal(422, "topic_full", "the topic is full"))
    with scripted(script) as server:
        done = run(server, "import", "t", f"{tmp_path}/*", "--parallel", "1", "-o", "json")
    assert done.exit_code == 1 and "the topic is full (topic_full)" in done.stderr
    totals = json.loads(done.stdout)["totals"]
    assert (totals["failed"], totals["stopped"], len(script.produced)) == (1, 2, 1)


def test_ctrl_c_stores_what_was_read_and_the_same_command_goes_on(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}").write_text(f"{n}\n")

    def fault(number: int, call: Call) -> Answer | None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return None

    script = Cursors(fault)
    with scripted(script) as server:
        stopped = run(server, "import", "t", f"{tmp_path}/*", "--parallel", "1")
        assert stopped.exit_code == 1 and script.stored == [0, 1]
        assert "stopped: 1 of 3 sources" in stopped.stderr
        assert run(server, "import", "t", f"{tmp_path}/*").exit_code == 0
    assert script.stored == [0, 1, 2]


def test_ctrl_c_does_not_wait_for_a_daemon_that_is_away(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governed, "STOP_S", 0.01)
    busy = refusal(503, "store_failing", retry_after_ms=600_000)

    def interrupted(number: int, call: Call) -> Answer:
        os.kill(os.getpid(), signal.SIGINT)
        return busy

    script = Cursors(interrupted)
    done = imported(script, lines, "--wait", "86400")
    assert done.exit_code == 1 and "stopped: 1 of 1 sources" in done.stderr

    def away(call: Call) -> Answer:
        if "cursors" in call.path:
            return interrupted(0, call)
        return script(call)

    done = imported(away, lines, "--wait", "86400")
    assert done.exit_code == 3 and "stopped while it was waited for" in done.stderr


def test_another_server_is_told_apart_from_a_daemon(lines: Path) -> None:
    script = Cursors(lambda number, call: Answer(502, b"<html>bad gateway"))
    done = imported(script, lines)
    assert done.exit_code == 1 and "without an error in Headgate's form" in done.stderr


def test_a_cursor_that_another_client_sets_back_ends_the_import(lines: Path) -> None:
    def fault(number: int, call: Call) -> Answer | None:
        return refusal(412, "cursor_moved", position=1) if number == 2 else None

    done = imported(Cursors(fault), lines, "--batch", "2", "--batch-bytes", "4")
    assert done.exit_code == 1 and "another client has set it" in done.stderr


def test_a_missing_topic_is_created_before_its_id_names_cursors(lines: Path) -> None:
    made: list[str] = []
    script = Cursors()

    def without(call: Call) -> Answer:
        if call.path == "/v0/topics/t" and call.method == "GET" and not made:
            return refusal(404, "unknown_topic")
        if call.path == "/v0/topics/t" and call.method == "PUT":
            made.append(call.path)
            return Answer(201, state("t"))
        return script(call)

    assert imported(without, lines).exit_code == 0
    assert made and script.stored == list(range(10))


def test_files_with_the_same_content_have_cursors_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "c").hardlink_to(tmp_path / "a")
    script = Cursors()
    assert imported(script, tmp_path / "*").exit_code == 0
    assert script.stored == [1, 1] and len(script.positions) == 2
    moved = tmp_path / "elsewhere"
    (tmp_path / "a").rename(moved)
    assert imported(script, moved).exit_code == 0
    assert script.stored == [1, 1]
    assert imported(script, moved, "--identity", "path").exit_code == 0
    moved.rename(tmp_path / "old")
    moved.write_text("1\n2\n")
    assert imported(script, moved, "--identity", "path").exit_code == 0
    assert script.stored == [1, 1, 1, 2]


def test_a_cursor_tells_where_its_file_is_and_how_long_it_is_also_after_a_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a"
    path.write_text("1\n2\n")
    script = Cursors()
    assert imported(script, Path("a")).exit_code == 0
    (cursor,) = script.sources
    source = {"name": str(path), "topic_id": 7, "size_bytes": 4}
    assert script.sources == {cursor: source} and script._source(cursor)["lag_bytes"] == 0  # type: ignore[index]
    assert imported(script, path).exit_code == 0
    assert script.told == [str(path)], "what has not changed is told once"
    # Under a path of 255-byte names that has more characters than a cursor tells.
    folder = tmp_path / ("d" * 250) / ("e" * 250)
    folder.mkdir(parents=True)
    path.rename(folder / "b")
    with open(folder / "b", "a") as file:
        file.write("3\n")
    assert imported(script, folder / "b").exit_code == 0
    told = script.sources[cursor]
    assert told["size_bytes"] == 6 and len(told["name"]) == SOURCE_NAME_MAX
    assert told["name"].startswith("\u2026") and told["name"].endswith(f"/{'e' * 250}/b")
    assert script.stored == [1, 2, 3] and [*script.sources] == [cursor]


@pytest.mark.parametrize("text", [b"1\n", b"[1]\n \n", gzip.compress(b"1\n\n", mtime=0)])
def test_a_cursor_of_a_former_version_is_found_and_then_tells_its_source(
    text: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(text)
    script = Cursors()
    assert imported(script, path).exit_code == 0
    ((cursor, source),) = script.sources.items()
    script.sources.clear()
    script.told.clear()
    for _ in range(2):
        assert imported(script, path).exit_code == 0
    assert script.stored == [1] and script.sources == {cursor: source}
    assert script.told == [str(path)] and script._source(cursor)["lag_bytes"] == 0  # type: ignore[index]


def test_a_name_that_is_not_text_is_shown_as_well_as_it_can_be(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff")
    Path(path).write_text("{\n")
    script = Cursors()
    done = imported(script, Path(path), "--invalid", "bad")
    assert done.exit_code == 0, done.output
    assert script.stored[0]["source"] == f"{tmp_path}/\ufffd"
    assert json.loads(done.stdout)["sources"][0]["source"] == f"{tmp_path}/\ufffd"


@pytest.mark.parametrize("packing", [None, gzip.compress, zstandard.compress])
def test_a_file_that_is_read_from_its_start_is_not_read_again_until_it_changes(
    tmp_path: Path, packing: Callable[[bytes], bytes] | None
) -> None:
    def text(*values: str) -> bytes:
        if packing is None:
            return json.dumps(values).encode()
        return packing("".join(f"{json.dumps(each)}\n" for each in values).encode())

    path, first = tmp_path / "f", [random.Random(n).randbytes(999).hex() for n in range(400)]
    path.write_bytes(text(*first))
    script = Cursors()
    done = json.loads(imported(script, path).stdout)["sources"][0]
    assert script.stored == first and done["read_bytes"] == path.stat().st_size
    path.rename(tmp_path / "renamed")
    again = json.loads(imported(script, tmp_path / "renamed").stdout)["sources"][0]
    assert (again["state"], again["position"]) == ("done", done["position"])
    read_max = ZSTD_BLOCK_BYTES if packing is zstandard.compress else PEEK_BYTES
    assert again["read_bytes"] <= read_max < done["read_bytes"] / 2
    assert again["cursor"] == done["cursor"]
    restarted = imported(script, tmp_path / "renamed", "--restart")
    assert restarted.exit_code == 0 and script.stored == first * 2
    with open(tmp_path / "renamed", "r+b") as file:  # in place
        file.write(text(*first, "one more"))
    more = imported(script, tmp_path / "renamed")
    assert more.exit_code == 0, more.stderr
    assert script.stored == [*first * 2, "one more"]


def test_a_file_of_the_same_size_that_was_written_to_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(b"1\n2\n", mtime=0))
    os.utime(path, (7, 7))
    script = Cursors()
    assert imported(script, path).exit_code == 0
    path.write_bytes(gzip.compress(b"1\n3\n", mtime=0))
    os.utime(path, (7, 8))
    done = imported(script, path)
    assert done.exit_code == 1 and "does not begin as it did" in done.stderr


def test_a_file_that_is_written_to_while_it_is_read_is_not_noted_as_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(b"1\n"))
    script = Cursors()
    began = source.SourceImport._open

    def written_to(self: source.SourceImport, *arguments: Any) -> Any:
        os.utime(path, (7, 7))
        return began(self, *arguments)

    monkeypatch.setattr(source.SourceImport, "_open", written_to)
    assert imported(script, path).exit_code == 0
    (cursor,) = script.positions.values()
    assert script.stored == [1] and END not in cursor
    monkeypatch.undo()
    assert imported(script, path).exit_code == 0
    assert script.stored == [1] and cursor[END] == cursor[POSITION] + 1
