"""Imports store every record once, whatever is killed and however often they are run again."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from tests.e2e.daemon import HANG_S, ROOT, UNANSWERED, Answer, Daemon, command, running, wait_until
from tests.e2e.processes import kill_shards, unlisted
from tests.e2e.proxy import Fault, object_puts, store_proxy
from tests.e2e.stores import on_s3
from tests.e2e.test_recovery import log_entries, recovered
from tests.minio import Bucket

RECORDS = 4_000
INVALID_EVERY = 97
PARTITIONS = 3
KILLS_MIN = 4


class Sources(NamedTuple):
    """Files of all kinds with the same number of records, and what of them is to be stored."""

    folder: Path
    good: Counter[tuple[str, int]]
    invalid: Counter[tuple[str, str]]


def sources_in(folder: Path, pad: int = 0) -> Sources:
    folder.mkdir()
    more = {"pad": "x" * pad}
    good: Counter[tuple[str, int]] = Counter()
    invalid: Counter[tuple[str, str]] = Counter()
    for name, pack in (("a.ndjson", bytes), ("b.gz", gzip.compress), ("c.zst", zstandard.compress)):
        lines = []
        for n in range(RECORDS):
            if n % INVALID_EVERY == 5:
                lines.append(b"{%d" % n)
                invalid[str(folder / name), f"{{{n}"] += 1
            lines.append(json.dumps({"f": name, "n": n, "key": f"k{n % 11}"} | more).encode())
            good[name, n] += 1
        (folder / name).write_bytes(pack(b"\n".join(lines)))
    array = [{"f": "d.json", "n": n, "key": f"k{n % 11}"} | more for n in range(RECORDS)]
    (folder / "d.json").write_text(json.dumps(array, indent=1))
    good.update(("d.json", n) for n in range(RECORDS))
    return Sources(folder, good, invalid)


def started(daemon: Daemon, sources: Sources, *options: str) -> subprocess.Popen[str]:
    """An import of all of the sources, with keys and dead letters."""
    return subprocess.Popen(
        command("import", "t", f"{sources.folder}/*", "--key", "key", "--invalid", "bad",
                "--wait", "60", "-o", "json", *options),
        cwd=ROOT, env={**os.environ, "HEADGATE_URL": daemon.url}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def stored(daemon: Daemon) -> int:
    answer = daemon.get("/v0/topics/t")
    assert answer.status == 200, answer.body
    return heads(answer)


def heads(answer: Answer) -> int:
    """How many records its topic has been given."""
    return sum(int(each["head_seq"]) for each in answer.json["partitions"])


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[None]:
    """An import that does not outlive the block."""
    with process:
        try:
            yield
        finally:
            process.kill()
            process.communicate()


def kill_after(daemon: Daemon, process: subprocess.Popen[str], records: int) -> bool:
    """Kills an import when it has stored this many more; False if it ended before."""
    begin = stored(daemon)
    with killed_at_the_end(process):
        wait_until(
            lambda: process.poll() is not None or stored(daemon) >= begin + records, "records"
        )
        return process.poll() is None


def finished(process: subprocess.Popen[str]) -> Any:
    with process:
        try:
            stdout, stderr = process.communicate(timeout=4 * HANG_S)
        finally:
            process.kill()
    assert process.returncode == 0, stderr
    return json.loads(stdout)


def check(daemon: Daemon, sources: Sources) -> None:
    """Each record is stored once, in the order of its file among those of its key; so are the dead
    letters."""
    found: Counter[tuple[str, int]] = Counter()
    for partition in range(PARTITIONS):
        last: dict[tuple[str, str], int] = {}
        for record in daemon.read_all("t", partition):
            data = record["data"]
            found[data["f"], data["n"]] += 1
            of_key = (data["f"], data["key"])
            assert last.get(of_key, -1) < data["n"]
            last[of_key] = data["n"]
    assert found == sources.good
    letters = [record["data"] for record in daemon.read_all("bad")]
    assert Counter((each["source"], each["text"]) for each in letters) == sources.invalid


def set_up(daemon: Daemon) -> None:
    assert daemon.json("PUT", "/v0/topics/t", {"partitions": PARTITIONS}).status == 201


# Keys expire after the shortest window there is, so it is not they that tell a repeat.
WINDOW: dict[str, Any] = {"dedupe_window_ms": 1_000}


@pytest.mark.slow
def test_an_import_that_is_killed_again_and_again_stores_every_record_once(
    data: Path, tmp_path: Path
) -> None:
    rng = random.Random(12)
    sources = sources_in(tmp_path / "sources")
    with running(data, shards=2, settings={**WINDOW, "commit_window_min_ms": 30}) as daemon:
        set_up(daemon)
        kills = 0
        for _ in range(12):
            # At first one by one: it is far from its end when it is killed, however late that is.
            batch = 1 if kills < KILLS_MIN else rng.choice([1, 3, 7, 20])
            options = ["--batch", str(batch), "--parallel", str(rng.randint(1, 4))]
            kills += kill_after(daemon, started(daemon, sources, *options), rng.randint(0, 700))
        done = finished(started(daemon, sources))
        assert kills >= KILLS_MIN and done["totals"]["failed"] == 0
        check(daemon, sources)
        again = finished(started(daemon, sources, "--batch", "3"))
        assert again["totals"]["records"] == again["totals"]["dead_letters"] == 0
        check(daemon, sources)


@pytest.mark.slow
def test_two_imports_of_the_same_sources_store_every_record_once(
    data: Path, tmp_path: Path
) -> None:
    sources = sources_in(tmp_path / "sources")
    with running(data, shards=2, settings={**WINDOW, "commit_window_min_ms": 5}) as daemon:
        set_up(daemon)
        both = [started(daemon, sources, "--batch", batch) for batch in ("11", "16")]
        done = [finished(each)["totals"] for each in both]
        check(daemon, sources)
    assert all(each["failed"] == 0 for each in done)
    assert sum(each["records"] for each in done) == sources.good.total()


@pytest.mark.slow
@pytest.mark.s3
def test_an_import_on_s3_that_is_killed_and_refused_stores_every_record_once(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    sources = sources_in(tmp_path / "sources", pad=300)
    with contextlib.ExitStack() as stack:
        # An import is faster than this store, however slow the machine is.
        proxy = stack.enter_context(store_proxy(bucket.endpoint_url))
        proxy.delay_s, proxy.decide = 0.3, object_puts(Fault.DELAY)
        small = on_s3(
            bucket, proxy.endpoint_url, commit_window_min_ms=50, ring_bytes="256KiB",
            object_bytes_target="64KiB", body_bytes_max="64KiB", record_bytes_max="32KiB", **WINDOW,
        )  # fmt: skip
        daemon = stack.enter_context(running(data, shards=2, **small))
        set_up(daemon)
        options = ["--batch-bytes", "20000"]
        assert kill_after(daemon, started(daemon, sources, *options), 500)
        assert kill_after(daemon, started(daemon, sources, *options), 2_000)
        done = finished(started(daemon, sources, *options))
        assert done["totals"]["failed"] == 0 and done["totals"]["retries"] > 0
        assert daemon.status()["totals"]["rejected"] > 0
        check(daemon, sources)


class RotatingWriter(threading.Thread):
    """Writes numbered lines, some of them in two parts, and begins a new file every 500 lines.

    An import never runs out of lines, and however slow it is, it never has many before it.
    """

    AHEAD = 2_000

    def __init__(self, folder: Path, daemon: Daemon) -> None:
        super().__init__()
        self.written: Counter[tuple[str, int]] = Counter()
        self._folder = folder
        self._daemon = daemon  # or another one on its address
        self._seen = 0
        self._stops = threading.Event()

    def run(self) -> None:
        log = self._folder / "app.log"
        for number in range(400):
            with log.open("ab", buffering=0) as file:
                for n in range(500):
                    line = b'{"f":"%d","n":%d,"key":"k%d"}\n' % (number, n, n % 11)
                    file.write(line[:9])
                    if n % 50 == 0:
                        self._stay_near()
                    file.write(line[9:])
                    self.written[str(number), n] += 1
                    if self._stops.is_set() and n == 250:
                        return
            log.rename(log.with_name(f"app.log.{number}"))

    def _stay_near(self) -> None:
        self._stops.wait(0.02)
        while len(self.written) > self._seen + self.AHEAD and not self._stops.wait(0.02):
            with contextlib.suppress(*UNANSWERED):  # the daemon is killed
                answer = self._daemon.get("/v0/topics/t")
                if answer.status == 200:
                    self._seen = heads(answer)

    def stop(self) -> None:
        self._stops.set()
        self.join()


@pytest.mark.slow
def test_followed_files_that_rotate_are_stored_once_while_the_import_is_killed(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    with running(data, shards=1, settings={"commit_window_min_ms": 5}) as daemon:
        set_up(daemon)
        writer = RotatingWriter(folder, daemon)
        writer.start()
        try:
            follow = partial(started, daemon, Sources(folder, Counter(), Counter()), "--follow")
            for records in (100, 400, 1, 700):
                assert kill_after(daemon, follow("--batch", "20"), records)
            process = follow()
            with killed_at_the_end(process):
                begin = stored(daemon)
                wait_until(lambda: stored(daemon) > begin, "records")
                writer.stop()
                wait_until(lambda: stored(daemon) >= writer.written.total(), "all lines")
                process.terminate()
                assert process.wait(HANG_S) == 0
        finally:
            writer.stop()
        check(daemon, Sources(folder, writer.written, Counter()))


@pytest.mark.slow
def test_an_import_goes_on_exactly_after_a_recovery_from_the_store_alone(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    options: dict[str, Any] = {"store": f"file://{tmp_path}/store"}
    with running(data, shards=2, **options) as daemon:
        set_up(daemon)
        writer = RotatingWriter(folder, daemon)
        writer.start()
        try:
            unfinished = Sources(folder, Counter(), Counter())
            with killed_at_the_end(started(daemon, unfinished, "--follow", "--batch", "7")):
                wait_until(lambda: stored(daemon) > 0, "records")
                entries = len(log_entries(options))
                wait_until(lambda: len(log_entries(options)) > entries, "an entry with some")
                with unlisted(daemon):
                    listed = stored(daemon)
                    wait_until(lambda: stored(daemon) > listed, "records that are in no entry")
                    daemon.kill_everything()
        finally:
            writer.stop()
    shutil.rmtree(data)
    report = recovered(data, options)
    assert report.sound and report.objects_taken
    sources = Sources(folder, writer.written, Counter())
    with running(data, shards=1, **options) as daemon:
        finished(started(daemon, sources))
        check(daemon, sources)


@pytest.mark.slow
def test_an_import_outlives_daemons_and_shards_that_are_killed(
    data: Path, tmp_path: Path, listen: str
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    options: dict[str, Any] = {"shards": 2, "listen": listen, "settings": WINDOW}
    with contextlib.ExitStack() as stack:
        process: subprocess.Popen[str] | None = None
        for turn in range(4):
            with running(data, **options) as daemon:
                if process is None:
                    set_up(daemon)
                    process = started(
                        daemon, Sources(folder, Counter(), Counter()), "--follow", "--batch", "7"
                    )
                    stack.enter_context(killed_at_the_end(process))
                    writer = RotatingWriter(folder, daemon)
                    writer.start()
                    stack.callback(writer.stop)
                begin = stored(daemon)
                wait_until(lambda: stored(daemon) > begin + 50, "records")  # noqa: B023
                if turn == 1:
                    kill_shards(daemon, 0)
                    more = stored(daemon)
                    wait_until(lambda: stored(daemon) > more + 50, "more")  # noqa: B023
                if turn < 3:
                    daemon.kill_everything()
                    continue
                writer.stop()
                total = writer.written.total()
                wait_until(lambda: stored(daemon) >= total, "all")  # noqa: B023
                process.terminate()
                stdout, stderr = process.communicate(timeout=HANG_S)
                assert process.returncode == 0, stderr
                assert json.loads(stdout)["totals"]["retries"] > 0
                check(daemon, Sources(folder, writer.written, Counter()))


@pytest.mark.slow
def test_the_lag_of_a_killed_import_stays_in_the_scaling_signal_until_another_run_ends(
    daemon: Daemon, tmp_path: Path
) -> None:
    def run(*options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command("import", "t", str(path), "-o", "json", *options),
            cwd=ROOT, env={**os.environ, "HEADGATE_URL": daemon.url}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    # Each line has 100 bytes, so the records that are stored say what is left.
    path, line_bytes, lines = tmp_path / "lines", 100, 200_000
    path.write_text("".join(f'"{n:0{line_bytes - 3}}"\n' for n in range(lines)))
    size = path.stat().st_size
    assert daemon.json("PUT", "/v0/topics/t", {}).status == 201
    assert daemon.imports() == []
    # One by one, so that it is far from its end when it is killed, however late that is.
    assert kill_after(daemon, run("--batch", "1"), records=1_000), "it ended before it was killed"
    wait_until(
        lambda: daemon.imports()[0]["lag_bytes"] == size - line_bytes * stored(daemon),
        "the lag to settle",
    )
    (left,) = daemon.imports()
    assert 0 < left["lag_bytes"] <= size - 1_000 * line_bytes
    assert (left["topic"], left["sources"], left["unknown"]) == ("t", 1, 0)
    assert 0 <= left["told_age_ms"] < 3_600_000
    # What was on its way when it was killed may have been stored since.
    assert 0 < finished(run())["totals"]["records"] <= left["lag_bytes"] // line_bytes
    assert stored(daemon) == lines
    assert daemon.imports() == []
