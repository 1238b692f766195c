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
    of_bucket: bool = False,
) -> StoreError:
    """The StoreError for a failed call.

    ``what`` names the call. ``writes``: the call may have had its effect although it failed.
    ``of_bucket``: 404 means the bucket (an answer to HEAD has no body that would tell).
    """
    if isinstance(error, ClientError):
        return _answered(error, what, where, writes, of_bucket)
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


def _answered(
    error: ClientError, what: str, where: Where, writes: bool, of_bucket: bool
) -> StoreError:
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
    if code == "NoSuchBucket" or (status == 404 and of_bucket):
        return StoreRefused(
            f"{where.url}: there is no bucket {where.bucket!r} at {where.endpoint}; create it, or"
            " correct store_url or s3_endpoint_url"
        )
    if status == 404:
        return ObjectMissing(f"{where.url}: {what} found no object")
    if code == "RequestTimeTooSkewed":
        return StoreRefused(f"{sentence}; set this machine's clock")
    if status in (301, 307) or code in _WRONG_PLACE:
        return StoreRefused(
            f"{sentence}; the bucket {where.bucket!r} is in another region: set s3_region"
        )
    if status in (401, 403) or code in ("ExpiredToken", "InvalidToken"):
        return StoreRefused(
            f"{where.url}: {what} at {where.endpoint} is forbidden ({status} {code}); the"
            f" credentials need s3:ListBucket on the bucket {where.bucket!r} and s3:GetObject,"
            f" s3:PutObject, s3:DeleteObject on its objects; {_CREDENTIALS}"
        )
    return StoreError(sentence, retryable=False)
