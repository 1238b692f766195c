"""Fixtures: one MinIO per run, one bucket per test. Tests that use them are marked ``s3``.

With several workers, the first one that needs MinIO starts it in their shared folder, and stops it
when all its users have ended: each holds a lock on the file with the address.

A machine without MinIO builds it once (``tools.minio``). If that fails, the tests fail and say how
to get it. They are never skipped.

``HEADGATE_TEST_STORE=URL`` is another server, which ``make check-store`` judges: tests make buckets
there, with the credentials ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, and delete them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import botocore.session
import pytest
from botocore.exceptions import ClientError

from tools.buckets import client
from tools.minio import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    MinioError,
    find_or_build,
    start,
    stop,
)
from tools.ports import kept_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# What boto knows of S3 is read once and not by each client, which takes it 0.1 s of CPU.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)

_bucket_numbers = itertools.count(1)
_binary = pytest.StashKey[Path | MinioError]()


@dataclass(frozen=True)
class Minio:
    """A running server."""

    endpoint_url: str
    pid: int
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION


@dataclass(frozen=True)
class Bucket:
    """A bucket of the test's own; ``url`` is a store URL with a prefix in it."""

    endpoint_url: str
    bucket: str
    url: str
    client: S3Client
    prefix: str = "prefix"
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a child process needs to reach the bucket through boto3's own chain."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
        }


def other_store() -> Minio | None:
    """The server that the environment names, if it does."""
    url = os.environ.get("HEADGATE_TEST_STORE")
    if not url:
        return None
    access_key, secret_key = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    return Minio(url, 0, access_key, secret_key, os.environ.get("AWS_DEFAULT_REGION", REGION))


def find_binary(config: pytest.Config) -> None:
    """Finds or builds MinIO; keeps where it is, or why there is none."""
    if other_store() is not None:
        return
    try:
        config.stash[_binary] = find_or_build()
    except MinioError as error:
        config.stash[_binary] = error


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Minio]:
    """A MinIO on a free loopback port, its data in pytest's temporary folder; or another store."""
    if (other := other_store()) is not None:
        yield other
        return
    binary = pytestconfig.stash[_binary]
    if isinstance(binary, MinioError):
        pytest.fail(str(binary), pytrace=False)
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    address, users = folder / "minio.address", folder / "minio.users"
    with address.open("a+") as shared, users.open("a") as using:
        fcntl.flock(shared, fcntl.LOCK_EX)
        shared.seek(0)
        words = shared.read().split()
        process = None
        if not words:
            directory = tmp_path_factory.mktemp("minio") / "data"
            directory.mkdir()
            try:
                with kept_port() as port:
                    process = start(binary, directory, port)
            except MinioError as error:
                pytest.fail(str(error), pytrace=False)
            words = [str(port), str(process.pid)]
            shared.write(" ".join(words))
            shared.flush()
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(shared, fcntl.LOCK_UN)
        try:
            yield Minio(f"http://127.0.0.1:{words[0]}", int(words[1]))
        finally:
            if process is not None:
                fcntl.flock(shared, fcntl.LOCK_EX)  # a later worker starts another one
                fcntl.flock(using, fcntl.LOCK_EX)  # until the others have ended
                shared.truncate(0)
                stop(process)


@pytest.fixture
def bucket(minio: Minio) -> Iterator[Bucket]:
    """A new, empty bucket."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "one")
    name = f"bucket-{worker}-{next(_bucket_numbers):06}"
    if not minio.pid:  # of a server that others may use, too
        name = f"headgate-{os.getpid()}-{name}"
    access = minio.access_key, minio.secret_key, minio.region
    s3 = client(minio.endpoint_url, *access)
    try:
        s3.create_bucket(Bucket=name)
        yield Bucket(minio.endpoint_url, name, f"s3://{name}/prefix", s3, "prefix", *access)
    finally:
        if not minio.pid:
            with contextlib.suppress(ClientError):  # what it cannot do, tests have shown
                _remove(s3, name)
        s3.close()


def _remove(s3: S3Client, bucket: str) -> None:
    for upload in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in page.get("Contents", []):
            s3.delete_object(Bucket=bucket, Key=found["Key"])
    s3.delete_bucket(Bucket=bucket)
