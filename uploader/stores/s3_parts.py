"""Objects that are put into S3 in parts: multipart uploads of what is too large for memory.

Each part carries its CRC32C, as a PUT does. The put is unconditional: only its writer knows the
key. An unfinished upload costs storage for its parts and appears in no listing of objects, so its
writer aborts it, or the next start does (``discard_unfinished``). MinIO finds unfinished uploads
only by their whole key, and removes them itself after a day.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, TypedDict, cast

from botocore.exceptions import BotoCoreError, ClientError

from shards import checksum
from uploader.stores.base import Encryption
from uploader.stores.s3_errors import Where, mapped, status_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import ServerSideEncryptionType
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


class ObjectArguments(TypedDict, total=False):
    """Arguments of boto3 for whatever makes an object."""

    ServerSideEncryption: ServerSideEncryptionType
    SSEKMSKeyId: str


def object_arguments(encryption: Encryption | None) -> ObjectArguments:
    """The arguments with which S3 encrypts an object so."""
    asked: ObjectArguments = {}
    if encryption is not None:
        asked["ServerSideEncryption"] = cast("ServerSideEncryptionType", encryption.algorithm)
        if encryption.kms_key_id is not None:
            asked["SSEKMSKeyId"] = encryption.kms_key_id
    return asked


def base64_of(crc32c: int) -> str:
    """A checksum as S3 writes it."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


class ObjectInParts:
    """One multipart upload, as PartedPut; it begins with the first part."""

    def __init__(self, client: S3Client, where: Where, key: str, asked: ObjectArguments) -> None:
        self._client = client
        self._asked = asked
        self._where = where
        self._bucket = where.bucket
        self._key = key
        self._upload = ""
        self._parts: list[CompletedPartTypeDef] = []

    def put(self, part: bytes) -> None:
        """Adds a part."""
        crc32c = base64_of(checksum.crc32c(part))
        number = len(self._parts) + 1
        try:
            if not self._upload:
                begun = self._client.create_multipart_upload(
                    Bucket=self._bucket, Key=self._key, ChecksumAlgorithm="CRC32C", **self._asked
                )
                self._upload = begun["UploadId"]
            answer = self._client.upload_part(
                Bucket=self._bucket, Key=self._key, UploadId=self._upload, PartNumber=number,
                Body=part, ChecksumCRC32C=crc32c,
            )  # fmt: skip
        except (BotoCoreError, ClientError) as error:
            what = f"PUT of part {number} of {self._key}"
            raise mapped(error, what, self._where, writes=True) from error
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": crc32c})

    def finish(self) -> None:
        """Puts the parts together. If the answer is lost, the next call finds the object."""
        try:
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=self._key, UploadId=self._upload,
                MultipartUpload={"Parts": self._parts},
            )  # fmt: skip
        except (BotoCoreError, ClientError) as error:
            if status_of(error) == 404 and self._is_there():
                return
            raise mapped(error, f"finishing {self._key}", self._where, writes=True) from error

    def abandon(self) -> None:
        """Aborts the upload. A missing upload is not an error."""
        if not self._upload:
            return
        try:
            _abort(self._client, self._bucket, self._key, self._upload)
        except (BotoCoreError, ClientError) as error:
            raise mapped(error, f"aborting {self._key}", self._where) from error

    def _is_there(self) -> bool:
        try:
            self._client.head_object(Bucket=self._bucket, Key=self._key)
        except (BotoCoreError, ClientError) as error:
            if status_of(error) == 404:
                return False
            raise mapped(error, f"HEAD of {self._key}", self._where) from error
        return True


def discard_unfinished(client: S3Client, where: Where, prefix: str) -> int:
    """Aborts the uploads under a prefix; returns how many. Raises StoreError."""
    discarded = 0
    try:
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=where.bucket, Prefix=prefix
        )
        for page in pages:
            for upload in page.get("Uploads", ()):
                _abort(client, where.bucket, upload["Key"], upload["UploadId"])
                discarded += 1
    except (BotoCoreError, ClientError) as error:
        raise mapped(error, f"listing unfinished uploads under {prefix}", where) from error
    return discarded


def _abort(client: S3Client, bucket: str, key: str, upload: str) -> None:
    try:
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
    except ClientError as error:
        if status_of(error) != 404:
            raise
