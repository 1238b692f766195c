"""``python -m tests.chaos.storm``: what producers see while the store answers 503.

A proxy in front of MinIO answers everything with 503 SlowDown for a while. The daemon has its usual
settings for S3; each producer has one request in flight. The program prints the longest wait for an
answer before the storm and overall, the answers, and the time from the end of the storm to the
first acknowledgment, and until a second begins in which no answer takes longer than the slowest
before the storm. A test (tests/e2e/test_store_storm.py) bounds the first.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click

from shards.clock import monotonic_ns
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import Line
from tests.e2e.proxy import Fault, StoreProxy, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from tools.buckets import client
from tools.minio import find_or_build, start, stop
from tools.ports import kept_port

QUIET_NS = 1_000_000_000
CALM_S = 5.0  # before and after the storm
PAUSE_S = 0.05  # of a producer, after an answer
CUT = 0  # instead of a status: the connection ended without an answer


class Seen(NamedTuple):
    """An answer to a record: when it came, how long it took, what it said."""

    record: str
    at_ns: int
    wait_ms: float
    status: int
    code: str


class Storm(NamedTuple):
    """What one storm was like. ``first_ack_ms`` and ``usual_again_ms`` count from its end; None: it
    did not come to that. ``met``: the requests that the store had met by then."""

    told: Counter[tuple[int, str]]
    cut: int
    acknowledged: set[str]
    refused: set[str]
    usual_ms: float
    longest_ms: float
    first_ack_ms: float | None
    usual_again_ms: float | None
    met: int = 0


class Steady(threading.Thread):
    """One request after the other, on one connection as long as it lasts."""

    def __init__(self, daemon: Daemon, number: int, pad: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[Seen] = []
        self.stopping = threading.Event()
        self._served = daemon
        self._records = (f"{number}.{n} {pad}" for n in itertools.count())

    def run(self) -> None:
        """Sends requests until it is stopped and has its last answer."""
        while not self.stopping.is_set():
            with Line(self._served) as line:
                while self._send(line) != CUT and not self.stopping.wait(PAUSE_S):
                    pass

    def _send(self, line: Line) -> int:
        record, sent_ns = next(self._records), monotonic_ns()
        line.send("t", record)
        answer = line.answer()
        now_ns = monotonic_ns()
        status = CUT if answer is None else answer.status
        code = "" if answer is None or status == 200 else answer.code
        self.seen.append(Seen(record, now_ns, (now_ns - sent_ns) / 1e6, status, code))
        return status


def measured(daemon: Daemon, proxy: StoreProxy, seconds: float, producers: int) -> Storm:
    """One storm, and calm before and after it."""
    daemon.produce("t", "first")
    threads = [Steady(daemon, number, "x" * 1000) for number in range(producers)]
    for thread in threads:
        thread.start()
    pause = threading.Event()
    pause.wait(CALM_S)
    wait_until(lambda: all(thread.seen for thread in threads), "an answer for each producer")
    began_ns = monotonic_ns()
    proxy.decide = lambda _: Fault.SLOW_DOWN
    pause.wait(seconds)
    proxy.release()
    ended_ns, met = monotonic_ns(), len(proxy.met)
    pause.wait(2 * CALM_S)
    wait_until(
        lambda: any(
            item.status == 200 and item.at_ns > ended_ns
            for thread in threads
            for item in list(thread.seen)
        ),
        "an acknowledgment after the storm",
    )
    for thread in threads:
        thread.stopping.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a producer has no answer"
    storm = judged([item for thread in threads for item in thread.seen], began_ns, ended_ns)
    return storm._replace(met=met)


def judged(seen: list[Seen], began_ns: int, ended_ns: int) -> Storm:
    """The storm from ``began_ns`` to ``ended_ns``, by all answers."""
    usual_ms = max(item.wait_ms for item in seen if item.at_ns < began_ns)
    after = sorted((item for item in seen if item.at_ns > ended_ns), key=lambda item: item.at_ns)
    acks_ns = [item.at_ns for item in after if item.status == 200]
    slow_ns = [item.at_ns for item in after if item.wait_ms > usual_ms or item.status != 200]
    ends_ns = [ended_ns, *slow_ns, after[-1].at_ns if after else ended_ns]
    quiet_ns = [at_ns for at_ns, next_ns in pairwise(ends_ns) if next_ns - at_ns > QUIET_NS]
    return Storm(
        Counter((item.status, item.code) for item in seen if item.status != CUT),
        sum(item.status == CUT for item in seen),
        {item.record for item in seen if item.status == 200},
        {item.record for item in seen if item.status in (429, 503)},
        usual_ms,
        max(item.wait_ms for item in seen),
        (acks_ns[0] - ended_ns) / 1e6 if acks_ns else None,
        (quiet_ns[0] - ended_ns) / 1e6 if quiet_ns else None,
    )


@click.command()
@click.option("--seconds", default=30.0, show_default=True, help="How long the storm is.")
@click.option("--producers", default=16, show_default=True)
@click.option("--shards", default=2, show_default=True)
def main(seconds: float, producers: int, shards: int) -> None:
    """Measures one storm."""
    with tempfile.TemporaryDirectory(prefix="headgate-storm-") as folder:
        _tell(_measure(Path(folder), seconds, producers, shards))


def _measure(folder: Path, seconds: float, producers: int, shards: int) -> Storm:
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
                return measured(daemon, proxy, seconds, producers)
    finally:
        stop(process)


def _tell(storm: Storm) -> None:
    told = ", ".join(f"{n} x {status} {code}".rstrip() for (status, code), n in storm.told.items())
    click.echo(f"answers: {told}; {storm.cut} connections ended without one")
    click.echo(f"longest wait before the storm {storm.usual_ms:.0f} ms")
    click.echo(f"longest wait overall {storm.longest_ms:.0f} ms")
    for what, after_ms in (
        ("first acknowledgment", storm.first_ack_ms), ("as quick as before", storm.usual_again_ms),
    ):  # fmt: skip
        when = "not" if after_ms is None else f"{after_ms:.0f} ms"
        click.echo(f"{what} {when} after the storm's end")


if __name__ == "__main__":
    main()
