"""Users and policies of a test's MinIO, by its admin API.

A user is created by an encrypted body: salt, algorithm, nonce, then AES-GCM frames under a key that
PBKDF2 derives from the administrator's secret (the form for FIPS of MinIO's own client).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import secrets
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.minio import Bucket

Policy = dict[str, Any]

_PBKDF2_AES_GCM = b"\x02"
_PBKDF2_ROUNDS = 8192
_FRAME_BYTES = 16_384
_LAST_FRAME = b"\x80"


class User(NamedTuple):
    """A user of MinIO with one policy of the same name."""

    bucket: Bucket
    name: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process is this user."""
        return self.bucket.environment | {
            "AWS_ACCESS_KEY_ID": self.name, "AWS_SECRET_ACCESS_KEY": self.secret,
        }  # fmt: skip

    def may(self, policy: Policy) -> None:
        """Gives the user this policy, and no other."""
        body = json.dumps(policy).encode()
        _ask(self.bucket, "add-canned-policy", {"name": self.name}, body)
        attached = {"policyName": self.name, "userOrGroup": self.name, "isGroup": "false"}
        _ask(self.bucket, "set-user-or-group-policy", attached)


def user(bucket: Bucket, policy: Policy) -> User:
    """A new user with this policy."""
    made = User(bucket, f"user-{secrets.token_hex(6)}", secrets.token_hex(20))
    body = json.dumps({"secretKey": made.secret, "status": "enabled"}).encode()
    _ask(bucket, "add-user", {"accessKey": made.name}, _encrypted(body, bucket.secret_key))
    made.may(policy)
    return made


def _ask(bucket: Bucket, what: str, query: dict[str, str], body: bytes = b"") -> None:
    url = f"{bucket.endpoint_url}/minio/admin/v3/{what}?{urlencode(query)}"
    digest = hashlib.sha256(body).hexdigest()
    request = AWSRequest("PUT", url, data=body, headers={"x-amz-content-sha256": digest})
    SigV4Auth(Credentials(bucket.access_key, bucket.secret_key), "s3", bucket.region).add_auth(
        request
    )
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(
            "PUT", url.partition(urlsplit(url).netloc)[2], body, dict(request.headers)
        )
        answer = connection.getresponse()
        assert answer.status == 200, (what, answer.status, answer.read())
    finally:
        connection.close()


def _encrypted(body: bytes, secret: str) -> bytes:
    assert len(body) <= _FRAME_BYTES
    salt, nonce = secrets.token_bytes(32), secrets.token_bytes(8)
    cipher = AESGCM(hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, _PBKDF2_ROUNDS, 32))
    about = cipher.encrypt(nonce + bytes(4), b"", None)
    frame = cipher.encrypt(nonce + (1).to_bytes(4, "little"), body, _LAST_FRAME + about)
    return salt + _PBKDF2_AES_GCM + nonce + frame
