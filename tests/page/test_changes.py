"""The page when its daemon goes, comes back, or is another one's standby."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.daemon import running
from tests.e2e.standbys import Standby
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from tests.page.conftest import Look
from tools.ports import kept_port

pytestmark = pytest.mark.slow


def test_it_says_that_nobody_answers_and_goes_on_by_itself(tmp_path: Path, look: Look) -> None:
    with kept_port() as port:
        listen = f"127.0.0.1:{port}"
        with running(tmp_path, listen=listen) as daemon:
            page = look(daemon, refused=(503,), ignored="ERR_")
            expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#state")).to_have_text("NO ANSWER")
        expect(page.locator("#notes")).to_contain_text(f"no answer from {listen}")
        with running(tmp_path, listen=listen):
            expect(page.locator("#state")).to_have_text("ready")
            expect(page.locator("#notes li")).to_have_count(0)


def test_it_says_that_a_daemon_that_stands_still_does_not_answer(
    tmp_path: Path, look: Look
) -> None:
    with running(tmp_path) as daemon:
        page = look(daemon, refused=(503,), ignored="ERR_")
        expect(page.locator("#state")).to_have_text("ready")
        os.killpg(daemon.process.pid, signal.SIGSTOP)
        try:
            expect(page.locator("#state")).to_have_text("NO ANSWER")
            expect(page.locator("#notes")).to_contain_text("no answer from")
        finally:
            os.killpg(daemon.process.pid, signal.SIGCONT)
        expect(page.locator("#state")).to_have_text("ready")


def test_a_standby_says_whose_it_is(tmp_path: Path, bucket: Bucket, look: Look) -> None:
    with running(tmp_path / "a", **on_s3(bucket)):
        standby = Standby(tmp_path / "b", bucket)
        standby.start()
        with contextlib.ExitStack() as at_end:
            at_end.callback(standby.kill_everything)
            standby.wait_standby()
            page = look(standby, refused=(503,), ignored="ERR_")
            expect(page.locator("#state")).to_have_text("STANDBY")
            expect(page.locator("#notes")).to_contain_text("send to the owner")
            expect(page.locator("#standby")).to_contain_text("could take over")
            expect(page.locator("#standby")).to_contain_text(str(tmp_path / "a"))
            expect(page.locator("#h-flow")).to_be_hidden()
