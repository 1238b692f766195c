"""examples/proxy/: nginx and Caddy before a daemon, with a certificate, tokens and streams."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.secured import Authority
from tools.ports import kept_port

pytestmark = pytest.mark.slow

PROXIES = ROOT / "examples" / "proxy"
NAME = "headgate.example.org"


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The example with other places; each must be in it."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(folder: Path, port: int, daemon: int) -> list[str]:
    """The command that runs nginx with the example: other ports and folders."""
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = replaced(
        (PROXIES / "nginx.conf").read_text(),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("proxy_pass http://127.0.0.1:7440;", f"proxy_pass http://127.0.0.1:{daemon};"),
        ("/etc/headgate/", f"{folder}/"),
        ("/var/log/nginx/", f"{folder}/"),
        ("http {\n", f"http {{ {temporary}\n"),
    )
    config = folder / "nginx.conf"
    config.write_text(text)
    more = f"daemon off; pid {folder}/pid; error_log stderr;"
    return [program("nginx", "nginx-light"), "-p", str(folder), "-c", str(config), "-g", more]


def caddy(folder: Path, port: int, daemon: int) -> list[str]:
    """The command that runs Caddy with the example."""
    text = replaced(
        (PROXIES / "Caddyfile").read_text(),
        ("admin off\n", f"admin off\n\thttps_port {port}\n\tauto_https disable_redirects\n"),
        (f"{NAME} {{\n", f"{NAME} {{\n\tbind 127.0.0.1\n"),
        ("reverse_proxy 127.0.0.1:7440", f"reverse_proxy 127.0.0.1:{daemon}"),
        ("/etc/headgate/", f"{folder}/"),
    )
    config = folder / "Caddyfile"
    config.write_text(text)
    return [program("caddy", "caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]


def program(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert found, f"{name} is missing: apt-get install --no-install-recommends {package}"
    return found


class Proxied(NamedTuple):
    """A daemon, and a proxy before it."""

    daemon: Daemon
    folder: Path
    port: int
    token: str

    def curl(self, path: str, *options: str) -> list[str]:
        """curl's command line for a path, for a client that knows the name only."""
        return [
            "curl", "-sS", "--cacert", f"{self.folder}/ca.pem",
            "--resolve", f"{NAME}:{self.port}:127.0.0.1", *options,
            f"https://{NAME}:{self.port}{path}",
        ]  # fmt: skip

    def said(self, path: str, *options: str) -> tuple[int, str]:
        """Status and body of the answer."""
        command = self.curl(path, "-w", "\n%{http_code}", *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body


@contextmanager
def proxied(folder: Path, which: str) -> Iterator[Proxied]:
    Authority(folder).issue(NAME)
    file = TokenFile(folder / "tokens.json")
    token = file.issue("all", list(Scope))[1]
    settings = {
        "auth_file": file.path, "allowed_hosts": NAME, "trusted_proxies": "127.0.0.1",
        "admin_over_tcp": "true", "audit_log": folder / "audit.log",
    }  # fmt: skip
    with running(folder / "data", settings=settings) as daemon, kept_port() as port:
        command = {"nginx": nginx, "caddy": caddy}[which](folder, port, daemon.port)
        with (folder / "said").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)}
            )
        try:
            made = Proxied(daemon, folder, port, token)

            def is_ready() -> bool:
                assert process.poll() is None, (folder / "said").read_text()
                with suppress(subprocess.CalledProcessError):
                    return made.said("/readyz")[0] == 200
                return False

            wait_until(is_ready, which)
            yield made
        finally:
            process.terminate()
            process.wait(HANG_S)


@pytest.mark.parametrize("which", ["nginx", "caddy"])
def test_records_and_streams_pass_the_proxy_and_the_admin_api_does_not(
    tmp_path: Path, which: str
) -> None:
    with proxied(tmp_path, which) as front:
        authorized = ("-H", f"Authorization: Bearer {front.token}")
        body = ("-H", "Content-Type: application/json", "-d", '{"records": [{"data": 1}]}')
        assert front.said("/v0/topics/orders", *body)[0] == 401
        # What the client says of its own address is not believed.
        status, said = front.said(
            "/v0/topics/orders", *body, *authorized, "-H", "X-Forwarded-For: 203.0.113.9"
        )
        assert status == 200 and json.loads(said)["count"] == 1
        for path in ("/v0/admin/lake", "/v0/%61dmin/lake"):
            assert front.said(path, *authorized)[0] in (400, 403, 404), path
        watch = front.curl("/v0/topics/orders/watch?from_seq=0", *authorized, "-N")
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as stream:
            try:
                assert stream.stdout is not None
                assert '"data":1' in next(line for line in stream.stdout if '"data":' in line)
                # A later record comes although the stream goes on.
                later = (*body[:-1], '{"records": [{"data": 2}]}', *authorized)
                assert front.said("/v0/topics/orders", *later)[0] == 200
                assert '"data":2' in next(line for line in stream.stdout if '"data":' in line)
            finally:
                stream.terminate()
        audit = (tmp_path / "audit.log").read_text()
        assert '"from":"127.0.0.1"' in audit and "203.0.113.9" not in audit
        logged = "".join(path.read_text() for path in tmp_path.glob("headgate.log"))
        assert front.token not in logged + (tmp_path / "said").read_text()
