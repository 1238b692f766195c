"""Several processes on one ledger, and one that is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from threading import Barrier

import pytest

from ledger import commits, reads, topics
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from tests.ledger.committer import LockfLock
from tests.ledger.requests import Request, draft_of, lease

ROOT = Path(__file__).parents[2]
ENDS_WITHIN_S = 600  # ends a hang


def started(directory: Path, shard: int, commits: int, race: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.ledger.committer", str(directory)),
            *(str(shard), str(commits), "1" if race else "0"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines_of(processes: Sequence[subprocess.Popen[str]]) -> list[list[str]]:
    lines: list[list[str]] = []
    for process in processes:
        output, _ = process.communicate(timeout=ENDS_WITHIN_S)
        assert process.returncode == 0
        lines += [line.split() for line in output.splitlines()]
    return lines


def checked(directory: Path) -> Ledger:
    ledger = Ledger(directory / "ledger.db", LockfLock(directory / "lock"), must_exist=True)
    ledger.read(invariants.check)
    return ledger


def test_processes_that_start_and_commit_at_once_get_gapless_numbers_and_dense_offsets(
    tmp_path: Path,
) -> None:
    lines = lines_of([started(tmp_path, shard, 60, race=False) for shard in range(4)])
    assert sorted(int(number) for number, *_ in lines) == list(range(1, 241))
    next_offset = 1
    for first, count in sorted((int(first), int(count)) for _, first, count in lines):
        assert first == next_offset
        next_offset += count
    with closing(checked(tmp_path)) as ledger:
        assert len(ledger.read(topics.page)) == 1
        (topic,) = ledger.read(topics.page)
        assert topic.topic_id == 1
        assert ledger.read(reads.partition_states, 1)[0].next_seq == next_offset


def test_of_racing_appends_with_the_same_expectation_exactly_one_is_stored_over_processes(
    tmp_path: Path,
) -> None:
    lines = lines_of([started(tmp_path, shard, 15, race=True) for shard in range(4)])
    stored = [rest for _, *rest in lines if rest != ["void"]]
    assert stored == [["1", "3"]]
    assert len(lines) == 60
    with closing(checked(tmp_path)) as ledger:
        assert ledger.read(reads.partition_states, 1)[1].count == 3


@pytest.mark.parametrize("commits_before_kill", [1, 20, 150])
def test_after_a_kill_everything_reported_is_there_and_the_rest_is_whole(
    tmp_path: Path, commits_before_kill: int
) -> None:
    process = started(tmp_path, 0, 10**6, race=False)
    assert process.stdout is not None
    reported = [process.stdout.readline().split() for _ in range(commits_before_kill)]
    process.kill()
    # Not communicate(): it would miss what readline has buffered.
    reported += [line.split() for line in process.stdout]
    process.stdout.close()
    process.wait(timeout=ENDS_WITHIN_S)
    with closing(checked(tmp_path)) as ledger:
        latest = ledger.read(commits.latest_number)
        assert latest - len(reported) in (0, 1)
        for number, first, count in reported:
            (run,) = ledger.read(commits.by_number, int(number)).runs
            assert (run.first_offset, run.record_count) == (int(first), int(count))
        # The one lease that may have been committed unreported is there, or can be committed.
        request = Request(1, ((0, 1 + len(reported) % 3),))
        draft = draft_of(lease(len(reported)), [request])
        commit = ledger.commit(draft, 10, lambda _: None)
        assert commit.number == len(reported) + 1
        assert commit.repeated == (latest > len(reported))
        ledger.read(invariants.check)


def test_a_reader_beside_a_writer_sees_whole_commits_only(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.db", LockfLock(tmp_path / "lock"))) as reader:
        topic, _ = reader.write(topics.create, "shared", TopicConfig(partitions=2), 1)
        process = started(tmp_path, 0, 150, race=False)
        seen = 0
        while seen < 150 and (process.poll() is None or seen == 0):
            number, heads = reader.read(reads.heads, [topic.topic_id])
            assert number >= seen
            seen = number
            wanted = sum(1 + counter % 3 for counter in range(number))
            assert heads[topic.topic_id, 0].head_seq == wanted
        lines_of([process])


def test_writers_without_a_lock_are_still_kept_apart_by_their_immediate_transactions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    with closing(Ledger(path, nullcontext())) as ledger:
        topic, _ = ledger.write(topics.create, "shared", TopicConfig(), 1)

    both = Barrier(2, timeout=ENDS_WITHIN_S)  # one that never comes first waits for too long

    def committing(shard: int) -> None:
        with closing(Ledger(path, nullcontext())) as ledger:
            for counter in range(100):
                both.wait()
                draft = draft_of(lease(counter, shard=shard), [Request(topic.topic_id)])
                ledger.commit(draft, 10, lambda _: None)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(committing, range(2)))
    with closing(checked(tmp_path)) as ledger:
        assert ledger.read(commits.latest_number) == 200
