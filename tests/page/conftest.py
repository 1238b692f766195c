"""The page of a real daemon in a real browser, which complains about nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import HANG_S, Daemon, running
from tools.browser import chromium

Look = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of a module: while Playwright runs, a test of the same thread cannot run a loop."""
    expect.set_options(timeout=HANG_S * 1e3)  # 5 s are few for a machine that is busy
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Without tokens, with two shards."""
    settings = {"standstill_after_ms": 1_000}
    with running(tmp_path_factory.mktemp("data"), shards=2, settings=settings) as found:
        yield found


class Locked:
    """A daemon with tokens: the owner's, and one that may see the topics ``seen-*``."""

    def __init__(self, folder: Path) -> None:
        file = TokenFile(folder / "tokens.json")
        self.path = file.path
        self.owner = file.issue("owner", list(Scope))[1]
        self.limited = file.issue("limited", [Scope.METRICS], topics=["seen-*"])[1]
        self.daemon: Daemon


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """A daemon with tokens, and the topics ``seen-a`` and ``hidden-b``."""
    folder = tmp_path_factory.mktemp("locked")
    found = Locked(folder)
    options: dict[str, Any] = {"settings": {"auth_file": found.path}, "token": found.owner}
    with running(folder / "data", **options) as found.daemon:
        for topic in ("seen-a", "hidden-b"):
            assert found.daemon.produce(topic, 1).status == 200
        yield found


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Opens the page of a daemon, as a browser with these options. At the end nothing may have been
    said on the console: no error, no violation of the policy; but what is ``ignored``, and statuses
    that are ``refused``."""
    said: list[str] = []
    contexts = []

    def opened(
        daemon: Daemon, *, refused: tuple[int, ...] = (), ignored: str = "", **options: Any
    ) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(HANG_S * 1e3)
        page.on("pageerror", lambda error: said.append(str(error)))

        def hear(text: str) -> None:
            expected = [*(f"status of {status} " for status in refused), ignored]
            if not any(each and each in text for each in expected):
                said.append(text)

        page.on("console", lambda message: hear(message.text))
        page.goto(f"{daemon.url}/")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
