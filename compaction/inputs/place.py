"""Where L0 and the lake are, for every process that opens them: driver, executors, readers.

A *place* is plain data and is sent to executors. What it opens is cached per process and
thread-safe: one object store for L0, one pyarrow file system for the lake. Both use boto3's
credentials, which are never part of a place.

A *location* is a file of the lake as Iceberg writes it, ``file:///dir/x.parquet`` or
``s3://bucket/key``, without percent-encoding, because Iceberg's readers do not decode it. The
configured URLs are percent-encoded like all URLs of stores.

This module reads and writes no file itself.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from uploader.lru import LruCache
from uploader.stores.base import Encryption, ObjectStore, PartedStore
from uploader.stores.open import StoreUrlError, open_store

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs

# Threads of one process that read L0 simultaneously; a worker runs one task at a time.
STORE_THREADS = 8
CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 30
PLACES_MAX = 16  # cached per process, because each holds connections
_DENIED = re.compile(r"ACCESS_DENIED during (\w+) operation")


class Place(Struct, frozen=True):
    """The store ``url``, and the lake at ``lake_url``, by default the folder ``lake`` in the store.

    ``endpoint_url``, ``region`` and ``encryption`` are for S3 only; the first two override boto3's
    own configuration.
    """

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    lake_url: str = ""
    encryption: Encryption | None = None

    @property
    def lake(self) -> str:
        """The location above all tables, without a slash at the end."""
        url = self.lake_url or f"{self.url.rstrip('/')}/lake"
        parts = urlsplit(url)
        if parts.scheme == "file":
            return f"file://{unquote(parts.path).rstrip('/')}"
        if parts.scheme == "s3" and parts.netloc:
            return f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
        raise StoreUrlError(url, "cannot hold tables")

    def store(self) -> ObjectStore:
        """The store of L0, the same one for every call in this process. Raises StoreUrlError."""
        with _lock:
            found = _stores.get(self)
            if found is None:
                found = open_store(
                    self.url,
                    endpoint_url=self.endpoint_url,
                    region=self.region,
                    threads=STORE_THREADS,
                    encryption=self.encryption,
                )
                _stores.keep(self, found)
            return found

    def open_lake(self) -> PartedStore:
        """The lake on S3 as a store, whose keys are paths below it. Close it after use."""
        from uploader.stores.s3 import S3Store

        bucket, _, prefix = self.lake.removeprefix("s3://").partition("/")
        return S3Store(
            bucket,
            prefix,
            endpoint_url=self.endpoint_url,
            region=self.region,
            encryption=self.encryption,
        )

    def filesystem(self) -> tuple[pa_fs.FileSystem, str]:
        """The lake's file system and the lake's path in it. Raises StoreUrlError.

        Call it before each piece of work and do not keep it: it replaces keys that have expired.
        """
        lake = self.lake
        if lake.startswith("file://"):
            return _local_filesystem(), self.path_of(lake)
        return self._s3(), self.path_of(lake)

    def reconnect(self) -> None:
        """Opens the lake's file system again, with new connections."""
        with _lock:
            _s3_opened.drop(self)

    def path_of(self, location: str) -> str:
        """A location's path in the lake's file system. Raises ValueError for another scheme."""
        scheme, mark, path = location.partition("://")
        wanted = self.lake.partition("://")[0]
        if not mark or scheme != wanted:
            raise ValueError(f"the location {location!r} must begin with {wanted}://")
        return path

    def _s3(self) -> pa_fs.FileSystem:
        import boto3  # 0.2 s, and a directory needs none of it

        with _lock:
            opened = _s3_opened.get(self)
            session = boto3.session.Session() if opened is None else opened.session
            credentials = session.get_credentials()
            keys = None if credentials is None else credentials.get_frozen_credentials()
            found = None if keys is None else _Keys(keys.access_key, keys.secret_key, keys.token)
            if opened is None or opened.keys != found:
                opened = _S3(session, found, self._open_s3(session, found))
                _s3_opened.keep(self, opened)
            return opened.filesystem

    def _open_s3(self, session: Any, keys: _Keys | None) -> pa_fs.FileSystem:
        from pyarrow.fs import S3FileSystem

        options: dict[str, Any] = {
            "region": self.region or session.region_name or "us-east-1",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "request_timeout": REQUEST_TIMEOUT_S,
            "allow_bucket_creation": False,
        }
        if self.endpoint_url is not None:
            endpoint = urlsplit(self.endpoint_url)
            options["scheme"] = endpoint.scheme
            options["endpoint_override"] = endpoint.netloc
        if keys is not None:
            options["access_key"] = keys.access
            options["secret_key"] = keys.secret
            options["session_token"] = keys.token
        return S3FileSystem(**options)


def permission_hint(error: BaseException | str) -> str:
    """What pyarrow's refusal by S3 lacks in the policy of these credentials; empty for others."""
    denied = _DENIED.search(str(error))
    if denied is None:
        return ""
    from uploader.stores.s3_errors import missing_permission

    return missing_permission(denied[1])


class _Keys(NamedTuple):
    access: str | None
    secret: str | None
    token: str | None


class _S3(NamedTuple):
    session: Any
    keys: _Keys | None
    filesystem: pa_fs.FileSystem


_lock = threading.Lock()
# What is dropped may still be in use, so it is not closed.
_stores: LruCache[Place, ObjectStore] = LruCache(PLACES_MAX)
_s3_opened: LruCache[Place, _S3] = LruCache(PLACES_MAX)


@functools.cache
def _local_filesystem() -> pa_fs.FileSystem:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()
