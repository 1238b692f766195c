"""A process that commits in a loop, for tests with several and for tests that kill one.

    python -m tests.ledger.committer DIRECTORY SHARD COMMITS RACE

Each commit is one line on stdout, after it is durable: number, then (first offset, records) of
its run, or "void". With RACE 1 every commit expects head 0 of partition 1 instead. The lock is a
lockf byte, as the daemon's.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

from ledger import topics
from ledger.ledger import Ledger
from ledger.types import Commit, TopicConfig
from tests.ledger.requests import Request, answers, draft_of, lease


class LockfLock:
    """A lockf byte of a file that the process opens once."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1)

    def close(self) -> None:
        os.close(self._fd)


def main(directory: Path, shard: int, commits: int, race: bool) -> None:
    ledger = Ledger(directory / "ledger.db", LockfLock(directory / "lock"))
    topic, _ = ledger.write(topics.create, "shared", TopicConfig(partitions=2), 1)
    published: list[Commit] = []
    for counter in range(commits):
        if race:
            request = Request(topic.topic_id, ((1, 3),), expected_seq=0, shard=shard)
        else:
            request = Request(topic.topic_id, ((0, 1 + counter % 3),), shard=shard)
        draft = draft_of(lease(counter, shard=shard), [request])
        commit = ledger.commit(draft, 10, published.append)
        assert published.pop() == commit
        (answer,) = answers(commit, [request])
        if answer.kind == "stored":
            (_, first, last) = answer.parts[0]
            line = f"{commit.number} {first} {last - first + 1}\n"
        else:
            line = f"{commit.number} void\n"
        # One write: a kill leaves whole lines only.
        os.write(sys.stdout.fileno(), line.encode())
    ledger.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
