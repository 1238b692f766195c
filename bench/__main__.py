"""``python -m bench``: runs the cases, prints the tables and keeps the results as JSON."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from bench import plan, report
from bench.hot import HotResult
from bench.load import Generator, GeneratorError
from bench.own_generator import OwnGenerator
from bench.processes import ROOT, ServerError, s2_lite_binary
from bench.results import Machine, Results
from bench.runner import Runner
from bench.wrk import find
from shards.clock import wall_ms
from tools.minio import MinioError

RESULTS = ROOT / "bench" / "results"
# A saturated case of 64 KiB bodies, its half load, and as much again for the files of MinIO.
DISK_FREE_MIN_BYTES = 12 << 30


class _Kept(msgspec.Struct):
    """What is read of an earlier run."""

    hot: list[HotResult] = []


def main() -> int:
    """Returns 0 if it ran, whatever the figures; 1 if it could not; 2 for wrong usage."""
    given = _arguments()
    cases = plan.quick() if given.quick else plan.full()
    try:
        cases = plan.chosen(cases, given.only)
    except ValueError as error:
        return _refused(str(error), 2)
    if given.list:
        print("\n".join(case.name for case in cases))
        return 0
    generator: Generator = OwnGenerator()
    if not given.own_generator:
        generator = find() or generator
    results = Results(_machine(generator.name), _now_text(), hot_before=_hot_before())
    limit_s = given.limit_s or (plan.QUICK_LIMIT_S if given.quick else plan.LIMIT_S)
    times = plan.QUICK if given.quick else plan.FULL
    try:
        work = Path(tempfile.mkdtemp(prefix="headgate-bench-", dir=_disk(given.work_dir)))
        try:
            peer = s2_lite_binary(given.s2_lite)
            runner = Runner(generator, times, work, peer, results)
            try:
                runner.run(cases, limit_s)
            finally:
                runner.close()
        finally:
            shutil.rmtree(work)
    except (ServerError, GeneratorError, MinioError) as error:
        return _refused(str(error), 1)
    except KeyboardInterrupt:
        return _refused("stopped; no result is kept", 130)
    kept = _keep(results)
    print(report.text(results))
    print(f"\nkept as {kept.relative_to(ROOT)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what the targets need, in 90 s")
    parser.add_argument("--only", action="append", default=[], metavar="PART",
                        help="cases with PART in their name; repeatable")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument(
        "--limit-s",
        type=float,
        help=f"leave out what does not fit (default {plan.LIMIT_S}, quick {plan.QUICK_LIMIT_S})",
    )
    parser.add_argument("--s2-lite", metavar="PATH", help="the server binary of s2-lite; also"
                        " HEADGATE_BENCH_S2_LITE, or s2-lite on PATH")  # fmt: skip
    parser.add_argument(
        "--own-generator", action="store_true", help="do not use wrk, even if it is installed"
    )
    parser.add_argument("--work-dir", help="a folder on the disk to measure")
    return parser.parse_args()


def _disk(named: str | None) -> str:
    """A folder on a disk with enough room. Raises ServerError."""
    candidates = [named] if named else [tempfile.gettempdir(), "/var/tmp", str(ROOT)]
    for folder in candidates:
        if not os.path.isdir(folder) or _file_system(folder) in ("tmpfs", "ramfs"):
            continue
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes >= DISK_FREE_MIN_BYTES:
            return folder
    raise ServerError(
        f"none of {', '.join(candidates)} is on a disk (not in memory) with"
        f" {DISK_FREE_MIN_BYTES >> 30} GiB free; choose a folder with --work-dir"
    )


def _file_system(folder: str) -> str:
    path = os.path.realpath(folder)
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if os.path.commonpath([path, mount.mountpoint]) == mount.mountpoint
    ]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def _machine(generator: str) -> Machine:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = ""
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return Machine(
        cpu_model=model[1] if model else platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        generator=generator,
    )


def _now_text() -> str:
    return datetime.fromtimestamp(wall_ms() / 1e3, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _hot_before() -> list[HotResult]:
    """The steps of a request in the last run that measured them."""
    for path in sorted(RESULTS.glob("*.json"), reverse=True):
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        if kept.hot:
            return kept.hot
    return []


def _keep(results: Results) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{results.started.replace(':', '')}.json"
    document = msgspec.to_builtins(results) | {
        "targets": [
            msgspec.to_builtins(target) | {"verdict": target.verdict}
            for target in report.targets(results)
        ]
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    return path


def _refused(sentence: str, code: int) -> int:
    print(f"bench: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
