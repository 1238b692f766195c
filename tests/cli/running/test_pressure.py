"""``headgate pressure``: one screen that says why."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.running.test_status import STATUS
from tests.scripted import Answer, Call, run, says

SENSORS: list[dict[str, Any]] = [
    {
        "sensor": "busy", "raw": 0.86, "unit": "share", "pressure": 0.8, "weight": 0.5,
        "hard": False, "shard": 1, "source": "CPU of the busiest shard",
    },
    {
        "sensor": "ledger", "raw": 64.0, "unit": "ms", "pressure": 0.6, "weight": 1.0,
        "hard": False, "shard": 0, "source": "commits, lock included",
    },
    {
        "sensor": "store", "raw": 1.3, "unit": "times", "pressure": 0.0, "weight": 1.0,
        "hard": False, "shard": 0, "source": "PUTs against their usual",
    },
    {
        "sensor": "disk", "raw": None, "unit": "share", "pressure": 0.2, "weight": 1.0,
        "hard": True, "shard": None, "source": "needed of the free space",
    },
]  # fmt: skip
PRESSURE: dict[str, Any] = {
    "level": 0.6, "rung": "widen", "rungs": ["coalesce", "widen"], "hard_level": 0.2,
    "steady_level": 0.5, "coalesce_ms": 10.0, "deferring": False, "scaling": 71,
    "memory_left_bytes": 350 << 20,
    "inputs": {each["sensor"]: each["pressure"] for each in SENSORS}, "sensors": SENSORS,
    "entered": {"coalesce": 3, "widen": 1, "defer": 0, "refuse": 0},
}  # fmt: skip
TEXT = """\
pressure  0.60 #####...  because of ledger of shard 0 (64 ms)
steady    0.50  the level that the commit window follows
window    0.5 ms
coalesce  10 ms
scaling   71 of 100: how much more CPU would help
memory    350 MiB left

sensor  value   shard            pressure  weight  what it is
ledger  64 ms       0  #####...      0.60  1       commits, lock included
busy    86%         1  ######..      0.80  0.5     CPU of the busiest shard
disk    broken      -  ##......      0.20  hard    needed of the free space
store   1.3x        0  ........      0.00  1       PUTs against their usual

rung               on / off  in force  entered  effect
coalesce         0.2 / 0.15  yes             3  pushes wait up to 20 ms
widen     0.4 / 0.35 steady  yes             1  wider windows, fewer PUTs
defer             0.8 / 0.6  -               0  no pushes of negative priority
refuse      0.99 / 0.9 ring  -               0  429 before the body
"""


def test_the_sensors_come_in_the_order_of_what_they_add_and_the_ladder_after_them() -> None:
    with says(Answer(200, STATUS | {"pressure": PRESSURE})) as server:
        result = run(server, "pressure")
    assert (result.exit_code, result.stdout, result.stderr) == (0, TEXT, "")
    assert server.calls == [Call("GET", "/v0/status", None)]


def test_all_sensors_and_rungs_of_a_daemon_fit_on_a_screen() -> None:
    assert len(TEXT.splitlines()) + 5 <= 24, "five more sensors"
    head, sensors, rungs = (part.splitlines() for part in TEXT.split("\n\n"))
    assert max(map(len, sensors)) + len("scheduling") - len("sensor") <= 80
    assert max(map(len, head + rungs)) <= 80


def test_without_pressure_there_is_no_cause() -> None:
    idle = PRESSURE | {"level": 0.0}
    with says(Answer(200, STATUS | {"pressure": idle})) as server:
        assert "no sensor presses" in run(server, "pressure").stdout


def test_memory_of_which_nothing_is_known_is_told_so() -> None:
    unknown = PRESSURE | {"memory_left_bytes": None}
    with says(Answer(200, STATUS | {"pressure": unknown})) as server:
        assert "\nmemory    not known\n" in run(server, "pressure").stdout


def test_as_json_it_is_the_pressure_of_the_status() -> None:
    with says(Answer(200, STATUS | {"pressure": PRESSURE})) as server:
        result = run(server, "pressure", "-o", "json")
    assert json.loads(result.stdout) == PRESSURE
