"""Each key that a reload takes is followed by the part that reads it, in a supervisor that runs.
What shards do with their words of it is in tests/e2e/test_config_reload.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from daemon.config.fields import FIELDS
from daemon.config.sensors import BY_NAME, SENSORS, Reading
from daemon.governor.readings import Sample
from daemon.process import supervisor as supervising
from daemon.process.supervisor import Supervisor
from shards import layout as at
from shards.clock import monotonic_ns
from shards.doubles import double_of
from tests.daemon.process.test_supervisor import Rig

TICK_NS = 100_000_000
SETTLED_TICKS = 120


class Followed(NamedTuple):
    """A line of the file, what follows it, and what that has then; ``busy``: of CPUs at work."""

    line: str
    seen: Callable[[Supervisor], object]
    value: object
    busy: bool = False


def window_ms(supervisor: Supervisor) -> float:
    return round(supervisor.segment.words[at.G_WINDOW_NS] / 1e6, 1)


def push_lists(supervisor: Supervisor) -> list[list[str]]:
    rules = supervisor._push_rules
    found = rules.read(rules.number) if rules.number else None
    return [] if found is None else [list(each) for each in found]


FOLLOWED = {
    "commit_window_min_ms": Followed("commit_window_min_ms = 3", window_ms, 3.0),
    "commit_window_max_ms": Followed("commit_window_max_ms = 70", window_ms, 70.0, busy=True),
    "pressure_weights": Followed(
        "pressure_weights = { busy = 0.0 }",
        lambda supervisor: supervisor.segment.words[at.G_PRESSURE_PPM] // 1000, 0, busy=True,
    ),
    "put_budget_usd_per_month": Followed(
        "put_budget_usd_per_month = 40.0",
        lambda supervisor: double_of(supervisor.segment.words[at.G_BUDGET_USD]), 40.0,
    ),
    "retention_interval_ms": Followed(
        "retention_interval_ms = 700",
        lambda supervisor: supervisor._upkeep._interval_ms(), 700,
    ),
    "push_allow": Followed(
        "push_allow = ['127.0.0.1']", lambda supervisor: push_lists(supervisor)[:1],
        [["127.0.0.1"]],
    ),
    "push_deny": Followed(
        "push_deny = ['10.0.0.0/8']", lambda supervisor: push_lists(supervisor)[1:],
        [["10.0.0.0/8"]],
    ),
    "log_level": Followed(
        "log_level = 'error'",
        lambda supervisor: supervisor.segment.words[at.G_LOG_LEVEL], 3,
    ),
}  # fmt: skip


class SetReadings:
    """Readings of a machine that does nothing, or all of whose CPUs are busy."""

    def __init__(self, *, busy: bool) -> None:
        full = BY_NAME["busy"].full
        self._sample = Sample(
            [Reading(full if busy and each.name == "busy" else 0.0, None) for each in SENSORS]
        )

    def take(self, now_ns: int) -> Sample:
        return self._sample


class Running:
    """A supervisor without shards, whose configuration is a file, under a clock of its own."""

    def __init__(self, rig: Rig, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.supervisor, self.file = rig.supervisor, file
        self.supervisor.children.clear()
        self._now_ns = monotonic_ns()
        monkeypatch.setattr(supervising, "monotonic_ns", lambda: self._now_ns)

    def settle(self) -> None:
        for _ in range(SETTLED_TICKS):
            self._now_ns += TICK_NS
            self.supervisor._tick()

    def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.supervisor._reload()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    file = tmp_path / "headgate.toml"
    file.write_text("")
    with ExitStack() as stack:
        rig = Rig(tmp_path / "data", stack, str(file), store_class="standard")
        yield Running(rig, file, monkeypatch)


def test_what_follows_a_key_is_known_of_each_that_a_reload_takes() -> None:
    assert FOLLOWED.keys() == {field.name for field in FIELDS if field.reloadable}


@pytest.mark.parametrize("key", FOLLOWED)
def test_a_key_that_was_reloaded_is_followed(
    running: Running, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    line, seen, value, busy = FOLLOWED[key]
    supervisor = running.supervisor
    monkeypatch.setattr(supervisor._governor, "_readings", SetReadings(busy=busy))
    running.settle()
    before = seen(supervisor)
    assert before != value
    running.reload(line)
    running.settle()
    assert seen(supervisor) == value
    running.reload("")
    running.settle()
    assert seen(supervisor) != value, "it is as by default again"
