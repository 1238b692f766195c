"""One daemon for all attacks of a module, in two forms: open, and with tokens. None may get further
than what its test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import Daemon, running


class Guard:
    """What a daemon is protected by: nothing, or tokens. Its owner has one for everything, and the
    attacker has stolen one of each scope."""

    def __init__(self, folder: Path | None) -> None:
        self._tokens: dict[Scope, str] = {}
        self._options: dict[str, Any] = {}
        self._settings: dict[str, object] = {}
        if folder is not None:
            file = TokenFile(folder / "tokens.json")
            self._options["token"] = file.issue("owner", list(Scope))[1]
            self._settings["auth_file"] = file.path
            self._tokens = {scope: file.issue(f"of-{scope}", [scope])[1] for scope in Scope}

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def options(self, **settings: object) -> dict[str, Any]:
        """Options of ``running``."""
        return {**self._options, "settings": {**settings, **self._settings}}

    def stolen(self, scope: Scope) -> str:
        """The attacker's token of that scope alone; empty where there are none."""
        return self._tokens.get(scope, "")

    def fields(self, scope: Scope) -> dict[str, str]:
        """What the attacker's requests are sent with."""
        return {"Authorization": f"Bearer {self._tokens[scope]}"} if self._tokens else {}


# For a module whose attacks take long: their second form is slow.
BOTH_FORMS = pytest.mark.parametrize(
    "guard", ["open", pytest.param("tokens", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture(scope="module", params=["open", "tokens"])
def guard(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Guard:
    return Guard(tmp_path_factory.mktemp("auth") if request.param == "tokens" else None)


@pytest.fixture(scope="module")
def victim(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one shard and the default settings, with topic ``secrets`` of one record."""
    with running(tmp_path_factory.mktemp("data"), **guard.options()) as daemon:
        assert daemon.produce("secrets", "the record").status == 200
        yield daemon
