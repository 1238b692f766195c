"""Suites that others wrote for their clients of Kafka's protocol, each test by itself against a
real daemon.

A suite is given as a folder of its source, as a package registry has it. Its list in this folder
has all its tests that speak to a broker: NAME for each that passes, and NAME: WHY for each that
cannot. The lists only grow.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.daemon import Daemon
from tests.e2e.kafka import bootstrap

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Both suites wait a few seconds for what a cluster does; a busy machine is slower.
TIMES_SLOWER = 4
TEST_S_MAX = 300.0


class Outcome(NamedTuple):
    """What became of a test, and what was printed."""

    name: str
    state: str
    text: str


def listed(path: Path) -> dict[str, str]:
    """Each test of a list, and why it cannot pass: "" of those that do."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name: why.strip() for name, _, why in (line.partition(":") for line in lines)}


def findings(expected: dict[str, str], outcomes: list[Outcome]) -> list[str]:
    """What differs from the list."""
    found = []
    for each in outcomes:
        if each.name not in expected:
            found.append(f"{each.name} {each.state}, and is not in the list")
        elif each.state != PASSED and not expected[each.name]:
            found.append(f"{each.name} {each.state}")
        elif each.state == PASSED and expected[each.name]:
            found.append(f"{each.name} passed: delete why it cannot")
    return found


class Librdkafka:
    """librdkafka's ``tests/``. Left out are tests of its insides, those with its own mock of a
    broker, and those that it knows to fail."""

    name = "librdkafka"
    WHOLE = ("0082_fetch_max_bytes",)  # not run in quick mode

    def __init__(self, source: Path) -> None:
        self._tests = source / "tests"
        if not (self._tests / "test-runner").exists():
            subprocess.run(["./configure", "--disable-gssapi", "--disable-curl"], cwd=source,
                           check=True)  # fmt: skip
            for goal in (["libs"], ["-C", "tests", "test-runner"]):
                subprocess.run(["make", f"-j{os.cpu_count()}", *goal], cwd=source, check=True)

    def tests(self) -> list[str]:
        """Those that speak to a broker."""
        return [
            name for name, rest in self._table().items()
            if not re.search(r"TEST_F_(LOCAL|MANUAL|KNOWN_ISSUE)\b", rest) and "_mock" not in name
        ]  # fmt: skip

    def _table(self) -> dict[str, str]:
        """What the runner's table says of each test."""
        text = (self._tests / "test.c").read_text()
        table = text.partition("struct test tests[] = {")[2].partition("{NULL}")[0]
        entries = [each.partition(",") for each in table.split("_TEST(")[1:]]
        return {name: rest for name, _, rest in entries}

    def run(self, daemon: Daemon, tests: list[str]) -> Iterator[Outcome]:
        """Runs tests; those of the scenario ``noautocreate`` ask for their topics anyway."""
        table = self._table()
        (self._tests / "test.conf").write_text(
            f"metadata.broker.list={bootstrap(daemon)}\ntest.topic.random=true\n"
            f"test.timeout.multiplier={TIMES_SLOWER}\n"
        )
        for name in tests:
            scenario = re.search(r'\.scenario = "(\w+)', table[name])
            command = ["./test-runner", "-p1", "-L", *([] if name in self.WHOLE else ["-Q"]), "-s",
                       scenario.group(1) if scenario else "default"]  # fmt: skip
            environ = {"TESTS": name, "LD_LIBRARY_PATH": "../src:../src-cpp"}
            said = _said(command, self._tests, environ)
            states = re.findall(rf" {name} +\| +(PASSED|FAILED|SKIPPED)", said)
            yield Outcome(name, states[-1].lower() if states else FAILED, said)


class FranzGo:
    """franz-go's ``pkg/kgo``: the tests that have a client of a broker."""

    name = "franz-go"
    RECORDS = 20_000  # of each of its long tests
    _CLIENT = "newTestClient|testClientOpts|getSeedBrokers|tmpTopic"

    def __init__(self, source: Path) -> None:
        self._folder = source / "pkg" / "kgo"
        self._program = self._folder / "kgo.test"
        if not self._program.exists():
            subprocess.run(["go", "test", "-c", "-o", str(self._program), "."],
                           cwd=self._folder, check=True)  # fmt: skip

    def tests(self) -> list[str]:
        """Those that make a client as the suite makes one for a broker."""
        found = []
        for path in sorted(self._folder.glob("*_test.go")):
            for each in re.split(r"^func ", path.read_text(), flags=re.MULTILINE)[1:]:
                name = re.match(r"Test\w+", each)
                if name and re.search(self._CLIENT, each):
                    found.append(name.group())
        return found

    def run(self, daemon: Daemon, tests: list[str]) -> Iterator[Outcome]:
        """Runs tests. Each has an outcome, and so has each part that has a name."""
        environ = {"KGO_SEEDS": bootstrap(daemon), "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none",
                   "KGO_TEST_RECORDS": str(self.RECORDS)}  # fmt: skip
        for name in tests:
            said = _said([str(self._program), "-test.v", f"-test.run=^{name}$"], self._folder,
                         environ)  # fmt: skip
            states = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", said, re.MULTILINE)
            for state, part in states or [("FAIL", name)]:
                yield Outcome(part, {"PASS": PASSED, "SKIP": SKIPPED}.get(state, FAILED), said)


def _said(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    """What a program prints until it ends, or is ended after TEST_S_MAX."""
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environ}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            return process.communicate(timeout=TEST_S_MAX)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0] + f"\nended after {TEST_S_MAX:.0f} s\n"


SUITES = {each.name: each for each in (Librdkafka, FranzGo)}
