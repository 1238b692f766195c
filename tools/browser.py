"""Chromium of the distribution, driven by Playwright: for tests of the page, and its picture."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


class BrowserMissing(Exception):
    """There is no Chromium; the message says what to install."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. Raises BrowserMissing."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise BrowserMissing(
            "chromium is missing: apt-get install --no-install-recommends chromium"
        )
    # Its sandbox does not work for root, who runs tests in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()
