"""Reads objects that other programs keep in S3: any bucket, any keys, nothing of ours.

An object is read as the ETag of its listing says; if it was replaced since, the read is an
ObjectReplaced. Every call blocks, makes one attempt, and may come from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from uploader.stores.base import StoreError
from uploader.stores.s3 import client_for
from uploader.stores.s3_errors import Where, mapped, status_of


class ListedObject(Struct, frozen=True):
    """An object in a listing."""

    key: str
    etag: str
    size_bytes: int


class ObjectReplaced(StoreError):
    """Another object is under this key now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class BucketReader:
    """A bucket, for up to ``threads`` simultaneous calls."""

    def __init__(
        self, bucket: str, *, endpoint_url: str | None, region: str | None, threads: int
    ) -> None:
        self.url = f"s3://{bucket}"
        self._bucket = bucket
        self._where = Where(
            url=self.url, bucket=bucket, endpoint=endpoint_url or "the default endpoint of AWS"
        )
        self._client = client_for(self._where, endpoint_url, region, threads)

    def objects(self, prefix: str) -> Iterator[ListedObject]:
        """The objects whose keys begin with ``prefix``, by key. Raises StoreError."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        try:
            for page in pages:
                for found in page.get("Contents", ()):
                    yield ListedObject(found["Key"], found["ETag"], found["Size"])
        except (BotoCoreError, ClientError) as error:
            raise mapped(error, f"LIST of {prefix!r}", self._where) from error

    def read(self, listed: ListedObject, start: int, count: int) -> bytes:
        """At most ``count`` bytes from ``start``, at least one if there are any.

        Raises StoreError, also ObjectReplaced.
        """
        count = min(count, listed.size_bytes - start)
        if count <= 0:
            return b""
        try:
            answer = self._client.get_object(
                Bucket=self._bucket,
                Key=listed.key,
                Range=f"bytes={start}-{start + count - 1}",
                IfMatch=listed.etag,
            )
            return answer["Body"].read()
        except (BotoCoreError, ClientError) as error:
            if status_of(error) == 412:
                raise ObjectReplaced(f"{self.url}/{listed.key} was replaced") from error
            raise mapped(error, f"GET of {listed.key}", self._where) from error

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
