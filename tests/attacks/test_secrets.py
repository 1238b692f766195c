"""Secrets are where they belong and nowhere else: not in a log, an answer, a list of processes, an
environment, or an object of the store."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from daemon.access.token_file import Scope, TokenFile
from daemon.process.inherit import decode
from tests.e2e.daemon import Daemon, running, stream, wait_until
from tests.e2e.processes import kill_shards, shard_pids
from tests.e2e.secured import Authority
from tools.receiver.behavior import Behavior
from tools.receiver.process import ReceiverProcess

pytestmark = pytest.mark.slow

SUBSCRIPTION = "/v0/topics/t/subscriptions/pushed"
CATALOG = "canary-of-a-catalogs-password"
HEADER = "canary-of-an-own-header"
SIGNING = "whsec_" + base64.b64encode(b"canary-of-a-signing-secret-32-by").decode()
# Files that are for secrets, and that only the daemon's user may read.
KEEPERS = {"push-secrets.json", "tokens.json"}


def said_by(daemon: Daemon, token: str) -> Iterator[tuple[str, bytes]]:
    """What the daemon tells, whoever asks."""
    ticket = daemon.json("POST", "/v0/tickets", {"target": "/v0/topics/t/watch"}).json
    for method, path in (
        ("GET", "/v0/status"), ("GET", "/metrics"), ("GET", "/v0/subscriptions"),
        ("GET", SUBSCRIPTION), ("POST", f"{SUBSCRIPTION}/push/test"), ("GET", "/openapi.json"),
        ("GET", "/v0/admin/lake"), ("GET", f"/v0/topics/t?token={token}"),
        ("GET", f"/v0/{token}"), ("PUT", f"/v0/topics/{token}!"), ("DELETE", f"/v0/plans/{token}"),
        ("GET", f"http://x:{token}@127.0.0.1/v0/topics"), ("GET", f"{ticket['stream_url']}x"),
    ):  # fmt: skip
        answer = daemon.ask(method, path)
        body = answer.body
        if f"/{token}" in path:  # what was asked for may be repeated to whoever asked
            body = body.replace(token.encode(), b"")
        yield f"{method} {path[:40]}", body + str(answer.headers).encode()
    for header in ({"Authorization": f"Basic {token}"}, {"X-Api-Key": token}, {"X-Other": token}):
        yield str([*header]), daemon.ask("GET", "/v0/topics", None, **header).body
    with stream(daemon.port, ticket["stream_url"]) as opened:
        yield "a stream", opened.read1(1 << 16)


def processes(daemon: Daemon) -> Iterator[tuple[str, bytes]]:
    """What any list of processes shows, and what their children inherit."""
    top = psutil.Process(daemon.process.pid)
    for each in (top, *top.children(recursive=True)):
        for name in ("cmdline", "environ"):
            yield f"{name} of {each.pid}", Path(f"/proc/{each.pid}/{name}").read_bytes()


def files(*folders: Path) -> Iterator[tuple[str, bytes]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and path.name not in KEEPERS:
                yield str(path), path.read_bytes()


def test_secrets_are_nowhere_but_in_their_files(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "auth" / "tokens.json")
    file.path.parent.mkdir(mode=0o700)
    tokens = [file.issue(name, list(Scope))[1] for name in ("all", "leaver")]
    options = {"auth_file": file.path, "push_allow": "127.0.0.1", "log_level": "debug",
               "admin_over_tcp": "true", "cors_origins": "*"}  # fmt: skip
    authority = Authority(tmp_path / "tls")
    config = tmp_path / "headgate.toml"
    config.write_text(f'catalog_uri = "postgresql://me:{CATALOG}@127.0.0.1:1/lake"\n')
    config.chmod(0o600)
    data, store = tmp_path / "data", tmp_path / "store"
    with ReceiverProcess() as receiver, running(
        data, shards=2, settings={**options, **authority.settings}, token=tokens[0],
        store=f"file://{store}", config_file=config,
    ) as daemon:  # fmt: skip
        receiver.behave("t", Behavior(status=500))
        push = {
            "endpoint": receiver.url("t"), "secrets": [SIGNING],
            "headers": {"Authorization": HEADER},
        }  # fmt: skip
        daemon.json("PUT", "/v0/topics/t")
        assert daemon.json("PUT", SUBSCRIPTION, {"push": push}).status == 201
        daemon.produce("t", *range(10))
        wait_until(lambda: receiver.counts("t").posts > 1, "POSTs that fail")
        (key,) = {
            decode(Path(f"/proc/{pid}/fd/0").read_bytes()).ticket_key for pid in shard_pids(daemon)
        }
        secrets = [text.rpartition("_")[2] for text in tokens]
        canaries = [
            *secrets, HEADER, SIGNING.removeprefix("whsec_"), "canary-of-a-signing", key, CATALOG,
            *authority.key.read_text().splitlines()[1:-1],
            *(base64.b64encode(text.encode()).decode() for text in (*secrets, HEADER)),
        ]  # fmt: skip
        seen = [*said_by(daemon, tokens[0])]
        kill_shards(daemon, 0)
        file.revoke("leaver")
        daemon.json("PUT", SUBSCRIPTION, {"push": {**push, "secrets": [SIGNING, SIGNING]}})
        seen += [*said_by(daemon, tokens[0]), *processes(daemon)]
        assert daemon.stop() == 0
        seen += [("the log", daemon.text.encode()), *files(data, store)]
    assert len(seen) > 40 and not {"log", "environ"} & {name for name, _ in seen}
    found = {
        (name, canary[:12])
        for name, text in seen
        for canary in canaries
        if re.search(re.escape(canary.encode()), text)
    }
    assert not found
    for path in (file.path, data / "push-secrets.json"):
        assert path.stat().st_mode & 0o077 == 0
    assert json.loads(file.path.read_bytes())["tokens"][0]["sha256"]
