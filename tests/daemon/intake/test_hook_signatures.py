"""Signatures of hooks: what their senders publish as examples is taken, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from typing import Any

import pytest

from daemon.intake.hook_signatures import check_signature
from daemon.schemas.errors import ApiError
from delivery.push.signatures import signature_headers
from ledger.types import HookSettings

S = 1_000


class Hook:
    """A hook as it was sent; ``changed`` is another one that differs in one thing."""

    def __init__(
        self, asked: HookSettings, secret: str, headers: dict[str, str], body: bytes, at_s: int = 0
    ) -> None:
        self.parts: dict[str, Any] = {
            "asked": asked, "secrets": (secret,), "headers": headers, "body": body,
            "now_ms": at_s * S,
        }  # fmt: skip

    def check(self, **changed: Any) -> None:
        check_signature("t", **{**self.parts, **changed})

    def refused(self, **changed: Any) -> str:
        with pytest.raises(ApiError) as error:
            self.check(**changed)
        assert (error.value.status, error.value.code) == (403, "bad_signature")
        assert error.value.message.endswith("nothing was stored")
        secrets = changed.get("secrets", self.parts["secrets"])
        assert not any(each in error.value.message for each in secrets)
        return error.value.message


# From GitHub's page "Validating webhook deliveries".
GITHUB = Hook(
    HookSettings("github"), "It's a Secret to Everybody",
    {"x-hub-signature-256":
     "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
    b"Hello, World!",
)  # fmt: skip
# From the documents of Svix, who began Standard Webhooks.
STANDARD = Hook(
    HookSettings("standard"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
     "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
    b'{"test": 2432232314}', 1_614_265_330,
)  # fmt: skip
# Stripe publishes no example with its secret: this is what its page says, step by step.
STRIPE_SECRET = "whsec_test_secret"
STRIPE_BODY = b'{\n  "id": "evt_test_webhook",\n  "object": "event"\n}'
STRIPE = Hook(
    HookSettings("stripe"), STRIPE_SECRET,
    {"stripe-signature": "t=1492774577,v0=6ffbb59b,v1="
     + hmac.new(STRIPE_SECRET.encode(), b"1492774577." + STRIPE_BODY, hashlib.sha256).hexdigest()},
    STRIPE_BODY, 1_492_774_577,
)  # fmt: skip
BARE = Hook(
    HookSettings("hmac", "X-Shopify-Hmac-Sha256"), "hush",
    {"x-shopify-hmac-sha256":
     b64encode(hmac.digest(b"hush", b"<a/>", "sha256")).decode()},
    b"<a/>",
)  # fmt: skip
ALL = [
    pytest.param(hook, id=hook.parts["asked"].scheme) for hook in (GITHUB, STANDARD, STRIPE, BARE)
]


@pytest.mark.parametrize("hook", ALL)
def test_what_its_sender_signed_is_taken_and_no_other_body_or_secret(hook: Hook) -> None:
    hook.check()
    old = hook.parts["secrets"][0]
    other = "whsec_" + b64encode(b"x" * 32).decode()
    hook.check(secrets=(other, old))
    hook.check(secrets=(old, other))
    assert "compare the secret at the sender" in hook.refused(secrets=(other,))
    hook.refused(secrets=())
    hook.refused(body=hook.parts["body"] + b"\n")
    hook.refused(body=b"")


@pytest.mark.parametrize("hook", ALL)
def test_a_missing_header_is_named_and_no_text_is_a_signature_by_mistake(hook: Hook) -> None:
    headers = hook.parts["headers"]
    for name in headers:
        without = {each: value for each, value in headers.items() if each != name}
        assert name in hook.refused(headers=without)
    signed = next(name for name in headers if "signature" in name or "hmac" in name)
    good = headers[signed]
    for bad in ("", "sha256=", "v1,", "t=1492774577,v1=", good[:-4], good[:-1] + "\xe9", "=" * 44):
        hook.refused(headers={**headers, signed: bad})


@pytest.mark.parametrize("hook", [STANDARD, STRIPE], ids=["standard", "stripe"])
def test_a_time_that_is_too_far_off_is_refused_before_and_after(hook: Hook) -> None:
    now_ms = hook.parts["now_ms"]
    for off_s in (-300, 300):
        hook.check(now_ms=now_ms + off_s * S)
    for off_s in (-301, 301):
        said = hook.refused(now_ms=now_ms + off_s * S)
        assert "301 s off" in said and "tolerance_s = 300" in said
    hook.check(
        asked=HookSettings(hook.parts["asked"].scheme, tolerance_s=301), now_ms=now_ms + 301 * S
    )


def test_another_time_under_the_same_signature_is_refused() -> None:
    for hook, name in ((STANDARD, "webhook-timestamp"), (STRIPE, "stripe-signature")):
        headers = hook.parts["headers"]
        later = headers[name].replace("30", "31", 1).replace("577", "578", 1)
        assert later != headers[name]
        hook.refused(headers={**headers, name: later})


def test_one_of_several_signatures_is_enough() -> None:
    headers = STANDARD.parts["headers"]
    good = headers["webhook-signature"]
    several = f"v1a,AAAA v1,{b64encode(bytes(32)).decode()} {good}"
    STANDARD.check(headers={**headers, "webhook-signature": several})
    text = STRIPE.parts["headers"]["stripe-signature"]
    STRIPE.check(headers={"stripe-signature": text.replace("v1=", f"v1={'00' * 32},v1=")})


def test_hex_with_and_without_its_prefix_and_base64_are_the_same_signature() -> None:
    digest = hmac.digest(b"hush", b"<a/>", "sha256")
    for text in (digest.hex(), f"sha256={digest.hex()}", digest.hex().upper(),
                 b64encode(digest).decode()):  # fmt: skip
        BARE.check(headers={"x-shopify-hmac-sha256": text})


def test_what_push_signs_is_taken() -> None:
    secret = "whsec_" + b64encode(b"k" * 32).decode()
    headers = signature_headers("7-0-1", 1_000_000 * S, b"[]", [secret])
    Hook(HookSettings("standard"), secret, headers, b"[]", 1_000_000).check()
