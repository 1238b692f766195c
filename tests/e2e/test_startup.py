"""Refused starts: one sentence with the value and what to do, an exit code, no wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.daemon import HANG_S, ROOT
from tests.minio import Bucket, Minio
from tests.uploader.stores.http_stores import Answer, Request, error, scripted_store
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


def test_credentials_that_the_store_refuses_are_reported(data: Path, bucket: Bucket) -> None:
    options = on_store(data, bucket.url, bucket.endpoint_url)
    code, said = serve(*options, environ=FORGED)
    assert code == 1
    assert "is forbidden (403" in said and bucket.endpoint_url in said
    assert "AWS_ACCESS_KEY_ID" in said and "nothing-at-all" not in said


def test_a_store_that_does_not_listen_is_reported(data: Path) -> None:
    with kept_port() as port:
        endpoint_url = f"http://127.0.0.1:{port}"
        options = on_store(data, "s3://bucket/prefix", endpoint_url)
        code, said = serve(*options, environ=FORGED)
    assert code == 1
    assert "LIST of the prefix" in said and endpoint_url in said


def test_a_store_that_ignores_if_none_match_is_refused_by_name(data: Path) -> None:
    kept: dict[str, bytes] = {}

    def answers(request: Request) -> Answer:
        if request.method == "PUT":
            assert request.headers["if-none-match"] == "*"
            kept[request.path] = request.body
            return Answer(200)
        return Answer(200, b"<DeleteResult></DeleteResult>")

    with scripted_store(answers) as store:
        options = on_store(data, "s3://bucket/prefix", store.endpoint_url)
        code, said = serve(*options, environ=FORGED)
    assert code == 1 and len(kept) == 1
    assert "If-None-Match" in said and "s3://bucket/prefix" in said
    assert not (data / "ledger" / "ledger.db").exists()


def test_a_broken_store_is_reported_with_its_answer(data: Path) -> None:
    with scripted_store(lambda request: error(500, "InternalError")) as store:
        options = on_store(data, "s3://bucket/prefix", store.endpoint_url)
        code, said = serve(*options, environ=FORGED)
    assert code == 1 and "was answered 500" in said


def test_a_data_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("no folder")
    for folder in (file, file / "below"):
        code, said = serve("--data", str(folder))
        assert code == 1
        assert f"data_dir {folder} cannot be used" in said


def test_a_store_folder_that_cannot_be_created_is_reported(tmp_path: Path, data: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("no folder")
    code, said = serve("--data", str(data), "--store", f"file://{file}/store")
    assert code == 1
    assert f"{file}" in said


def test_a_damaged_ledger_is_reported_and_left_unchanged(data: Path) -> None:
    (data / "ledger").mkdir(parents=True)
    ledger = data / "ledger" / "ledger.db"
    ledger.write_bytes(b"this is not a database, and it may be wanted back" * 100)
    before = ledger.read_bytes()
    code, said = serve("--data", str(data))
    assert code == 1
    assert str(ledger) in said
    assert ledger.read_bytes() == before


def test_a_host_that_does_not_exist_is_reported(data: Path) -> None:
    code, said = serve(
        "--data", str(data), "--listen", "no-such-host.invalid:7440", "--set", "insecure_open=true"
    )
    assert code == 1
    assert "listen = no-such-host.invalid:7440 cannot be used: " in said
    assert "Unknown error" not in said
