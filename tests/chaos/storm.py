"""``python -m tests.chaos.storm``: what producers see while the store answers 503.

A proxy in front of MinIO answers everything with 503 SlowDown for a while. The daemon has its usual
settings for S3; each producer has one request in flight. The program prints the longest wait for an
answer before the storm and overall, the statuses, and the time from the end of the storm until a
second begins in which no answer takes longer than the slowest before the storm.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click

from shards.clock import monotonic_ns
from tests.e2e.daemon import Daemon, running
from tests.e2e.processes import Line
from tests.e2e.proxy import Fault, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from tools.buckets import client
from tools.minio import find_or_build, start, stop
from tools.ports import kept_port

QUIET_NS = 1_000_000_000
CALM_S = 5.0  # before and after the storm


class Seen(NamedTuple):
    """An answer: when it came, how long it took, its status (0 for none)."""

    at_ns: int
    wait_ms: float
    status: int


class Steady(threading.Thread):
    """One request after the other on one connection."""

    def __init__(self, daemon: Daemon, pad: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[Seen] = []
        self.sent_ns = 0
        self.stopping = threading.Event()
        self._served = daemon
        self._pad = pad

    def run(self) -> None:
        """Sends requests until it is stopped and has its last answer."""
        with Line(self._served) as line:
            for number in itertools.count():
                if self.stopping.wait(0.05):
                    return
                sent_ns = monotonic_ns()
                line.send("t", number, self._pad)
                answer = line.answer()
                now_ns = monotonic_ns()
                status = answer.status if answer is not None else 0
                self.seen.append(Seen(now_ns, (now_ns - sent_ns) / 1e6, status))
                if answer is None:
                    return


@click.command()
@click.option("--seconds", default=30.0, show_default=True, help="How long the storm is.")
@click.option("--producers", default=16, show_default=True)
@click.option("--shards", default=2, show_default=True)
def main(seconds: float, producers: int, shards: int) -> None:
    """Measures one storm."""
    with tempfile.TemporaryDirectory(prefix="headgate-storm-") as folder:
        _measure(Path(folder), seconds, producers, shards)


def _measure(folder: Path, seconds: float, producers: int, shards: int) -> None:
    (folder / "minio").mkdir()
    with kept_port() as port:
        process = start(find_or_build(), folder / "minio", port)
    endpoint_url = f"http://127.0.0.1:{port}"
    try:
        made = client(endpoint_url)
        made.create_bucket(Bucket="storm")
        bucket = Bucket(endpoint_url, "storm", "s3://storm/prefix", made)
        with store_proxy(endpoint_url) as proxy:
            options = on_s3(bucket, proxy.endpoint_url)
            with running(folder / "data", shards=shards, **options) as daemon:
                daemon.produce("t", "first")
                threads = [Steady(daemon, "x" * 1000) for _ in range(producers)]
                for thread in threads:
                    thread.start()
                pause = threading.Event()
                pause.wait(CALM_S)
                began_ns = monotonic_ns()
                proxy.decide = lambda _: Fault.SLOW_DOWN
                pause.wait(seconds)
                proxy.release()
                ended_ns = monotonic_ns()
                pause.wait(2 * CALM_S)
                for thread in threads:
                    thread.stopping.set()
                for thread in threads:
                    thread.join(60)
        _tell([item for thread in threads for item in thread.seen], began_ns, ended_ns)
    finally:
        stop(process)


def _tell(seen: list[Seen], began_ns: int, ended_ns: int) -> None:
    before = [item for item in seen if item.at_ns < began_ns]
    after = sorted(item for item in seen if item.at_ns > ended_ns)
    usual_ms = max(item.wait_ms for item in before)
    slow_ns = [item.at_ns for item in after if item.wait_ms > usual_ms or item.status != 200]
    ends = [*sorted(slow_ns), 1 << 63]
    pairs = zip([ended_ns, *ends], ends, strict=False)
    normal_ns = next(at_ns for at_ns, next_ns in pairs if next_ns - at_ns > QUIET_NS)
    click.echo(f"statuses {dict(Counter(item.status for item in seen))}, {len(seen)} answers")
    click.echo(f"longest wait before the storm {usual_ms:.0f} ms")
    click.echo(f"longest wait overall {max(item.wait_ms for item in seen):.0f} ms")
    first_ns = after[0].at_ns if after else ended_ns
    click.echo(f"first answer {(first_ns - ended_ns) / 1e6:.0f} ms after the storm's end")
    click.echo(f"as quick as before {(normal_ns - ended_ns) / 1e6:.0f} ms after it")


if __name__ == "__main__":
    main()
