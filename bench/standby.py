"""A pair of daemons on MinIO, whose owner is killed or hands over; ``python -m bench.standby`` for
more rounds than ``make bench`` has, and a large ledger.

One client sends a record at a time, to one daemon and after any failure to the other one. In each
round the owner and its shards are killed with SIGKILL, and the seconds until the first
acknowledgment by the standby are noted; then the killed daemon is started again and becomes the
standby. After that the same for ``headgate handover``, where the gap is between two
acknowledgments. With ``--gib``, the ledger has had this many GiB before, as an image in the store.

It needs six times ``--gib`` on the disk of ``--folder``, which must not exist, and removes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from bench import large_ledger
from bench.figures import NONE, Target, number
from bench.processes import BUCKET, ROOT, Minio, ServerError, plain_environment
from shards.clock import monotonic_ns
from tools import minio
from tools.ports import asked

POLL_S = 0.01
PATIENCE_S = 180
IDLE_S = 10
TAKE_OVER_S_MAX = 23  # the fence's 20 s, and 3
HANDOVER_S_MAX = 2
BODY = b'{"records": [{"data": 1}]}'


class PairResult(Struct):
    """Seconds. Shares are of one CPU, of the owner's supervisor while nobody sends: alone, and with
    a standby."""

    ledger_gib: float
    killed_s: list[float] = []
    handover_s: list[float] = []
    killed_p50_s: float = 0.0
    killed_max_s: float = 0.0
    handover_p50_s: float = 0.0
    handover_max_s: float = 0.0
    alone_cpu_share: float = 0.0
    owner_cpu_share: float = 0.0


class Pair:
    """Two daemons, and a client that follows the owner."""

    def __init__(self, folder: Path, store: Minio) -> None:
        self._folder = folder
        self._store = store
        self.ports = [minio.free_port(), minio.free_port()]
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None]
        self.acknowledged: list[tuple[int, int]] = []  # when, by which
        self._ends = False

    def start(self, which: int) -> None:
        """Starts one as a standby."""
        command = [
            sys.executable, "-m", "cli", "serve", "--standby", "--shards", "1",
            "--data", str(self._folder / f"data-{which}"),
            "--listen", f"127.0.0.1:{self.ports[which]}",
            "--store", f"s3://{BUCKET}/pair",
            "--set", f"s3_endpoint_url={self._store.endpoint_url}",
        ]  # fmt: skip
        with (self._folder / f"log-{which}").open("ab") as log:
            self.processes[which] = subprocess.Popen(
                command, cwd=ROOT, env=plain_environment(self._store.environment), stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self, which: int) -> None:
        """SIGKILL to it and its shards."""
        process = self.processes[which]
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ask(self, which: int, method: str, path: str, body: bytes | None = None) -> int:
        """The status of an answer; 0 for none."""
        return self.asked(which, method, path, body)[0]

    def asked(self, which: int, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Status and body of an answer."""
        return asked(self.ports[which], method, path, body, timeout_s=30)

    def wait(self, is_so: str, which: int) -> None:
        """Until it is the ``owner``, a ``standby``, or ``known`` to have one. Raises
        ServerError."""
        until_ns = monotonic_ns() + PATIENCE_S * 10**9
        while not self._is(is_so, which):
            if monotonic_ns() > until_ns:
                log = (self._folder / f"log-{which}").read_text()[-2000:]
                raise ServerError(f"daemon {which} is not {is_so} after {PATIENCE_S} s:\n{log}")
            time.sleep(POLL_S)

    def _is(self, is_so: str, which: int) -> bool:
        if is_so == "owner":
            return self.ask(which, "GET", "/readyz") == 200
        status, body = self.asked(which, "GET", "/v0/status", None)
        document = json.loads(body) if status == 200 else {}
        if is_so == "standby":
            return bool(document.get("standby", {}).get("able"))
        return bool((document.get("standbys") or {}).get("known"))

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """A client sends meanwhile."""
        self._ends = False
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._ends = True
            thread.join()

    def _send(self) -> None:
        at = 0
        while not self._ends:
            if self.ask(at, "POST", "/v0/topics/t", BODY) == 200:
                self.acknowledged.append((monotonic_ns(), at))
            else:
                at = 1 - at
                time.sleep(POLL_S)

    def first_of(self, which: int, after_ns: int) -> int:
        """When it first acknowledged after this."""
        until_ns = monotonic_ns() + PATIENCE_S * 10**9
        while monotonic_ns() < until_ns:
            for when_ns, by in self.acknowledged[-200:]:
                if by == which and when_ns > after_ns:
                    return when_ns
            time.sleep(POLL_S)
        raise ServerError(f"daemon {which} acknowledges nothing after {PATIENCE_S} s")

    def handover(self, which: int) -> None:
        """``headgate handover``. Raises CalledProcessError."""
        data = str(self._folder / f"data-{which}")
        subprocess.run(
            [sys.executable, "-m", "cli", "handover", "--data", data], cwd=ROOT,
            env=plain_environment(), check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def cpu_s(self, which: int) -> float:
        """Of the supervisor alone: it has the owner's thread."""
        process = self.processes[which]
        assert process is not None
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, rounds: int, gib: float) -> PairResult:
    """All rounds, in a folder of their own. Raises ServerError."""
    result = PairResult(gib)
    store = Minio(folder / "minio", os.sched_getaffinity(0))
    pair = Pair(folder, store)
    try:
        if gib:
            os.environ |= store.environment | {
                "HEADGATE_STORE_URL": f"s3://{BUCKET}/pair",
                "HEADGATE_S3_ENDPOINT_URL": store.endpoint_url,
            }
            (folder / "large").mkdir()
            large_ledger.measure(folder / "large", int(gib * large_ledger.GIB))
            shutil.rmtree(folder / "large")
        pair.start(0)
        pair.wait("owner", 0)
        result.alone_cpu_share = _idle_share(pair, 0)
        pair.start(1)
        owner = 0
        for _ in range(rounds):
            _settle(pair, owner)
            with pair.sending():
                pair.first_of(owner, monotonic_ns())
                time.sleep(1)
                began_ns = monotonic_ns()
                pair.kill(owner)
                result.killed_s.append((pair.first_of(1 - owner, began_ns) - began_ns) / 1e9)
            pair.start(owner)
            owner = 1 - owner
        for _ in range(rounds):
            _settle(pair, owner)
            with pair.sending():
                pair.first_of(owner, monotonic_ns())
                pair.handover(owner)
                asked_ns = pair.acknowledged[-1][0]
                first_ns = pair.first_of(1 - owner, asked_ns)
                last_ns = max(w for w, by in pair.acknowledged if by == owner and w < first_ns)
                result.handover_s.append((first_ns - last_ns) / 1e9)
            owner = 1 - owner
        _settle(pair, owner)
        result.owner_cpu_share = _idle_share(pair, owner)
    finally:
        pair.kill(0)
        pair.kill(1)
        store.stop()
    if rounds:
        result.killed_p50_s = statistics.median(result.killed_s)
        result.killed_max_s = max(result.killed_s)
        result.handover_p50_s = statistics.median(result.handover_s)
        result.handover_max_s = max(result.handover_s)
    return result


