"""The page of ``examples/watch`` in a browser, whose own ``EventSource`` connects again."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.daemon import HANG_S, ROOT, running
from tools.ports import kept_port

pytestmark = pytest.mark.slow


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    """The origin of a server of the example."""
    handler = partial(_Quiet, directory=str(ROOT / "examples" / "watch"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_the_example_shows_each_record_once_through_a_kill(
    browser: Browser, site: str, tmp_path: Path
) -> None:
    shown: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(HANG_S * 1e3)
    with kept_port() as port:
        options = {"listen": f"127.0.0.1:{port}", "settings": {"cors_origins": site}}
        with running(tmp_path, **options) as daemon:
            daemon.json("PUT", "/v0/topics/orders", {"partitions": 2})
            page.goto(f"{site}/index.html")
            page.fill("#daemon", daemon.url)
            page.click("button")
            expect(page.locator("#records")).to_contain_text("these are all records so far")
            for n in range(3):
                assert daemon.produce("orders", n).status == 200
            expect(page.locator("#records div:not(.event)")).to_have_count(3)
            daemon.kill_everything()  # it says no more where it was
        expect(page.locator("#state")).to_have_text("connecting again")
        with running(tmp_path, **options) as daemon:
            for n in range(3, 6):
                assert daemon.produce("orders", n).status == 200
            expect(page.locator("#state")).to_have_text("connected")
            # The last ones of the two partitions come in either order.
            for n in (4, 5):
                last = page.locator("#records div:not(.event)", has_text=re.compile(rf" {n}$"))
                expect(last).to_have_count(1)
            shown = page.locator("#records div:not(.event)").all_text_contents()
            page.close()
    places = [line.split()[0] for line in shown]
    assert len(places) == 6 and len(set(places)) == 6, shown
