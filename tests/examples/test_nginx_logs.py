"""examples/ingest/nginx-logs.conf: nginx writes lines, and `headgate import` sends each once."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, ROOT, Daemon, ask, command, wait_until
from tests.examples.test_proxies import program, replaced
from tools.ports import kept_port

pytestmark = pytest.mark.slow

LOGS = (ROOT / "examples" / "ingest" / "nginx-logs.conf").read_text()


def stored(daemon: Daemon, topic: str) -> int:
    """How many records there are, if there is such a topic yet."""
    is_there = daemon.get(f"/v0/topics/{topic}").status == 200
    return len(daemon.read_all(topic)) if is_there else 0


def test_each_request_is_a_record_once_through_a_rotation(
    shared_daemon: Daemon, tmp_path: Path
) -> None:
    daemon, log = shared_daemon, tmp_path / "access.json"
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    with kept_port() as port:
        config = tmp_path / "nginx.conf"
        config.write_text(
            f"user {getpass.getuser()}; events {{}} http {{ {temporary} "
            + replaced(LOGS, ("/var/log/nginx/", f"{tmp_path}/"))
            + f"server {{ listen 127.0.0.1:{port}; return 200; }} }}"
        )
        more = f"daemon off; pid {tmp_path}/pid; error_log stderr;"
        nginx = subprocess.Popen(
            [program("nginx", "nginx-light"), "-p", str(tmp_path), "-c", str(config), "-g", more]
        )
        follow = None
        try:
            wait_until(lambda: (tmp_path / "pid").exists(), "nginx")
            agents = ['"quoted" \\ and\ttabs', "plain", "plain"]
            ask(port, "GET", "/first?a=1", headers={"User-Agent": agents[0]})
            follow = subprocess.Popen(
                command("import", "access", str(log), f"{log}.1", "--follow", "--key", "host",
                        "--invalid", "bad-access"),
                cwd=ROOT, env=os.environ | {"HEADGATE_URL": daemon.url},
            )  # fmt: skip
            wait_until(lambda: daemon.get("/v0/topics/access").status == 200, "the first record")
            log.rename(f"{log}.1")  # as logrotate does
            ask(port, "GET", "/between", headers={"User-Agent": agents[1]})
            nginx.send_signal(signal.SIGUSR1)
            wait_until(log.exists, "the new file")
            ask(port, "GET", "/bad", headers={"User-Agent": "not UTF-8: \xe9"})
            ask(port, "GET", "/last", headers={"User-Agent": agents[2]})
            wait_until(lambda: stored(daemon, "access") == 3, "all records")
            # What is invalid goes to its topic by requests of its own.
            wait_until(lambda: stored(daemon, "bad-access") == 1, "the letter")
        finally:
            for process in (follow, nginx):
                if process is not None:
                    process.terminate()
                    process.wait(HANG_S)
    (letter,) = daemon.read_all("bad-access")
    assert "/bad" in letter["data"]["text"]
    # The renamed file and the new one are read side by side: only each file's own order is kept.
    records = daemon.read_all("access")
    uris = [each["data"]["uri"] for each in records]
    assert sorted(uris) == ["/between", "/first?a=1", "/last"]
    assert uris.index("/first?a=1") < uris.index("/between")
    assert {each["key"] for each in records} == {"127.0.0.1"}
    first = records[uris.index("/first?a=1")]["data"]
    assert (first["status"], first["method"], first["agent"]) == (200, "GET", agents[0])
