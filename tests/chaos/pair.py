"""Two daemons on one bucket, each after a proxy of its own, and what is done to them.

One is the owner, the other its standby. Before each act there is an able standby, for without one
nobody can take over. An era ends when the owner changes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from shards.clock import monotonic_ns, wall_ms
from tests.chaos import plan
from tests.chaos.history import Did, History, TakenOver
from tests.chaos.plan import Act, Step
from tests.chaos.world import Options, World
from tests.e2e.daemon import HANG_S, wait_until
from tests.e2e.proxy import Fault, StoreProxy, no_fault, store_proxy
from tests.e2e.standbys import Standby, handover, wait_known
from tests.minio import Bucket
from tools import minio
from tools.buckets import client
from tools.ports import kept_port

# The age of the last entry up to which an owner commits, the clocks' 2 s, and a flush.
UNTOLD_MS = 18_000
TAKE_OVER_S = 3 * HANG_S


@contextlib.contextmanager
def bucket_in(folder: Path) -> Iterator[Bucket]:
    """A bucket of a MinIO that has its data in a folder."""
    binary = minio.find_or_build()
    data = folder / "minio"
    data.mkdir()
    with kept_port() as port:
        process = minio.start(binary, data, port)
    try:
        endpoint_url = f"http://127.0.0.1:{port}"
        with contextlib.closing(client(endpoint_url)) as s3:
            s3.create_bucket(Bucket="chaos")
            yield Bucket(endpoint_url, "chaos", "s3://chaos/prefix", s3)
    finally:
        minio.stop(process)


class Member(NamedTuple):
    """A daemon of a pair, and its link to the store."""

    daemon: Standby
    link: StoreProxy


class PairWorld(World):
    """``daemon`` is the owner, None while nobody is ready."""

    def __init__(self, options: Options, written: History) -> None:
        super().__init__(options, written)
        assert options.bucket is not None
        self._links = contextlib.ExitStack()
        links = [
            self._links.enter_context(store_proxy(options.bucket.endpoint_url)) for _ in range(2)
        ]
        self._pair = [
            Member(
                Standby(options.folder / f"data-{number}", options.bucket, link.endpoint_url,
                        shards=options.shards, **self._settings),
                link,
            )
            for number, link in enumerate(links)
        ]  # fmt: skip
        for member in self._pair:
            member.daemon.heard = self._hear
        self._owner = 0  # its place in the pair

    def steps(self) -> Iterator[Step]:
        """Each act in turn, in another order each time."""
        return plan.pair_steps(self._options.seed)

    def is_met(self) -> bool:
        """Whether each act was carried out."""
        return all(self.acts[act.value] for act in plan.OF_PAIR)

    def start(self) -> None:
        """Starts both, the owner first."""
        for member in self._pair:
            member.daemon.start()
            if member is self._pair[self._owner]:
                member.daemon.wait_owner()
                self.daemon = member.daemon
        self._other.daemon.wait_standby()
        self._told = self._entries()

    def _entries(self) -> int:
        return int(self._other.daemon.status()["standby"]["entries"])

    @property
    def _other(self) -> Member:
        return self._pair[1 - self._owner]

    def end(self, number: int = 0, *, group: bool = False) -> None:
        """Ends both, the standby first, and keeps their logs."""
        self.daemon = None
        codes = []
        for member in (self._other, self._pair[self._owner]):
            daemon = member.daemon
            if not hasattr(daemon, "process") or daemon.process.poll() is not None:
                continue
            if number:
                daemon.kill_everything()
            else:
                codes.append(daemon.stop())
        for place, member in enumerate(self._pair):
            path = self._options.folder / f"daemon-{place}.log"
            path.write_text(member.daemon.text)
        self._links.close()
        if any(codes):
            raise AssertionError(f"the daemons stopped with exit codes {codes}, not 0")

    def restart(
        self, number: int = 0, *, group: bool = False, between: Callable[[], object] = bool
    ) -> None:
        """Stops the owner in good order: its standby takes over, and it becomes the standby."""
        self._other.daemon.wait_standby()
        owner = self._pair[self._owner].daemon
        self._harm()
        self.daemon = None
        code = owner.stop()
        assert code == 0, f"the owner stopped with exit code {code}:\n{owner.text}"
        self._follow()
        self._note_take_over(monotonic_ns() // 1_000_000)
        owner.start()
        self._other.daemon.wait_standby()

    def do(self, step: Step, ended: threading.Event) -> None:
        """Carries out a step; at its end there is an able standby again."""
        owner, other = self._pair[self._owner], self._other
        other.daemon.wait_standby()
        if not self.acts:
            # What the run has created is in the log after two entries.
            wait_until(lambda: self._entries() >= self._told + 2, "two entries of the owner")
        if step.act is Act.HAND_OVER:
            wait_known(owner.daemon)
        self._written.add(Did(f"{step.act.value}: {step.stop_ms} ms", wall_ms()))
        since_ms = monotonic_ns() // 1_000_000 - UNTOLD_MS
        self._harm()
        if step.act is Act.KILL_OWNER:
            self.kills += 1
            self.daemon = None
            owner.daemon.kill_everything()
            self._follow()
            owner.daemon.start()
        elif step.act is Act.STOP_OWNER:
            pid = owner.daemon.process.pid
            os.killpg(pid, signal.SIGSTOP)
            try:
                self._follow()
            finally:
                os.killpg(pid, signal.SIGCONT)
        elif step.act is Act.CUT_OWNER:
            owner.link.decide = lambda _: Fault.RESET
            self._follow()
            ended.wait(step.stop_ms / 1000)  # two serve meanwhile
            owner.link.decide = no_fault
        elif step.act is Act.CUT_STANDBY:
            other.link.decide = lambda _: Fault.RESET
            ended.wait(step.stop_ms / 1000)
            other.link.decide = no_fault
        elif step.act is Act.KILL_STANDBY:
            self.kills += 1
            other.daemon.kill_everything()
            other.daemon.start()
        else:
            assert step.act is Act.HAND_OVER
            told = handover(owner.daemon.data)
            assert told.returncode == 0, told
            self._follow()
            since_ms = monotonic_ns() // 1_000_000
        self._other.daemon.wait_standby()
        self._harm()
        if self._other is not other:
            self._note_take_over(since_ms)
        assert self._pair[self._owner].daemon.readiness() == 200, "the standby took over"
        self.acts[step.act.value] += 1

    def _follow(self) -> None:
        """Waits until the standby has taken over."""
        self._other.daemon.wait_owner(TAKE_OVER_S)
        self.daemon = None
        self._era += 1
        self._owner = 1 - self._owner
        self._at_ms = monotonic_ns() // 1_000_000
        self.daemon = self._pair[self._owner].daemon

    def _note_take_over(self, since_ms: int) -> None:
        self._written.add(TakenOver(since_ms, self._at_ms, monotonic_ns() // 1_000_000))
