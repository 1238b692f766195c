"""Fixtures: one MinIO a session, one bucket a test. Tests that use them are marked ``s3``.

A machine without MinIO builds it once (``tools.minio``); where that fails the tests fail and say
how to get it. They are never skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.buckets import client
from tools.minio import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    MinioError,
    find_or_build,
    free_port,
    start,
    stop,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

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


def find_binary(config: pytest.Config) -> None:
    """Finds or builds MinIO; keeps where it is, or why there is none."""
    try:
        config.stash[_binary] = find_or_build()
    except MinioError as error:
        config.stash[_binary] = error


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Minio]:
    """A MinIO on a free loopback port, its data below pytest's temporary folder."""
    directory = tmp_path_factory.mktemp("minio") / "data"
    directory.mkdir()
    port = free_port()
    binary = pytestconfig.stash[_binary]
    try:
        if isinstance(binary, MinioError):
            raise binary
        process = start(binary, directory, port)
    except MinioError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield Minio(f"http://127.0.0.1:{port}", process.pid)
    finally:
        stop(process)


@pytest.fixture
def bucket(minio: Minio) -> Iterator[Bucket]:
    """A new, empty bucket."""
    name = f"bucket-{next(_bucket_numbers):06}"
    s3 = client(minio.endpoint_url)
    try:
        s3.create_bucket(Bucket=name)
        yield Bucket(minio.endpoint_url, name, f"s3://{name}/prefix", s3)
    finally:
        s3.close()
