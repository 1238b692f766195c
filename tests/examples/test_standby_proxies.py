"""examples/proxy/: HAProxy and nginx before an owner and its standby, through a handover."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, UNANSWERED, ask, wait_until
from tests.e2e.standbys import Standby, handover, started, wait_known
from tests.examples.test_proxies import PROXIES, program, replaced
from tests.minio import Bucket
from tools.ports import kept_port

pytestmark = [pytest.mark.slow, pytest.mark.s3]

BODY = b'{"records": [{"data": %d}]}'


def haproxy(folder: Path, port: int, daemons: list[int]) -> list[str]:
    """The command that runs HAProxy with the example: other ports."""
    text = replaced(
        (PROXIES / "haproxy.cfg").read_text(),
        ("bind :7441", f"bind 127.0.0.1:{port}"),
        ("10.0.0.1:7440", f"127.0.0.1:{daemons[0]}"),
        ("10.0.0.2:7440", f"127.0.0.1:{daemons[1]}"),
    )
    (folder / "haproxy.cfg").write_text(text)
    return [program("haproxy", "haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


def nginx(folder: Path, port: int, daemons: list[int]) -> list[str]:
    """The command that runs nginx with the example: other ports and folders."""
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = replaced(
        (PROXIES / "nginx-standby.conf").read_text(),
        ("listen 7441;", f"listen 127.0.0.1:{port};"),
        ("10.0.0.1:7440", f"127.0.0.1:{daemons[0]}"),
        ("10.0.0.2:7440", f"127.0.0.1:{daemons[1]}"),
        ("/var/log/nginx/", f"{folder}/"),
        ("http {\n", f"http {{ {temporary}\n"),
    )
    (folder / "nginx.conf").write_text(text)
    more = f"daemon off; pid {folder}/pid; error_log stderr;"
    return [program("nginx", "nginx-light"), "-p", str(folder), "-c", f"{folder}/nginx.conf",
            "-g", more]  # fmt: skip


@pytest.mark.parametrize("which", ["haproxy", "nginx"])
def test_a_producer_that_retries_sees_no_error_through_a_handover(
    tmp_path: Path, bucket: Bucket, which: str
) -> None:
    first, second = (Standby(tmp_path / name, bucket) for name in ("first", "second"))
    with started(first):
        first.wait_owner()
        with started(second), kept_port() as port:
            second.wait_standby()
            wait_known(first)
            make = {"haproxy": haproxy, "nginx": nginx}[which]
            command = make(tmp_path, port, [first.port, second.port])
            with (tmp_path / "said").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                sent = 0

                def produce() -> None:
                    nonlocal sent
                    sent += 1

                    def is_kept() -> bool:
                        assert process.poll() is None, (tmp_path / "said").read_text()
                        with suppress(*UNANSWERED):
                            answer = ask(port, "POST", "/v0/topics/t", BODY % sent,
                                         {"Content-Type": "application/json"})  # fmt: skip
                            assert answer.status in (200, 502, 503, 504), answer.body
                            return answer.status == 200
                        return False

                    wait_until(is_kept, f"{which} to find the owner", HANG_S)

                for _ in range(10):
                    produce()
                admin = ask(port, "POST", "/v0/admin/handover", b"{}")
                assert admin.status == 403
                assert handover(first.data).returncode == 0
                for _ in range(10):
                    produce()
                    time.sleep(0.1)
                second.wait_owner()
                first.wait_standby()
                for _ in range(10):
                    produce()
                records = [each["data"] for each in second.read_all("t")]
                assert [each for each, _ in groupby(records)] == list(range(1, sent + 1))
            finally:
                process.terminate()
                process.wait(HANG_S)
