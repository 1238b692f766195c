"""The S3 store: ``s3://bucket/prefix``. The one place that knows S3; the locator is the key.

boto3 is configured to use little CPU: no checksum except the CRC32C that the caller has computed
anyway, no SHA256 of the payload, one attempt per call (``retrying.py`` makes more of them). That
way a PUT of 4 MiB costs 2.4 ms of CPU; with boto3's defaults it costs 7 to 10 ms. Answers are not
checked here: S3 has a checksum for whole objects only, and readers have the ledger's checksum of
each extent (``verified.py``). boto3's ``Expect: 100-continue`` stays: it costs 0.1 ms and spares
the body when the store answers 503.

Every put carries ``If-None-Match: *``. The answer 412 means that the key is taken, and the checksum
that the store keeps tells by what. The same body is a success: the answer to a PUT was lost, or
another process adopted the lease. Any other body is a ForeignObject.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from shards import checksum
from uploader.stores.base import (
    Encryption,
    ForeignObject,
    ObjectHead,
    PartedPut,
    StoreError,
    StoreRefused,
)
from uploader.stores.s3_errors import Where, mapped, missing_permission, status_of
from uploader.stores.s3_parts import ObjectInParts, base64_of, discard_unfinished, object_arguments
from uploader.stores.verified import verified

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

CONNECT_TIMEOUT_S = 5.0
# The published p99 of an 8 MiB PUT is 400 ms; a call that stays silent longer than this is lost.
READ_TIMEOUT_S = 20.0
DELETE_BATCH = 1_000  # a limit of S3
# PUTs that begin together, of few keys: a store that looks first and writes then accepts more than
# one of a key. They cost as much time as one PUT, and $0.0001 on S3.
RACED_KEYS, RACERS = 3, 8
REGION_WITHOUT_ONE = "us-east-1"  # a signature needs some region; MinIO and others ignore it


def client_for(
    where: Where,
    endpoint_url: str | None,
    region: str | None,
    threads: int,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> S3Client:
    """A client for ``threads`` simultaneous calls. Raises StoreRefused."""
    session = boto3.session.Session()
    config = Config(
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "payload_signing_enabled": False,
            "addressing_style": "path" if endpoint_url else "auto",
        },
        max_pool_connections=max(threads, 1),
        retries={"total_max_attempts": 1},
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        tcp_keepalive=True,
    )
    try:
        return session.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=region or session.region_name or REGION_WITHOUT_ONE,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise StoreRefused(f"{where.url} cannot be opened at {where.endpoint}: {error}") from error


class S3Store:
    """Objects in a bucket; see the head of this module. All threads share one client."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        threads: int = 4,
        encryption: Encryption | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._bucket = bucket
        self._asked = object_arguments(encryption)
        self._root = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._where = Where(
            url=self.url, bucket=bucket, endpoint=endpoint_url or "the default endpoint of AWS"
        )
        self._client = client_for(
            self._where,
            endpoint_url,
            region,
            threads,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """Keeps the object if the key is free or already holds the same bytes."""
        try:
            self._put(key, body, crc32c)
        except (BotoCoreError, ClientError) as error:
            if status_of(error) != 412:
                raise mapped(error, f"PUT of {key}", self._where, writes=True) from error
            self._require_equal(key, len(body), crc32c)
        return key

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object by a range read."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"start {start} and length {length} must not be negative")
        if length == 0:
            return b""
        key = self._root + locator
        try:
            if start == 0 and length is None:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
            else:
                end = "" if length is None else start + length - 1
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end}"
                )
            return answer["Body"].read()
        except (BotoCoreError, ClientError) as error:
            if start == 0 and status_of(error) == 416:
                return b""  # an empty object has no first byte
            raise mapped(error, f"GET of {locator}", self._where) from error

    def delete(self, locators: Sequence[str]) -> None:
        """Removes objects, 1,000 per request. The error names the first that was not removed."""
        for at in range(0, len(locators), DELETE_BATCH):
            batch: list[ObjectIdentifierTypeDef] = [
                {"Key": self._root + locator} for locator in locators[at : at + DELETE_BATCH]
            ]
            try:
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True}
                )
            except (BotoCoreError, ClientError) as error:
                what = f"DELETE of {len(batch)} objects"
                raise mapped(error, what, self._where, writes=True) from error
            left = answer.get("Errors", [])
            if left:
                first = left[0]
                code = first.get("Code", "without a code")
                sentence = (
                    f"{self.url}: {len(left)} of {len(batch)} objects were not deleted, the first"
                    f" is {first.get('Key', '').removeprefix(self._root)}:"
                    f" {code} {first.get('Message', '')}"
                )
                if code == "AccessDenied":
                    raise StoreRefused(f"{sentence}; {missing_permission('DeleteObjects')}")
                raise StoreError(sentence, retryable=True)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Keeps the object if the key is free; False if it holds anything."""
        try:
            self._put(key, body, checksum.crc32c(body))
        except (BotoCoreError, ClientError) as error:
            if status_of(error) == 412:
                return False
            raise mapped(error, f"PUT of {key}", self._where, writes=True) from error
        return True

    def put_in_parts(self, key: str) -> PartedPut:
        """A multipart upload."""
        return ObjectInParts(self._client, self._where, self._root + key, self._asked)

    def discard_unfinished(self, prefix: str) -> int:
        """Aborts multipart uploads under a prefix."""
        return discard_unfinished(self._client, self._where, self._root + prefix)

    def check(self) -> None:
        """Lists the prefix, puts a probe twice, and reads it: the second answer must be 412. Then
        puts probes that race: of those with one key, one may be accepted.

        It lists, because a policy for a prefix allows no question about the whole bucket.
        """
        try:
            self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._root, MaxKeys=1)
        except (BotoCoreError, ClientError) as error:
            raise mapped(error, "LIST of the prefix", self._where) from error
        probe = f"probe/{secrets.token_hex(8)}"
        raced = [f"{probe}-{number}" for number in range(RACED_KEYS)]
        first = self.put_if_absent(probe, b"probe")
        accepted = 1
        try:
            second = self.put_if_absent(probe, b"another probe")
            self.get(probe)
            if first and not second:
                accepted = self._race(raced)
        finally:
            self.delete([probe, *raced])
        said = f"{'' if first else 'not '}accepted and {'' if second else 'not '}accepted"
        if not first or second:
            raise self._dishonored(f"two PUTs of one new key were {said}")
        if accepted > 1:
            raise self._dishonored(
                f"{accepted} of {RACERS} PUTs of one new key that began together were accepted"
            )

    def _race(self, keys: Sequence[str]) -> int:
        """The most PUTs of one key that were accepted, when RACERS of each begin together."""
        beginning = threading.Barrier(RACERS * len(keys))

        def wins(key: str) -> bool:
            beginning.wait()
            try:
                return self.put_if_absent(key, secrets.token_bytes(8))
            except StoreError as error:
                if not error.retryable:
                    raise
                return False  # S3 answers 409 to PUTs that meet

        with ThreadPoolExecutor(RACERS * len(keys)) as pool:
            won = list(pool.map(wins, [*keys] * RACERS))
        return max(sum(won[at :: len(keys)]) for at in range(len(keys)))

    def _dishonored(self, how: str) -> StoreRefused:
        return StoreRefused(
            f"the store {self.url} at {self._where.endpoint} does not honor If-None-Match: {how}."
            " Two daemons could then own one prefix. Use a store that answers 412 to all but one"
            " (Amazon S3, MinIO, Cloudflare R2, Ceph from Squid), or file:///dir"
        )

    def reconnect(self) -> None:
        """Drops the pool of connections; requests in progress end on theirs."""
        self._client.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """Objects by key, one LIST request per 1,000."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket,
            Prefix=self._root + prefix,
            StartAfter=self._root + start_after if start_after else "",
        )
        try:
            for page in pages:
                for found in page.get("Contents", ()):
                    key = found["Key"].removeprefix(self._root)
                    modified_ms = int(found["LastModified"].timestamp() * 1000)
                    yield ObjectHead(key, key, found["Size"], modified_ms)
        except (BotoCoreError, ClientError) as error:
            raise mapped(error, f"LIST of {prefix}", self._where) from error

    def _put(self, key: str, body: bytes, crc32c: int) -> None:
        self._client.put_object(
            Bucket=self._bucket,
            Key=self._root + key,
            Body=body,
            ChecksumCRC32C=base64_of(crc32c),
            IfNoneMatch="*",
            **self._asked,
        )

    def _require_equal(self, key: str, size_bytes: int, crc32c: int) -> None:
        try:
            head = self._client.head_object(
                Bucket=self._bucket, Key=self._root + key, ChecksumMode="ENABLED"
            )
        except (BotoCoreError, ClientError) as error:
            if status_of(error) == 404:
                raise StoreError(
                    f"{self.url}: {key} was taken when it was put, and is gone now",
                    retryable=True,
                ) from error
            raise mapped(error, f"HEAD of {key}", self._where, writes=True) from error
        found_bytes = head["ContentLength"]
        found = head.get("ChecksumCRC32C", "")
        if not found and found_bytes == size_bytes:
            # The store keeps no checksums, or another program copied the object.
            found = self._checksum_of(key, crc32c)
        if found_bytes != size_bytes or found != base64_of(crc32c):
            raise ForeignObject(
                f"{self.url}: {key} is taken by another object: it has {found_bytes} bytes with"
                f" CRC32C {found or 'unknown'}, ours has {size_bytes} with {base64_of(crc32c)}."
                " Keys are never used twice: another program or a copy of this daemon writes here,"
                " or the object was damaged"
            )

    def _checksum_of(self, key: str, wanted: int) -> str:
        """The checksum of an object; if it is not the one wanted, the object is read again."""

        def read() -> str:
            found = checksum.crc32c(self.get(key))
            if found != wanted:
                raise _OtherBytes(base64_of(found))
            return base64_of(found)

        try:
            return verified(read, self.reconnect, _OtherBytes, f"GET of {key}")
        except _OtherBytes as error:
            return str(error)


class _OtherBytes(Exception):
    """The bytes have another checksum, which is the message."""
