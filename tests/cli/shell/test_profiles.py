"""Which daemon a command calls, with which token: options, environment, profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cli
from commands.shell.profiles import place_of
from tests.scripted import Answer, says

TWO = """
default = "shop"

[profiles.shop]
url = "http://127.0.0.1:1111"
token = "hg_shop"

[profiles."other one"]
url = "http://127.0.0.1:2222"
token_file = "{file}"
ca_file = "{file}"
"""
Write = Callable[[str], dict[str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the file, and returns the environment in which it is found."""

    def written(text: str) -> dict[str, str]:
        file = tmp_path / "headgate" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        (tmp_path / "some.file").write_text("x")
        file.write_text(text.replace("{file}", str(tmp_path / "some.file")))
        file.chmod(0o600)
        return {"XDG_CONFIG_HOME": str(tmp_path)}

    return written


def found(
    environ: dict[str, str], url: str | None = None, profile: str | None = None
) -> tuple[str, str, str, str]:
    """Address, token, name of the token's file, name of the authorities' file."""
    place = place_of(url, profile, environ)
    names = ("TOKEN", "TOKEN_FILE", "CA_FILE")
    token, token_file, ca_file = (place.environ.get(f"HEADGATE_{name}", "") for name in names)
    return place.url, token, Path(token_file).name, Path(ca_file).name


def test_option_then_environment_then_profile_then_default(write: Write, tmp_path: Path) -> None:
    empty = {"XDG_CONFIG_HOME": str(tmp_path)}
    default = "http://127.0.0.1:7440"
    assert found(empty) == found({"HOME": str(tmp_path)}) == (default, "", "", "")
    there = write(TWO)
    shop, other = "http://127.0.0.1:1111", "http://127.0.0.1:2222"
    assert found(there) == (shop, "hg_shop", "", "")
    named = there | {"HEADGATE_PROFILE": "other one"}
    assert found(named) == (other, "", "some.file", "some.file")
    # What the environment says of a token comes before the profile, unless an option names that.
    more = named | {"HEADGATE_TOKEN": "hg_mine", "HEADGATE_CA_FILE": "/mine.pem"}
    assert found(more) == (other, "hg_mine", "", "mine.pem")
    assert found(more, profile="shop") == (shop, "hg_shop", "", "mine.pem")
    assert found(more, profile="other one") == (other, "", "some.file", "some.file")
    # The token of a profile never goes to another address.
    at = "http://127.0.0.1:9"
    assert found(there, url=at) == found(there | {"HEADGATE_URL": at}) == (at, "", "", "")
    assert found(named | {"HEADGATE_URL": at}, profile="shop") == (shop, "hg_shop", "", "")


@pytest.mark.parametrize(
    ("text", "profile", "expected"),
    [
        ("defualt = 'x'\n", None, "config.toml, line 1: defualt is not a key"),
        ("\n[profiles.a\n", None, "config.toml: it is not TOML: "),
        ("default = 'b'\n[profiles.a]\nurl = 'http://h'\n", None,
         "config.toml, line 1: there is no profile 'b'; the profiles are: a"),
        ("[profiles.a]\nurl = 'http://h'\n\n[profiles.b]\nurll = 'http://h'\n", "b",
         "config.toml, line 5: urll of profile b is not a key; the keys are url, token"),
        ("[profiles.a]\nurl = 1\n", "a", "config.toml, line 2: url of profile a must be a text"),
        ("[profiles.a]\ntoken = 'x'\n", "a", "config.toml, line 1: url of profile a is missing"),
        ("[profiles.a]\nurl = 'http://h'\nca_file = '/no/such.pem'\n", "a",
         "config.toml, line 3: ca_file of profile a names a file that cannot be read: /no/such"),
        ("[profiles.a]\nurl = 'h:7440'\n", "a",
         "config.toml, line 1: profile a: 'h:7440' is not the URL of a daemon"),
        ("[profiles.a]\nurl = 'http://h'\ntoken = 'x'\n", "a",
         "config.toml, line 1: profile a: a token is not sent to http://h in clear text"),
        ("profiles = 1\n", "a", "config.toml, line 1: profiles are tables"),
        ("", "a", "config.toml: there is no profile 'a'; the profiles are: none"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_key(
    write: Write, text: str, profile: str | None, expected: str
) -> None:
    result = status(write(text), *([] if profile is None else ["--profile", profile]))
    assert result.exit_code == 2
    assert expected in result.stderr


def test_a_file_with_a_token_that_others_can_read_is_refused(write: Write, tmp_path: Path) -> None:
    environ = write(TWO)
    file = tmp_path / "headgate" / "config.toml"
    file.chmod(0o640)
    result = status(environ)
    assert result.exit_code == 2
    assert f"{file}, line 6: it has a token, and other users have rights to it" in result.stderr
    write("[profiles.a]\nurl = 'http://127.0.0.1:1'\n")
    file.chmod(0o644)
    assert found(environ, profile="a")[0] == "http://127.0.0.1:1"


def test_a_command_calls_the_profile_with_its_token(write: Write) -> None:
    with says(Answer(200, {"topics": [], "next_cursor": None})) as server:
        environ = write(f"[profiles.a]\nurl = '{server.url}'\ntoken = 'hg_a'\n")
        arguments = ["topics", "ls", "--profile", "a", "-o", "json"]
        result = CliRunner().invoke(cli.headgate, arguments, env=environ)
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    assert server.calls[0].headers["Authorization"] == "Bearer hg_a"


def test_a_profile_without_a_token_does_not_get_that_of_the_environment(write: Write) -> None:
    environ = write('[profiles.bare]\nurl = "https://a.example"\n')
    place = place_of(None, "bare", environ | {"HEADGATE_TOKEN": "hg_of_another"})
    assert (place.url, place.environ["HEADGATE_TOKEN"]) == ("https://a.example", "")


def test_two_names_of_a_daemon_are_refused(write: Write) -> None:
    result = status(write(TWO), "--profile", "shop", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "--url http://127.0.0.1:9 and --profile shop both name a daemon" in result.stderr


def status(environ: dict[str, str], *arguments: str) -> Result:
    cleared = {"HEADGATE_URL": None, "HEADGATE_PROFILE": None}
    return CliRunner().invoke(cli.headgate, ["status", *arguments], env={**cleared, **environ})
