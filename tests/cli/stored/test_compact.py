"""``headgate compact``: options that exclude each other."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cli import headgate


@pytest.mark.parametrize("command", ["compact", "gc"])
@pytest.mark.parametrize(
    ("flag", "value"),
    [("--data", "somewhere"), ("--store", "s3://b"), ("--set", "shards=1"), ("--config", "a.toml")],
)
def test_the_configuration_of_this_machine_is_refused_together_with_a_url(
    command: str, flag: str, value: str
) -> None:
    result = CliRunner().invoke(headgate, [command, "--url", "http://daemon:7440", flag, value])
    assert result.exit_code == 2
    assert f"--url cannot be combined with {flag}: the daemon there has its own" in result.stderr