def _idle_share(pair: Pair, which: int) -> float:
    before_s, began_ns = pair.cpu_s(which), monotonic_ns()
    time.sleep(IDLE_S)
    return (pair.cpu_s(which) - before_s) / ((monotonic_ns() - began_ns) / 1e9)


def table(result: PairResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is printed."""
    rows = [
        ("kill -9 of the owner to the first acknowledgment by the standby", result.killed_s),
        ("the gap of a handover", result.handover_s),
    ]
    cpu = f"{result.alone_cpu_share:.1%} alone, {result.owner_cpu_share:.1%} with a standby"
    idle = f"CPU of an idle owner's supervisor: {cpu}"
    return ("seconds", "p50", "worst", "rounds"), [
        *((what, number(statistics.median(took_s)), number(max(took_s)), str(len(took_s)))
          for what, took_s in rows if took_s),
        (idle, NONE, NONE, NONE),
    ]  # fmt: skip


def targets(result: PairResult | None) -> Iterator[Target]:
    """How long nobody may acknowledge."""
    if result is None or not result.killed_s:
        return
    yield Target("worst take-over, kill -9 to acknowledgment", TAKE_OVER_S_MAX,
                 result.killed_max_s, at_least=False, unit=" s")  # fmt: skip
    yield Target("worst gap of a handover", HANDOVER_S_MAX, result.handover_max_s, at_least=False,
                 unit=" s")  # fmt: skip


def _settle(pair: Pair, owner: int) -> None:
    pair.wait("owner", owner)
    pair.wait("standby", 1 - owner)
    pair.wait("known", owner)


def main() -> int:
    """Prints a PairResult as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.standby", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--gib", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args()
    asked.folder.mkdir()
    try:
        result = measure(asked.folder, asked.rounds, asked.gib)
    finally:
        shutil.rmtree(asked.folder)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(result)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
