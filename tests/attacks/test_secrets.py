"""Secrets are where they belong and nowhere else: not in a log, an answer, a list of processes, an
environment, or an object of the store."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from compaction import job
from compaction.run.session import spark_session
from daemon.access.token_file import Scope, TokenFile
from daemon.process.inherit import decode
from tests.e2e.daemon import Daemon, running, stream, wait_until
from tests.e2e.processes import kill_shards, shard_pids
from tests.e2e.secured import Authority
from tests.minio import Bucket
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
        ("GET", f"{SUBSCRIPTION}/push/attempts"),
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


@pytest.mark.spark
def test_neither_sparks_event_log_nor_its_processes_show_a_secret(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction and a read, with a token and the store's key in the environment."""
    file, token_file = TokenFile(tmp_path / "tokens.json"), tmp_path / "token"
    token = file.issue("spark", list(Scope))[1]
    token_file.write_text(token)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    settings = {
        "auth_file": file.path, "admin_over_tcp": "true", "s3_endpoint_url": bucket.endpoint_url,
    }  # fmt: skip
    scratch, events = tmp_path / "scratch", tmp_path / "events"
    scratch.mkdir()
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
    }  # fmt: skip
    seen: list[tuple[str, bytes]] = []
    with running(
        tmp_path / "data", store=bucket.url, environ=bucket.environment, token=token,
        settings=settings,
    ) as daemon:  # fmt: skip
        daemon.produce("t", *range(20))
        monkeypatch.setenv("HEADGATE_TOKEN", token)
        with spark_session("local[1]", scratch, conf=conf) as session:
            assert job.main(["--url", daemon.url]) == 0
            daemon.produce("t", *range(20))
            rows = (
                session.read.format("headgate").option("url", daemon.url).option("subscribe", "t")
                .option("tokenFile", str(token_file)).load()
            )  # fmt: skip
            assert rows.count() == 40
            for each in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # it has ended
                    seen.append((f"cmdline of {each.pid}", " ".join(each.cmdline()).encode()))
                    assert token not in each.environ().values()
    seen += files(scratch, events)
    (log,) = [text for name, text in seen if name.startswith(str(events))]
    assert log.count(b"SparkListenerJobStart") >= 2 and b"tokenFile" not in log
    canaries = (token, token.rpartition("_")[2], bucket.secret_key)
    assert not {name for name, text in seen for each in canaries if each.encode() in text}
