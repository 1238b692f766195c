"""Objects in S3 as sources: what a prefix or a pattern names, and their bytes.

The identity of an object is its bucket, key and ETag. A replaced object is another source, and one
that is replaced or deleted while it is read is a SourceChanged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from commands.importing.reading.problems import SourceChanged, SourceMissing, SourceProblem
from commands.importing.reading.raw import FileVersion
from uploader.stores.base import ObjectMissing, StoreError
from uploader.stores.retry import BULK
from uploader.stores.retrying import Retry
from uploader.stores.s3_reading import BucketReader, ListedObject, ObjectReplaced

SCHEME = "s3://"
# One GET; at $0.0004 per 1,000 that is $0.05 per TiB.
READ_BYTES = 8 << 20
_MAGIC = "*?["


class Endpoint(NamedTuple):
    """Where S3 is; None: as boto3 is configured."""

    url: str | None
    region: str | None


class Buckets:
    """The buckets of an import, for up to ``threads`` simultaneous calls."""

    def __init__(self, endpoint: Endpoint, threads: int) -> None:
        self._endpoint = endpoint
        self._threads = threads
        self._readers: dict[str, BucketReader] = {}

    def sources(self, url: str) -> Iterator[S3Object]:
        """The objects that ``s3://BUCKET/PREFIX`` or a pattern names. Raises SourceProblem."""
        bucket, _, wanted = url.removeprefix(SCHEME).partition("/")
        if not bucket:
            raise SourceMissing("names no bucket, like s3://BUCKET/PREFIX")
        magic = [wanted.index(each) for each in _MAGIC if each in wanted]
        prefix = wanted[: min(magic)] if magic else wanted
        try:
            reader = self._reader(bucket)
            for listed in reader.objects(prefix):
                if not listed.key.endswith("/") and (not magic or fnmatchcase(listed.key, wanted)):
                    yield S3Object(reader, listed)
        except StoreError as error:
            raise SourceProblem(str(error)) from error

    def close(self) -> None:
        """Closes all connections."""
        for reader in self._readers.values():
            reader.close()

    def _reader(self, bucket: str) -> BucketReader:
        reader = self._readers.get(bucket)
        if reader is None:
            reader = BucketReader(
                bucket,
                endpoint_url=self._endpoint.url,
                region=self._endpoint.region,
                threads=self._threads,
            )
            self._readers[bucket] = reader
        return reader


class S3Object:
    """One object, read in ranges."""

    can_seek: bool = True
    may_grow: bool = False

    def __init__(self, reader: BucketReader, listed: ListedObject) -> None:
        self.name = f"{reader.url}/{listed.key}"
        self.identity: str | None = f"s3\0{self.name}\0{listed.etag}"
        self.position = 0
        self._reader = reader
        self._listed = listed
        self._ahead = memoryview(b"")
        self._retry = Retry(BULK, random.Random(), time.sleep)

    def location(self) -> str:
        return self.name

    def size(self) -> int | None:
        return self._listed.size_bytes

    def version(self) -> FileVersion | None:
        return None

    def read(self, count: int) -> bytes | None:
        if not self._ahead:
            try:
                read = self._retry(
                    lambda: self._reader.read(self._listed, self.position, READ_BYTES)
                )
            except ObjectReplaced as error:
                raise SourceChanged(
                    "was replaced by another object since it was listed",
                    hint="run the import again: it takes the new object as another source",
                ) from error
            except ObjectMissing as error:
                raise SourceChanged("was deleted since it was listed") from error
            except StoreError as error:
                raise SourceProblem(f"cannot be read: {error}") from error
            self._ahead = memoryview(read)
        data = bytes(self._ahead[:count])
        self._ahead = self._ahead[count:]
        self.position += len(data)
        return data

    def seek(self, position: int) -> None:
        self.position = position
        self._ahead = memoryview(b"")

    def verify(self) -> None:
        """The ETag of each read is verified by the store."""

    def close(self) -> None:
        """The bucket is closed with the import."""
