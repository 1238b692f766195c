"""docs/cli.md names every command and every option that --help shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import cli
from commands.shell import exits

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, full)
        else:
            yield full, command


def test_every_command_is_documented() -> None:
    for name, _ in commands(cli.headgate, ""):
        assert re.search(rf"`{name}\b|^## {name}$", PAGE, re.MULTILINE), f"{name} is not in cli.md"


def test_every_option_is_documented() -> None:
    for name, command in commands(cli.headgate, ""):
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-"):
                    assert re.search(rf"(?<![\w-]){option}(?![\w-])", PAGE), (
                        f"{option} of {name} is not in cli.md"
                    )


def test_every_option_and_command_has_a_help_text() -> None:
    for name, command in commands(cli.headgate, ""):
        assert command.help, f"{name} has no help"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{parameter.opts} of {name} has no help"


def test_every_exit_code_is_documented() -> None:
    codes = (exits.OK, exits.FAILED, exits.USAGE, exits.UNREACHABLE, exits.DEGRADED)
    assert codes == (0, 1, 2, 3, 4)
    for code in codes:
        assert re.search(rf"^\| {code} \| ", PAGE, re.MULTILINE)
