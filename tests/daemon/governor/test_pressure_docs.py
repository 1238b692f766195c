"""docs/pressure.md has the tables of the code."""

from __future__ import annotations

from pathlib import Path

from daemon.config.sensors import SENSORS
from daemon.governor.ladder import RUNGS
from daemon.governor.pressure_docs import page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pressure.md"


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run: python -m daemon.governor.pressure_docs docs/pressure.md"
    for name in [*(sensor.name for sensor in SENSORS), *(rung.name for rung in RUNGS)]:
        assert f"| `{name}` |" in text
