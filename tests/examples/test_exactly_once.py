"""examples/ingest/exactly_once.py: killed, doubled, and with a daemon that is killed under it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, ROOT, Daemon, command, running, wait_until
from tools.ports import kept_port

PROGRAM = ROOT / "examples" / "ingest" / "exactly_once.py"
# While programs are killed, a commit takes 50 ms: two of them store at most 240 lines in a second,
# and need far longer for all than a machine stands still.
LINES = 4_000
SLOW = command("serve", "--chaos", "latency=50ms..60ms")


def write_lines(file: Path, first: int, last: int) -> None:
    with file.open("a") as there:
        there.writelines(f'{{"number": {number}}}\n' for number in range(first, last))


def begin(file: Path, port: int, most: int = 5) -> subprocess.Popen[str]:
    url = f"http://127.0.0.1:{port}"
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), "lines", str(file), url, str(most)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def stored(daemon: Daemon) -> int:
    answer = daemon.get("/v0/topics/lines")
    return int(answer.json["partitions"][0]["head_seq"]) if answer.status == 200 else 0


def wait_for_more(daemon: Daemon, before: int) -> None:
    wait_until(lambda: stored(daemon) > before + 20, "more lines")


def ended(program: subprocess.Popen[str]) -> str:
    out, _ = program.communicate(timeout=4 * HANG_S)
    assert program.returncode == 0
    return out


@pytest.fixture
def port() -> Iterator[int]:
    """Of the daemons, one after the other: nobody else gets it."""
    with kept_port() as found:
        yield found


@pytest.mark.slow
def test_each_line_is_stored_once_although_program_and_daemon_are_killed(
    tmp_path: Path, port: int
) -> None:
    file = tmp_path / "in.ndjson"
    write_lines(file, 0, LINES)
    listen = f"127.0.0.1:{port}"
    with running(tmp_path / "data", shards=2, listen=listen, command=SLOW) as daemon:
        for _ in range(3):
            before = stored(daemon)
            program = begin(file, port, most=1)
            wait_for_more(daemon, before)
            program.kill()
            assert program.wait(HANG_S) == -9
            program.communicate()
        # Two, and the daemon is killed under them.
        before = stored(daemon)
        both = [begin(file, port), begin(file, port, most=7)]
        wait_for_more(daemon, before)
        daemon.kill_everything()
    with running(tmp_path / "data", listen=listen) as daemon:
        assert [ended(program) for program in both] == [f"{LINES} lines\n"] * 2
        write_lines(file, LINES, LINES + 10)
        with file.open("a") as there:
            there.write('{"half a line')
        assert ended(begin(file, port)) == f"{LINES + 10} lines\n"
        found = [record["data"] for record in daemon.read_all("lines")]
    assert found == [json.loads(line) for line in file.read_text().splitlines()[:-1]]


@pytest.mark.slow
def test_a_start_continues_where_the_cursor_is(tmp_path: Path) -> None:
    file = tmp_path / "in.ndjson"
    with running(tmp_path / "data") as daemon:
        for first, last in ((0, 3), (3, 8)):
            write_lines(file, first, last)
            assert ended(begin(file, daemon.port)) == f"{last} lines\n"
        assert ended(begin(file, daemon.port)) == "8 lines\n"
        assert [r["data"]["number"] for r in daemon.read_all("lines")] == list(range(8))
