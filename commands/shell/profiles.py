"""Profiles: daemons with a name, in a file of the user, so that no command needs to be told again.

    default = "shop"

    [profiles.shop]
    url = "https://headgate.example.org:7443"
    token_file = "~/.headgate-token"            # or: token = "hg_..."
    ca_file = "/etc/headgate/ca.pem"

The file is ``headgate/config.toml`` in XDG_CONFIG_HOME, or else in ``~/.config``. The token and the
authorities of a profile go with its own address only, so no daemon ever gets the token of another.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from commands.shell.exits import USAGE, CommandFailed
from compaction.access.bearer import TOKEN, TOKEN_FILE
from compaction.access.connection import CA_FILE
from ledger.private_files import OTHERS

URL_DEFAULT = "http://127.0.0.1:7440"
URL, PROFILE = "HEADGATE_URL", "HEADGATE_PROFILE"
KEYS = ("url", "token", "token_file", "ca_file")


class DaemonPlace(NamedTuple):
    """Where the daemon is, and the environment that has its token and its authorities.
    ``profile`` says where that was found."""

    url: str
    environ: Mapping[str, str]
    profile: str = ""


def place_of(
    url: str | None, profile: str | None, environ: Mapping[str, str] = os.environ
) -> DaemonPlace:
    """``url`` and ``profile`` are those of options. Raises CommandFailed."""
    if url is not None and profile is not None:
        raise CommandFailed(
            f"--url {url} and --profile {profile} both name a daemon; give one of them",
            exit_code=USAGE,
        )
    url = url or (environ.get(URL) if profile is None else None)
    if url:
        return DaemonPlace(url, environ)
    file = _ProfileFile(environ)
    name = profile or environ.get(PROFILE) or file.default
    if name is None:
        return DaemonPlace(URL_DEFAULT, environ)
    found = file.profile(name)
    of_profile = {
        variable: found[key]
        for key, variable in (("token", TOKEN), ("token_file", TOKEN_FILE), ("ca_file", CA_FILE))
        if key in found
    }
    if profile is None:  # what the environment says comes before what a profile has
        if environ.get(TOKEN) or environ.get(TOKEN_FILE):
            of_profile = {key: of_profile[key] for key in of_profile if key == CA_FILE}
        of_profile |= {CA_FILE: environ[CA_FILE]} if environ.get(CA_FILE) else {}
    else:  # a token of the environment is for the daemon that the environment names
        environ = {**environ, TOKEN: "", TOKEN_FILE: ""}
    return DaemonPlace(found["url"], {**environ, **of_profile}, file.where(name))


def names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The profiles that there are. Raises CommandFailed."""
    return list(_ProfileFile(environ).profiles)


class _ProfileFile:
    """The file as it was read; without one there are no profiles."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        folder = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        self._path = Path(folder, "headgate", "config.toml")
        self._text = ""
        mode = 0
        try:
            with open(self._path, encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                self._text = file.read(1 << 20)
            read: dict[str, Any] = tomllib.loads(self._text)
        except FileNotFoundError:
            read = {}
        except OSError as error:
            raise self._unusable("", f"it cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self._unusable("", f"it is not TOML: {error}") from error
        for key in read:
            if key not in ("default", "profiles"):
                raise self._unusable(
                    self._line(key), f"{key} is not a key; the keys are default and profiles.NAME"
                )
        self.profiles: dict[str, dict[str, Any]] = read.get("profiles", {})
        self.default: str | None = read.get("default")
        if not isinstance(self.profiles, dict) or not all(
            isinstance(each, dict) for each in self.profiles.values()
        ):
            raise self._unusable(
                self._line("profiles"), "profiles are tables, each of which begins [profiles.NAME]"
            )
        if self.default is not None and not isinstance(self.default, str):
            raise self._unusable(self._line("default"), "default must be the name of a profile")
        has_token = any("token" in each for each in self.profiles.values())
        if has_token and mode & OTHERS:
            raise self._unusable(
                self._line("token"),
                f"it has a token, and other users have rights to it (mode {stat.S_IMODE(mode):o}):"
                f" run `chmod 600 {self._path}`, and take another token",
            )

    def profile(self, name: str) -> dict[str, str]:
        """A profile whose keys and values can be used."""
        found = self.profiles.get(name)
        if found is None:
            there = ", ".join(self.profiles) or "none"
            is_default = name == self.default
            raise self._unusable(
                self._line("default") if is_default else "",
                f"there is no profile {name!r}; the profiles are: {there}",
            )
        found = {
            key: os.path.expanduser(value)
            if key.endswith("_file") and isinstance(value, str)
            else value
            for key, value in found.items()
        }
        for key, value in found.items():
            if key not in KEYS:
                raise self._wrong(name, key, f"is not a key; the keys are {', '.join(KEYS)}")
            if not isinstance(value, str) or not value:
                got = "something else" if key == "token" else repr(value)
                raise self._wrong(name, key, f"must be a text, got {got}")
            if key.endswith("_file") and not os.access(value, os.R_OK):
                raise self._wrong(name, key, f"names a file that cannot be read: {value}")
        if "url" not in found:
            raise self._wrong(name, "url", "is missing: where is the daemon?")
        if "token" in found and "token_file" in found:
            raise self._wrong(name, "token_file", "cannot be there with token; give one of them")
        return found

    def where(self, name: str) -> str:
        """A profile, for messages."""
        return f"{self._path}{self._line('', name)}: profile {name}"

    def _wrong(self, name: str, key: str, problem: str) -> CommandFailed:
        return self._unusable(self._line(key, name), f"{key} of profile {name} {problem}")

    def _unusable(self, line: str, problem: str) -> CommandFailed:
        return CommandFailed(
            f"{self._path}{line}: {problem}", hint="docs/cli.md says what is in it", exit_code=USAGE
        )

    def _line(self, key: str, name: str = "") -> str:
        """``, line N`` of a key, or of the head of a profile; nothing if it is not found."""
        table = ""
        head = ""
        for number, text in enumerate(self._text.splitlines(), 1):
            if begin := re.match(r"\s*\[\s*(.*?)\s*\]", text):
                table = re.sub(r"[\"'\s]", "", begin[1])
                if name and table == f"profiles.{name}":
                    head = f", line {number}"
            elif (
                key
                and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", text)
                and name in ("", table.removeprefix("profiles."))
            ):
                return f", line {number}"
        return head
