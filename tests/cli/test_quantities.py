"""Sizes and durations of the command line, and every option that takes one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
import pytest

import cli
from commands.quantities import duration_ms, size_bytes, whole_ms
from tests.scripted import Answer, Call, run, says, scripted, state


@pytest.mark.parametrize(
    ("text", "found"),
    [("90s", 90_000), ("1h30m", 5_400_000), ("2d", 172_800_000), ("1.5m", 90_000), ("250ms", 250),
     ("1m1ms", 60_001), ("7", 7), (" 1d2h3m4s5ms ", 93_784_005)],
)  # fmt: skip
def test_durations_have_units_the_largest_first(text: str, found: float) -> None:
    assert duration_ms(text, "ms") == found


@pytest.mark.parametrize("text", ["", "x", "-1s", "30m1h", "1h 30m", "1hour", "nan", "1e3", "1s1s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration like 90s, 1h30m or 2d, got"):
        duration_ms(text)


def test_a_number_alone_needs_a_unit_that_it_is_in() -> None:
    assert duration_ms("2", "s") == 2_000
    with pytest.raises(ValueError, match="2d, or a number of seconds, got '2x'"):
        duration_ms("2x", "s")
    with pytest.raises(ValueError, match=r"an integer number of milliseconds, got '0\.5ms'"):
        whole_ms("0.5ms")
    with pytest.raises(ValueError, match=r"must be a size .*, got '5MB'"):
        size_bytes("5MB")


def _options(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _options(found, f"{name} {each}")
        return
    for parameter in command.params:
        yield f"{name} {parameter.opts[-1]}", parameter


def test_every_option_for_bytes_or_time_takes_units() -> None:
    importlib.import_module("cli")
    for name, parameter in _options(cli.headgate, "headgate"):
        words = str(parameter.name).split("_")
        if words[-1] in ("ms", "s") or "bytes" in words:
            shown = str(parameter.metavar)
            assert any(each in shown for each in ("SIZE", "DURATION", "FIRST,LONGEST")), name
            context = click.Context(click.Command("x"))
            text = "1s,1m" if "," in shown else "2KiB" if "SIZE" in shown else "2s"
            assert parameter.process_value(context, text) is not None, name


def test_settings_of_topics_and_subscriptions_take_units() -> None:
    answers = {
        "GET": Answer(404, {"error": {"code": "unknown_topic", "message": "", "detail": {}}})
    }

    def script(call: Call) -> Answer:
        if call.method == "PUT":
            answers["GET"] = Answer(200, state("t"))
            return Answer(201, state("t"))
        return answers["GET"]

    with scripted(script) as server:
        run(server, "topics", "create", "t", "--cap-bytes", "1GiB", "--ttl", "1d")
    assert {"cap_bytes": 1 << 30, "ttl_ms": 86_400_000} in [call.body for call in server.calls]
    result = run(server, "topics", "create", "t", "--ttl-ms", "tomorrow")
    assert result.exit_code == 2
    assert "must be a duration like 90s, 1h30m or 2d" in result.stderr
    assert "got 'tomorrow'; none removes it" in result.stderr


def test_topics_are_listed_by_a_pattern() -> None:
    page = {"topics": [state("orders-eu"), state("orders-us"), state("logs")], "next_cursor": None}
    with says(Answer(200, page)) as server:
        names = run(server, "topics", "ls", "orders-*").stdout.split("\n")
        assert [line.split()[0] for line in names[1:] if line] == ["orders-eu", "orders-us"]
        assert run(server, "topics", "ls", "x\\").stdout.count("\n") == 1
