"""The root of the command: what it imports, its version, its help and its completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import cli
from tests.e2e.daemon import wait_until
from tests.scripted import Answer, says, state

CHECKOUT = Path(__file__).resolve().parents[3]
HEAVY = {"boto3", "pyarrow", "pyiceberg", "pyspark", "rich", "uvloop", "sqlite3"}


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """All commands and groups, each with a context that has its whole name."""

    def below(
        context: click.Context, group: click.Group
    ) -> Iterator[tuple[click.Context, click.Command]]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            inner = click.Context(command, parent=context, info_name=name)
            yield inner, command
            if isinstance(command, click.Group):
                yield from below(inner, command)

    root = click.Context(cli.headgate, info_name="headgate")
    yield root, cli.headgate
    yield from below(root, cli.headgate)


def imported_by(*arguments: str) -> set[str]:
    """The modules of a process that ran the command."""
    return imported(f"headgate({list(arguments)!r})")


def imported(ran: str) -> set[str]:
    """The modules of a process that ran this."""
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
        f"from cli import headgate; {ran}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_help_and_the_version_import_click_and_no_other_library(option: str) -> None:
    found = imported_by(option)
    assert "click" in found
    assert not found & {*HEAVY, "msgspec", "daemon", "uploader", "compaction", "ledger"}


def test_commands_that_talk_http_import_no_server_store_or_lake() -> None:
    commands = ["consume", "produce", "status", "topics", "watch"]
    found = imported(f"[headgate([c, '--help'], standalone_mode=False) for c in {commands}]")
    assert {f"commands.{cli.COMMANDS[each][0]}.{each}" for each in commands} <= found
    assert not found & {*HEAVY, "daemon.config", "daemon.process.serve", "uploader.stores"}


def test_the_list_of_commands_says_of_each_what_its_own_help_says_first() -> None:
    context = click.Context(cli.headgate)
    for name, (_, summary) in cli.COMMANDS.items():
        command = cli.headgate.get_command(context, name)
        assert command is not None and command.help is not None
        assert command.help.splitlines()[0] == summary


def test_the_version_is_an_option_and_a_command() -> None:
    option = CliRunner().invoke(cli.headgate, ["--version"])
    command = CliRunner().invoke(cli.headgate, ["version"])
    assert option.exit_code == command.exit_code == 0
    assert option.stdout == f"headgate {command.stdout}"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_lists_all_commands(option: str) -> None:
    result = CliRunner().invoke(cli.headgate, [option])
    assert result.exit_code == 0
    for name, (_, summary) in cli.COMMANDS.items():
        assert f"  {name} " in result.stdout and summary in " ".join(result.stdout.split())


def test_every_command_has_examples_that_it_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.ndjson").write_text("{}\n")
    for context, command in commands():
        _, heading, text = (command.help or "").partition("Example")
        assert heading, f"{context.command_path} has no examples"
        lines = text.splitlines()[1:]
        examples = [line.rpartition("| ")[2].strip() for line in lines if line.strip()]
        assert examples
        for example in examples:
            words = shlex.split(example)
            assert example.startswith(context.command_path), example
            parse(words[1:])


def documented() -> Iterator[tuple[str, str]]:
    """The command lines in code blocks of the documents, each with its page. Two spaces and more
    are in pictures and tables only."""
    for page in (each for at in ("", "docs/", "examples/") for each in CHECKOUT.glob(f"{at}*.md")):
        for kind, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```", page.read_text()):
            lines = block.replace("\\\n", " ").splitlines()
            for line in lines if kind in ("", "sh", "console") else ():
                found = re.match(r"(?:.*\| |\$ )?(?:[A-Z_]+=\S+ )*(headgate [a-z].*)", line)
                if found is not None and not re.search(r"\S {2,}[^ #]|\.\.\.|[(|]", found[1]):
                    yield page.name, found[1].partition(" > ")[0]


def test_the_command_understands_every_command_line_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.ndjson").write_text("{}\n")
    found = list(documented())
    assert len(found) > 50
    for page, line in found:
        try:
            parse(shlex.split(line, comments=True)[1:])
        except click.UsageError as error:
            pytest.fail(f"{page}: {line}: {error.format_message()}")


def parse(arguments: list[str]) -> None:
    """Parses a whole command line without running it."""
    command: click.Command | None = cli.headgate
    context: click.Context | None = None
    while isinstance(command, click.Group):
        context = command.make_context("headgate", arguments, parent=context)
        _, command, arguments = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    assert command is not None
    with command.make_context(command.name, arguments, parent=context):
        pass


def test_an_example_with_an_unknown_option_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["read", "orders", "--tails", "5"])


def completed(words: str, **environ: str) -> list[str]:
    """What bash would offer for the last word."""
    done = subprocess.run(
        [sys.executable, "-c", "import cli; cli.main()"],
        env=os.environ | {
            "_HEADGATE_COMPLETE": "bash_complete", "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1), **environ,
        },
        capture_output=True, text=True, check=True, cwd=CHECKOUT,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def completed_by_a_daemon(words: str, **environ: str) -> list[str]:
    """What bash offers once the daemon's answer comes within a second, which is all that a
    completion waits for."""
    return wait_until(lambda: completed(words, **environ), "an answer in time")


def test_a_shell_completes_commands_options_topics_and_profiles(tmp_path: Path) -> None:
    assert completed("headgate topics al") == ["alter"]
    assert completed("headgate read --foll") == ["--follow"]
    answer = {"topics": [state("orders"), state("returns")], "next_cursor": None}
    with says(Answer(200, answer)) as server:
        there = {"HEADGATE_URL": server.url}
        assert completed_by_a_daemon("headgate read or", **there) == ["orders"]
        assert completed_by_a_daemon(f"headgate read --url {server.url} or") == ["orders"]
        (tmp_path / "headgate").mkdir()
        file = tmp_path / "headgate" / "config.toml"
        file.write_text(f"[profiles.shop]\nurl = '{server.url}'\n")
        there = {"XDG_CONFIG_HOME": str(tmp_path)}
        assert completed("headgate read --profile s", **there) == ["shop"]
        assert completed_by_a_daemon("headgate read --profile shop or", **there) == ["orders"]
    assert completed("headgate read or", HEADGATE_URL=server.url) == []


def test_click_prints_the_completion_script() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import cli; cli.main()"],
        env=os.environ | {"_HEADGATE_COMPLETE": "bash_source"},
        capture_output=True, text=True, check=True, cwd=CHECKOUT,
    )  # fmt: skip
    assert "_headgate_completion" in done.stdout
