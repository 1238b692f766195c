"""Turns boto3's errors into ours: retryable or not, outcome known or not, and what to do."""

from __future__ import annotations

from typing import NamedTuple

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)

from uploader.stores.base import ObjectMissing, StoreBusy, StoreError, StoreRefused

_BUSY = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServerBusy"}
_BUSY_STATUS = {429, 503}
# A body that was damaged on the way, or an upload that the store gave up waiting for.
_AGAIN_ALTHOUGH_400 = {
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)
_WRONG_PLACE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"}
_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role of the machine"
)
# Answers to credentials that are known and may not do this. An answer to HEAD has only a status.
_DENIED = {"AccessDenied", "AllAccessDisabled", "Forbidden", "403"}
_ON_BUCKET = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
_ACTIONS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "DeleteObjects": "s3:DeleteObject",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
}


class Where(NamedTuple):
    """What every message about a store names."""

    url: str
    bucket: str
    endpoint: str


def status_of(error: BotoCoreError | ClientError) -> int | None:
    """The HTTP status of the store's answer, None without an answer."""
    if isinstance(error, ClientError):
        return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None


def mapped(
    error: BotoCoreError | ClientError,
    what: str,
    where: Where,
    *,
    writes: bool = False,
) -> StoreError:
    """The StoreError for a failed call.

    ``what`` names the call. ``writes``: the call may have had its effect although it failed.
    """
    if isinstance(error, ClientError):
        return _answered(error, what, where, writes)
    sentence = f"{where.url}: {what} at {where.endpoint} failed: {error}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StoreRefused(f"{sentence}; {_CREDENTIALS}")
    if isinstance(error, SSLError):
        return StoreRefused(f"{sentence}; for a private authority set AWS_CA_BUNDLE")
    if isinstance(error, _NOT_SENT):
        return StoreError(sentence, retryable=True)
    if isinstance(error, HTTPClientError | IncompleteReadError):
        return StoreError(sentence, retryable=True, outcome_unknown=writes)
    return StoreError(sentence, retryable=False)


def missing_permission(operation: str) -> str:
    """What an IAM policy must allow for an operation of S3.

    Without s3:ListBucket, S3 also answers "denied" to a read of an object that is not there.
    """
    action = _ACTIONS.get(operation, "s3:PutObject")
    where = "the bucket" if action in _ON_BUCKET else "it"
    unless = " (or, if it is not there, s3:ListBucket)" if action == "s3:GetObject" else ""
    return f"the credentials need {action} on {where}{unless}, see examples/iam/"


def _answered(error: ClientError, what: str, where: Where, writes: bool) -> StoreError:
    status = status_of(error) or 0
    code = error.response.get("Error", {}).get("Code", "")
    message = error.response.get("Error", {}).get("Message", "")
    sentence = f"{where.url}: {what} at {where.endpoint} was answered {status} {code}: {message}"
    if status in _BUSY_STATUS or code in _BUSY:
        return StoreBusy(sentence)
    if status >= 500 or status == 408 or code in _AGAIN_ALTHOUGH_400:
        return StoreError(sentence, retryable=True, outcome_unknown=writes)
    if status == 409:
        # Two conditional puts of the same key met, and neither is decided.
        return StoreError(sentence, retryable=True)
    if code == "NoSuchBucket":
        return StoreRefused(
            f"{where.url}: there is no bucket {where.bucket!r} at {where.endpoint}; create it, or"
            " correct store_url or s3_endpoint_url"
        )
    if status == 404 and not writes:
        return ObjectMissing(f"{where.url}: {what} found no object")
    if code == "RequestTimeTooSkewed":
        return StoreRefused(f"{sentence}; set this machine's clock")
    if status in (301, 307) or code in _WRONG_PLACE:
        return StoreRefused(
            f"{sentence}; the bucket {where.bucket!r} is in another region: set s3_region"
        )
    if status in (401, 403) or code in ("ExpiredToken", "InvalidToken"):
        forbidden = f"{where.url}: {what} at {where.endpoint} is forbidden ({status} {code})"
        if code in _DENIED:
            # Of a key of KMS, only the message of S3 tells.
            said = f": {message}" if "kms" in message.lower() else ""
            return StoreRefused(f"{forbidden}{said}; {missing_permission(error.operation_name)}")
        return StoreRefused(f"{forbidden}: {message.rstrip('.')}; {_CREDENTIALS}")
    return StoreError(sentence, retryable=False)
