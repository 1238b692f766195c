"""``headgate tokens``: what it prints, once, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cli
from daemon.access.token_file import read_tokens, split_token


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.headgate, ["tokens", *arguments, "--auth-file", str(path)])


def test_a_token_is_printed_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = run(
        path, "create", "shop", "--scope", "produce, read", "--topics", "a*", "--topics", "b"
    )
    assert made.exit_code == 0, made.output
    text = made.output.strip()
    assert split_token(text) is not None
    listed = run(path, "ls")
    assert "produce,read" in listed.output and "a* b" in listed.output and "never" in listed.output
    assert text not in listed.output
    revoked = run(path, "revoke", "shop", "-o", "json")
    assert json.loads(revoked.output)["name"] == "shop"
    assert run(path, "ls", "-o", "json").output.strip() == "[]"


def test_scopes_add_up_however_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    scopes = ["--scope", "produce", "--scope", "read,metrics"]
    made = json.loads(run(path, "create", "a", *scopes, "-o", "json").output)
    assert made["scopes"] == ["produce", "read", "metrics"]


def test_json_has_the_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = json.loads(
        run(path, "create", "a", "--scope", "admin", "--expires", "30d", "-o", "json").output
    )
    assert split_token(made["token"]) is not None
    assert made["topics"] == ["*"] and made["expires"] > made["created"]
    (token,) = read_tokens(path).tokens
    assert token.id == made["id"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "a"], 2, "Missing option '--scope'"),
        (["create", "a", "--scope", "write"], 2, "'write' is not a scope; the scopes are produce"),
        (["create", "a", "--scope", "read", "--expires", "soon"], 2, "1h30m or 2d, got 'soon'"),
        (["create", "a", "--scope", "read", "--expires", "99999999d"], 2, "1s to 36500d"),
        (["create", "a", "--scope", "read", "--expires", "0d"], 2, "1s to 36500d, got '0d'"),
        (["create", "a", "--scope", "read", "--topics", "a/b"], 1, "got 'a/b'"),
        (["create", "a b", "--scope", "read"], 1, "a token's name must have"),
        (["revoke", "nobody"], 1, "there is no"),
        (["ls"], 1, "there is no"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    path = tmp_path / "tokens.json"
    refused = run(path, *arguments)
    assert refused.exit_code == code and said in refused.output, refused.output
    assert not path.exists()
    run(path, "create", "a", "--scope", "read")
    assert "has no token 'nobody'" in run(path, "revoke", "nobody").output


def test_without_a_file_the_daemon_is_asked(tmp_path: Path) -> None:
    refused = CliRunner().invoke(cli.headgate, ["tokens", "ls", "--data", str(tmp_path)])
    assert refused.exit_code == 3 and "--auth-file" in refused.output, refused.output
