"""Signatures are those of Standard Webhooks."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from delivery.push.signatures import (
    PREFIX,
    SecretRefused,
    key_of,
    signature,
    signature_headers,
)
from tests.signing import secret_of

# The vector of the reference libraries of the specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SECONDS = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_vector_of_the_specification_is_signed_as_it_says() -> None:
    assert signature(SECRET, ID, SECONDS, BODY) == SIGNATURE


def test_a_request_has_one_signature_for_each_secret() -> None:
    other = secret_of(b"k" * 32)
    headers = signature_headers(ID, SECONDS * 1_000 + 999, BODY, [other, SECRET])
    assert headers["webhook-id"] == ID
    assert headers["webhook-timestamp"] == str(SECONDS)
    first, second = headers["webhook-signature"].split(" ")
    assert second == SIGNATURE
    signed = f"{ID}.{SECONDS}.".encode() + BODY
    expected = hmac.new(b"k" * 32, signed, hashlib.sha256).digest()
    assert b64decode(first.removeprefix("v1,")) == expected


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_key_of_an_allowed_size_comes_back_from_its_secret(size: int) -> None:
    key = bytes(range(size))
    assert key_of(secret_of(key)) == key


@pytest.mark.parametrize(
    "secret",
    ["", PREFIX, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", PREFIX + "?" * 40, SECRET + "=", SECRET + "\n",
     PREFIX + b64encode(b"x" * 23).decode(), PREFIX + b64encode(b"x" * 65).decode(),
     PREFIX + "é" * 32],
)  # fmt: skip
def test_other_secrets_are_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(SecretRefused) as refused:
        key_of(secret)
    rest = secret.removeprefix(PREFIX).strip()
    assert not rest or rest not in str(refused.value)
    assert "openssl rand" in str(refused.value)
