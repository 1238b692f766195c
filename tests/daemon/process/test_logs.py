"""Log lines: text that says who speaks, or one JSON object a line; levels change at run time."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from daemon.process import logs

log = logging.getLogger("headgate.test")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The test run's own logging, back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("headgate")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_a_text_line_names_the_time_the_level_and_who(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("info", "text", "shard 3")
    log.info("one %s", "thing")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(" INFO shard 3: one thing\n") and err.startswith("20")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written, as JSON."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_is_one_object_a_line_with_tracebacks_inside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.start("info", "json", "serve")
    log.warning("two\nlines \N{SNOWMAN}")
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError:
        log.exception("failed")
    first, second = lines(capsys)
    assert first["message"] == "two\nlines \N{SNOWMAN}"
    assert (first["level"], first["logger"]) == ("warning", "headgate.test")
    assert set(first) == {"ts", "level", "logger", "pid", "message"}
    assert second["level"] == "error"
    assert second["traceback"].endswith("ZeroDivisionError: no")


def test_the_level_changes_at_run_time(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("error", "json", "serve")
    log.warning("not heard")
    logs.set_level("debug")
    log.debug("heard")
    logs.set_level("warning")
    log.info("not heard either")
    assert [line["message"] for line in lines(capsys)] == ["heard"]


def test_libraries_speak_from_warning_on_only(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("debug", "json", "serve")
    library = logging.getLogger("some.library")
    library.info("chatter")
    library.warning("trouble")
    logs.set_level("error")
    library.warning("less trouble")
    assert [line["message"] for line in lines(capsys)] == ["trouble"]


def test_the_levels_are_those_of_the_configuration_from_most_to_least_talkative() -> None:
    numbers = [logging.getLevelName(level.upper()) for level in logs.LEVELS]
    assert numbers == sorted(numbers)


def test_starting_twice_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("info", "json", "serve")
    logs.start("info", "json", "serve")
    log.info("once")
    assert len(lines(capsys)) == 1
