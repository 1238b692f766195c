"""examples/ingest/syslog-ng.conf, run by syslog-ng: of the agents in this folder, the one that
Debian has as a package."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, Daemon, running, wait_until
from tests.examples.test_ingest import DAEMON, GUIDE, INGEST
from tools.ports import kept_port

FILE = INGEST / "syslog-ng.conf"


@contextmanager
def syslog_ng(folder: Path, url: str) -> Iterator[None]:
    """The agent with the file's configuration: other folders, another address."""
    found = shutil.which("syslog-ng", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    assert found, "syslog-ng is missing: apt-get install syslog-ng-core syslog-ng-mod-http"
    config, text = folder / "syslog-ng.conf", FILE.read_text()
    for name, here in ((DAEMON, url), ("/var/log/app", f"{folder}/log"),
                       ("/var/lib/syslog-ng", f"{folder}/buffer")):  # fmt: skip
        assert text.count(f'"{name}') == 1
        text = text.replace(f'"{name}', f'"{here}')
    config.write_text(text)
    (folder / "buffer").mkdir(exist_ok=True)
    state = [
        f"--{name}={folder}/syslog-ng.{name}" for name in ("persist-file", "pidfile", "control")
    ]
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(
            [found, "--foreground", "--no-caps", f"--cfgfile={config}", *state], stderr=said,
            stdout=said,
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            process.wait(HANG_S)


def messages(daemon: Daemon) -> list[str]:
    if daemon.get("/v0/topics/logs").status != 200:
        return []
    return [record["data"]["message"] for record in daemon.read_all("logs")]


def acknowledged(daemon: Daemon) -> int:
    return int(daemon.status()["totals"]["records_acked"])


@pytest.mark.slow
def test_each_line_is_stored_once_and_in_order_also_over_a_restart_of_both(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    lines = [f'line {number} \N{SNOWMAN} "quoted"' for number in range(3_000)]

    def write(some: list[str]) -> None:
        with (log / "app.log").open("a") as file:
            file.writelines(line + "\n" for line in some)

    with kept_port() as port:
        options = {"listen": f"127.0.0.1:{port}"}
        url = f"http://127.0.0.1:{port}"
        write(lines[:1_000])
        with syslog_ng(tmp_path, url):
            with running(tmp_path / "data", **options) as daemon:
                wait_until(lambda: messages(daemon) == lines[:1_000], "the first lines")
                # Readers have them first. What had no answer would come again, with other lines.
                wait_until(lambda: acknowledged(daemon) == 1_000, "their acknowledgment")
                daemon.kill_everything()
            write(lines[1_000:2_000])  # while nothing takes them
        write(lines[2_000:])
        with syslog_ng(tmp_path, url), running(tmp_path / "data", **options) as daemon:
            wait_until(lambda: len(messages(daemon)) >= len(lines), "all lines")
            assert messages(daemon) == lines
            record = daemon.read_all("logs")[0]["data"]
    assert set(record) == {"date", "id", "host", "file", "message"}
    assert record["file"] == str(log / "app.log")


def test_the_settings_are_those_of_the_guide() -> None:
    example = FILE.read_text()
    guide = GUIDE.split("## syslog-ng")[1].split("```\n")[1].removesuffix("```").strip()
    assert guide.startswith("destination headgate {") and guide in example
