"""Refused starts: one sentence with the value and what to do, an exit code, no wait.

What a store's answers become is in ``tests/uploader/stores``, addresses in
``tests/daemon/process/test_listeners.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.daemon import HANG_S, ROOT
from tests.minio import Minio
from tools.ports import kept_port

FORGED = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing-at-all"}


def serve(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """``headgate serve`` that must end by itself: exit code and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "cli", "serve", "--listen", "127.0.0.1:0", *arguments],
        cwd=ROOT, env={**os.environ, **(environ or {})}, timeout=HANG_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def on_store(data: Path, url: str, endpoint_url: str) -> list[str]:
    """Options for an S3 store."""
    return ["--data", str(data), "--store", url, "--set", f"s3_endpoint_url={endpoint_url}"]


def test_a_bucket_that_is_missing_is_named(data: Path, minio: Minio) -> None:
    environ = {"AWS_ACCESS_KEY_ID": minio.access_key, "AWS_SECRET_ACCESS_KEY": minio.secret_key}
    options = on_store(data, "s3://no-such-bucket/prefix", minio.endpoint_url)
    code, said = serve(*options, environ=environ)
    assert code == 1
    assert "there is no bucket 'no-such-bucket' at " + minio.endpoint_url in said
    assert "create it, or correct store_url or s3_endpoint_url" in said
    assert not (data / "ledger" / "ledger.db").exists()


def test_a_store_that_does_not_listen_is_reported(data: Path) -> None:
    with kept_port() as port:
        endpoint_url = f"http://127.0.0.1:{port}"
        options = on_store(data, "s3://bucket/prefix", endpoint_url)
        code, said = serve(*options, environ=FORGED)
    assert code == 1
    assert "LIST of the prefix" in said and endpoint_url in said


def test_a_data_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("no folder")
    for folder in (file, file / "below"):
        code, said = serve("--data", str(folder))
        assert code == 1
        assert f"data_dir {folder} cannot be used" in said


def test_a_damaged_ledger_is_reported_and_left_unchanged(data: Path) -> None:
    (data / "ledger").mkdir(parents=True)
    ledger = data / "ledger" / "ledger.db"
    ledger.write_bytes(b"this is not a database, and it may be wanted back" * 100)
    before = ledger.read_bytes()
    code, said = serve("--data", str(data))
    assert code == 1
    assert str(ledger) in said
    assert ledger.read_bytes() == before
