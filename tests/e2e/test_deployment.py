"""A deployment as documented: units, IAM policies, tokens, and encryption with a key, together.

systemd does not run here; ``tests/e2e/unit.py`` reads the unit and loads its filter.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError

from daemon.access.token_file import Scope, TokenFile
from tests import iam
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.lake import diff_rows
from tests.e2e.stores import on_s3
from tests.e2e.test_iam import WITH_IMAGES, options, policy
from tests.e2e.test_source_reads import produced
from tests.e2e.unit import UNIT, confined, settings
from tests.minio import Bucket, Minio
from tools.buckets import client
from tools.minio import find_or_build, start, stop
from tools.ports import kept_port

KEY = "headgate-key"
COMPACT_UNIT = UNIT.with_name("headgate-compact.service")


@pytest.fixture
def encrypting(tmp_path: Path) -> Iterator[Bucket]:
    """A bucket of a MinIO that has one key."""
    (tmp_path / "minio").mkdir()
    secret = b64encode(secrets.token_bytes(32)).decode()
    with kept_port() as port:
        process = start(
            find_or_build(), tmp_path / "minio", port, {"MINIO_KMS_SECRET_KEY": f"{KEY}:{secret}"}
        )
    minio = Minio(f"http://127.0.0.1:{port}", process.pid)
    try:
        with closing(client(minio.endpoint_url)) as s3:
            s3.create_bucket(Bucket="encrypted")
            yield Bucket(minio.endpoint_url, "encrypted", "s3://encrypted/prefix", s3)
    finally:
        stop(process)


def heads(bucket: Bucket) -> dict[str, dict[str, Any]]:
    """What the store says of each object; the daemon removes images after they are listed."""
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.bucket)
    found = {}
    for key in [found["Key"] for page in pages for found in page.get("Contents", ())]:
        try:
            found[key] = dict(bucket.client.head_object(Bucket=bucket.bucket, Key=key))
        except ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
    return found


def with_an_image(bucket: Bucket) -> dict[str, dict[str, Any]]:
    """The heads; nothing if none is of an image."""
    found = heads(bucket)
    return found if any("image" in key for key in found) else {}


def unit_command(line: str) -> list[str]:
    """A command of the unit of the compaction, under the unit's filter."""
    return confined(COMPACT_UNIT, [word.replace("$$", "$") for word in shlex.split(line)])


def run_and_watch(command: list[str], environ: dict[str, str]) -> tuple[str, set[str]]:
    """What a command prints; the addresses at which it and its children listened meanwhile."""
    listened: set[str] = set()
    process = psutil.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def ended() -> bool:
        with suppress(psutil.NoSuchProcess):
            listened.update(
                each.laddr.ip
                for one in (process, *process.children(recursive=True))
                for each in _sockets(one)
                if each.status == psutil.CONN_LISTEN
            )
        return process.poll() is not None

    wait_until(ended, "the command to end", 5 * HANG_S)
    printed, said = process.communicate()
    assert process.returncode == 0, said
    return printed, listened


def _sockets(process: psutil.Process) -> list[Any]:
    try:
        return list(process.net_connections("tcp"))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def test_the_unit_of_the_compaction_is_given_nothing_of_the_daemons() -> None:
    daemons, compactions = (
        {name: settings(unit, name) for name in ("User", "StateDirectory", "EnvironmentFile")}
        for unit in (UNIT, COMPACT_UNIT)
    )
    assert compactions["StateDirectory"] == []
    for name in ("User", "EnvironmentFile"):
        assert len(compactions[name]) == 1 and compactions[name] != daemons[name]
    assert settings(COMPACT_UNIT, "LoadCredential") == ["token:/etc/headgate/compact-token"]
    assert "/headgate.toml" not in COMPACT_UNIT.read_text()


@pytest.mark.slow
@pytest.mark.spark
def test_daemon_and_compaction_by_their_units_policies_tokens_and_a_key(
    data: Path, encrypting: Bucket, tmp_path: Path, path: str
) -> None:
    """All objects are encrypted, and the compaction listens on loopback only."""
    file, token = TokenFile(tmp_path / "tokens.json"), tmp_path / "token"
    token.write_text(file.issue("compaction", [Scope.COMPACT])[1])
    client_token = file.issue("client", [Scope.PRODUCE, Scope.READ, Scope.MANAGE])[1]
    user = iam.user(encrypting, policy("daemon", encrypting))
    compaction = iam.user(encrypting, policy("compaction", encrypting))
    daemons = options(
        user, s3_sse="aws:kms", s3_sse_kms_key_id=KEY, auth_file=file.path, admin_over_tcp="true",
        gc_grace_ms=0,
    )  # fmt: skip
    with running(data, command=WITH_IMAGES, token=client_token, **daemons) as daemon:
        produced(daemon, "t", 5)
        rows = diff_rows(daemon, "t")
        wait_until(lambda: "images removed" in daemon.text, "an image of the ledger")
        environ = {
            **compaction.environment, "PATH": path, "HEADGATE_URL": daemon.url,
            "HEADGATE_TOKEN_FILE": str(token),
        }  # fmt: skip
        compact, collect = settings(COMPACT_UNIT, "ExecStart")
        printed, listened = run_and_watch(unit_command(compact), environ)
        assert f"{len(rows)} rows" in printed
        assert listened == {"127.0.0.1"} or listened == {"127.0.0.1", "::ffff:127.0.0.1"}
        assert diff_rows(daemon, "t") == rows
        # An image may be followed by the next one, and removed, between the list and its head.
        found = wait_until(lambda: with_an_image(encrypting), "the heads of all, and of an image")
        printed, _ = run_and_watch(unit_command(collect), environ)
        assert "0 within their grace" in printed
        assert diff_rows(daemon, "t") == rows
    assert {key.split("/")[1] for key in found} == {"l0", "ledger", "lake"}
    assert any(".parquet" in key for key in found)
    for key, head in found.items():
        assert head.get("ServerSideEncryption") == "aws:kms", key
        assert head["SSEKMSKeyId"].endswith(KEY), key


@pytest.mark.slow
def test_a_key_that_the_store_does_not_have_is_refused_at_the_start(
    data: Path, encrypting: Bucket
) -> None:
    chosen = on_s3(encrypting, s3_sse="aws:kms", s3_sse_kms_key_id="no-such-key")
    daemon = Daemon(data, **chosen)
    daemon.start()
    try:
        assert daemon.process.wait(2 * HANG_S) == 1
        daemon._reader.join()
        assert "PUT of probe/" in daemon.text and "KeyNotFound" in daemon.text
    finally:
        daemon.kill_everything()
