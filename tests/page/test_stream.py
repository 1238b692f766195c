"""The stream that feeds the page: who gets it, how many, and its end."""

from __future__ import annotations

import contextlib
import json
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from daemon.api.overviews import VIEWERS_MAX
from tests.e2e.daemon import Daemon, running, stream

WATCH = "/v0/status/watch"


def overview(answer: HTTPResponse) -> Any:
    """The next one."""
    while not (line := answer.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return json.loads(line[6:])


def test_pages_of_other_origins_get_no_figures(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    assert daemon.ask("GET", WATCH, origin="http://elsewhere.example").status == 403
    assert daemon.ask("GET", WATCH, sec_fetch_site="cross-site").code == "foreign_page"
    assert daemon.ask("GET", "/", host="elsewhere.example").status == 421


def test_rates_of_the_first_event_are_those_since_the_start(shared_daemon: Daemon) -> None:
    with stream(shared_daemon.port, WATCH) as answer:
        assert overview(answer)["rates"]["since_start"]
        assert not overview(answer)["rates"]["since_start"]


def test_a_shard_has_some_viewers_and_no_more_and_they_end_with_it(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, contextlib.ExitStack() as viewers:
        answers = [viewers.enter_context(stream(daemon.port, WATCH)) for _ in range(VIEWERS_MAX)]
        for answer in answers:
            assert overview(answer)["status"]["ready"]
        refused = daemon.get(WATCH)
        assert (refused.status, refused.code) == (503, "too_many_streams")
        assert daemon.stop() == 0
        for answer in answers:
            assert b"event: closing" in answer.read()
