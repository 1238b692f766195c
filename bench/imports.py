"""``headgate import`` with its byte budget and with everything in flight that memory takes.

The daemon's uploads are slow (a store that takes half a second), so that latency limits an import
and not a CPU. Each import is a process of its own, which prints an ImportSide:
``python -m bench.imports BUDGET URL TOPIC FILE...``
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
from click.testing import CliRunner

import cli
from bench.governor_results import ImportResult, ImportSide
from bench.processes import ROOT, ServerError, pinned, plain_environment
from commands.importing.budget_leases import InFlightBudget
from commands.importing.byte_budget import ByteBudget
from commands.records import import_ as command

GOVERNED, ALL_IN = "budget", "all-in"
ALL_IN_BYTES = 256 << 20  # more than rings and sources together
FILES = 4
LINE = json.dumps({"text": "x" * 180}) + "\n"
# One shard that puts two objects of 2 MiB in half a second, and the windows of S3.
SLOW_STORE: dict[str, object] = {
    "commit_window_min_ms": 200, "commit_window_max_ms": 1_000, "object_bytes_target": 2 << 20,
    "uploads_in_flight_max": 2,
}  # fmt: skip
SLOW_STORE_CHAOS = "latency=400ms..600ms"
WITHIN_S = 120


class Recorder:
    """A budget that remembers what it was told."""

    def __init__(self, budget: InFlightBudget) -> None:
        self._budget = budget
        self.peak_bytes = 0
        self._acked: list[tuple[float, int]] = []

    @property
    def bytes(self) -> int:
        """Of the budget."""
        return self._budget.bytes

    def in_use(self, leased_bytes: int) -> None:
        """Remembers the most."""
        self.peak_bytes = max(self.peak_bytes, leased_bytes)
        self._budget.in_use(leased_bytes)

    def acked(self, count: int, latency_s: float, now: float) -> None:
        """Remembers the time."""
        self._acked.append((now, count))
        self._budget.acked(count, latency_s, now)

    def refused(self, retry_after_s: float, now: float) -> None:
        """Passes it on."""
        self._budget.refused(retry_after_s, now)

    def side(self) -> ImportSide:
        """The rate is that of the last two thirds: before that, a budget is still found."""
        first, *rest = self._acked[len(self._acked) // 3 :]
        rate = sum(count for _, count in rest) / (rest[-1][0] - first[0])
        return ImportSide(rate, self.bytes, self.peak_bytes)


class AllIn:
    """A budget that does not change."""

    bytes = ALL_IN_BYTES

    def in_use(self, leased_bytes: int) -> None:
        """Changes nothing."""

    def acked(self, count: int, latency_s: float, now: float) -> None:
        """Changes nothing."""

    def refused(self, retry_after_s: float, now: float) -> None:
        """Changes nothing."""


def import_files(budget: InFlightBudget, url: str, topic: str, files: Sequence[str]) -> ImportSide:
    """Imports in this process, with this budget. Raises ServerError."""
    recorder = Recorder(budget)
    with patch.object(command, "ByteBudget", lambda: recorder):
        result = CliRunner().invoke(cli.headgate, ["import", topic, *files, "--url", url])
    if result.exit_code:
        told = f"an import ended with {result.exit_code}: {result.output}"
        raise ServerError(told) from result.exception
    return recorder.side()


def write_files(folder: Path, file_bytes: int) -> list[str]:
    """Sources of a size each, different in their first lines."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number}.ndjson" for number in range(FILES)]
    for number, file in enumerate(files):
        file.write_text(f"{number}\n" + LINE * (file_bytes // len(LINE)))
    return [str(file) for file in files]


def compare(
    url: str, folder: Path, file_bytes: int, turns: int, cpus: Iterable[int]
) -> ImportResult:
    """Turns of both; who is first changes. Raises ServerError."""
    files = write_files(folder, file_bytes)
    pairs = []
    for turn in range(turns):
        order = (GOVERNED, ALL_IN) if turn % 2 else (ALL_IN, GOVERNED)
        sides = {name: _process(name, url, f"{name}-{turn}", files, cpus) for name in order}
        pairs.append((sides[GOVERNED], sides[ALL_IN]))
    return ImportResult(pairs)


def _process(
    name: str, url: str, topic: str, files: Sequence[str], cpus: Iterable[int]
) -> ImportSide:
    with pinned(cpus):
        done = subprocess.run(
            [sys.executable, "-m", "bench.imports", name, url, topic, *files],
            cwd=ROOT, env=plain_environment(), capture_output=True, check=False, timeout=WITHIN_S,
        )  # fmt: skip
    if done.returncode:
        raise ServerError(f"an import ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    return msgspec.json.decode(done.stdout, type=ImportSide)


def main() -> None:
    """One import."""
    name, url, topic, *files = sys.argv[1:]
    budget: InFlightBudget = ByteBudget() if name == GOVERNED else AllIn()
    sys.stdout.buffer.write(msgspec.json.encode(import_files(budget, url, topic, files)))


if __name__ == "__main__":
    main()
