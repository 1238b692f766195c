"""Exit codes and messages of all commands."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from tests.scripted import Answer, refusal, run, says


@pytest.mark.parametrize("command", [["status"], ["groups"], ["topics", "ls"], ["read", "t"]])
def test_an_unreachable_daemon_is_exit_code_3_with_a_hint(command: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(cli.headgate, [*command, "--url", url])
    assert (result.exit_code, result.stdout) == (3, "")
    assert url in result.stderr and "headgate serve" in result.stderr


def test_another_program_at_the_address_is_exit_code_1() -> None:
    with says(Answer(200, b"hello")) as server:
        result = run(server, "status")
    assert result.exit_code == 1 and "hint: is --url the address" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["status", "--no-such-option"],
        ["no-such-command"],
        ["status", "-o", "xml"],
        ["status", "--url", "nonsense"],
        ["read", "t", "--since", "yesterday"],
        ["read", "t", "--since", "1h", "--tail", "5"],
        ["read", "t", "-n", "0"],
        ["topics", "alter", "t"],
        ["topics", "create", "t", "--column", "price"],
        ["topics", "create", "t", "--cap-bytes", "many"],
        ["produce", "t", "no-such-file"],
        ["config", "show", "--set", "shards"],
        ["config", "show", "--set", "shard=1"],
        ["serve", "--shards", "none"],
        ["serve", "--config", "no-such-file.toml"],
        ["serve", "--chaos", "busy=3s/1s"],
        ["objects", "ls", "--store", "nonsense"],
    ],
)
def test_wrong_usage_and_wrong_configuration_are_exit_code_2(command: list[str]) -> None:
    result = CliRunner().invoke(cli.headgate, command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that is not there."""
    return tmp_path / "data"


def refused_start(data: Path, *arguments: str, **environ: str) -> str:
    """What ``serve`` says of a configuration that it refuses; it makes nothing."""
    result = CliRunner().invoke(
        cli.headgate, ["serve", "--data", str(data), *arguments], env=environ
    )
    assert result.exit_code == 2 and not data.exists()
    return result.stderr


def test_a_wrong_configuration_names_key_value_and_origin(data: Path) -> None:
    said = refused_start(
        data, "--set", "log_level=loud", "--set", "records_max=no", HEADGATE_SHARDS="0"
    )
    assert "log_level must be debug, info, warning or error, got 'loud' (--set)" in said
    assert "records_max must be an integer, got 'no' (--set)" in said
    assert "shards must be at least 1, got '0' (environment HEADGATE_SHARDS)" in said


def test_values_that_do_not_fit_each_other_are_named_together(data: Path) -> None:
    assert (
        "ring_bytes must be at least 4 x object_bytes_target (4MiB, default), got 1MiB (--set)"
        in refused_start(data, "--set", "ring_bytes=1MiB")
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("shard = 3\n", "'shard' (file {file}) is not a configuration key; did you mean shards?"),
        ("shards = 0\n", "shards must be at least 1, got 0 (file {file})"),
        ("shards = = 3\n", "the configuration file {file} is not valid TOML"),
        (None, "the configuration file {file} cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    data: Path, tmp_path: Path, text: str | None, sentence: str
) -> None:
    file = tmp_path / "headgate.toml"
    if text is not None:
        file.write_text(text)
    assert sentence.format(file=file) in refused_start(data, "--config", str(file))


def test_json_is_asked_for_and_an_error_is_the_json_value() -> None:
    with says(refusal(404, "unknown_topic", "no topic 't'")) as server:
        result = run(server, "topics", "show", "t", "-o", "json")
    assert json.loads(result.stdout) == {
        "error": {
            "code": "unknown_topic", "message": "no topic 't' (unknown_topic, status 404)",
            "hint": "`headgate topics ls` lists the topics", "exit_code": 1,
        }
    }  # fmt: skip
    assert "no topic" in result.stderr
    for wrong in (["topics", "ls", "--url", "x"], ["topics", "alter", "t"]):
        result = CliRunner().invoke(cli.headgate, [*wrong, "-o", "json"])
        assert json.loads(result.stdout)["error"]["code"] == "usage", result.stdout


def test_a_value_that_is_printed_already_is_the_only_one() -> None:
    with says(refusal(422, "topic_full", "full")) as server:
        result = run(server, "produce", "t", "-o", "json", stdin="1\n")
    assert json.loads(result.stdout)["error"]["line"] == 1
