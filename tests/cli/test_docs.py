"""docs/cli.md names every command, option, exit code and field of JSON output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click
import pytest
from msgspec import Struct

import cli
from commands.producing.sending import Summary
from commands.records.import_ import ImportSummary
from commands.running.top import TopLine
from commands.shell import exits
from commands.simulating.report import SimulationReport
from commands.stored.compact import Needs
from commands.stored.objects import Verified
from commands.stored.quarantine import Row
from compaction.run.report import RunReport
from daemon.upkeep.check import CheckReport
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.quarantine import RetryOutcome
from daemon.upkeep.recover import RecoveryReport
from ledger.lake.types import Hole
from ledger.types import ObjectRow

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


def structs_in(kind: Any) -> list[type[Struct]]:
    """The structs of a type: itself, of a list, of a dict, or one that may be null."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return [kind]
    return [struct for each in get_args(kind) for struct in structs_in(each)]


def fields_of(kind: type[Struct]) -> set[str]:
    """The names of all fields of a struct and of the structs in it."""
    names = set()
    for name, hint in get_type_hints(kind).items():
        if get_origin(hint) is not None and str(hint).startswith("typing.ClassVar"):
            continue
        names.add(name)
        for inner in structs_in(hint):
            names |= fields_of(inner)
    return names


SHAPES = [
    ("produce", Summary), ("import", ImportSummary), ("objects", ObjectRow),
    ("objects", Verified), ("check", CheckReport), ("compact", RunReport), ("compact", Needs),
    ("quarantine", Row), ("quarantine", RetryOutcome), ("quarantine", Hole), ("top", TopLine),
    ("gc", CollectionReport), ("recover", RecoveryReport), ("simulate", SimulationReport),
]  # fmt: skip


@pytest.mark.parametrize(("section", "kind"), SHAPES)
def test_every_field_of_json_output_is_documented_and_no_other(
    section: str, kind: type[Struct]
) -> None:
    text = re.split(rf"^## {section}\n", PAGE, flags=re.MULTILINE)[1].partition("\n## ")[0]
    shapes = re.findall(r"```\n([\[{].*?)\n```|`(\{.*?\})`", text, re.DOTALL)
    documented = [
        set(re.findall(r"[a-z]\w*(?=[,}:\]])", block or inline)) for block, inline in shapes
    ]
    values = {"null", "offset", "bytes"} - fields_of(kind)
    assert fields_of(kind) in [names - values for names in documented], sorted(fields_of(kind))
