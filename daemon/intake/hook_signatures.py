"""Whether a hook is signed as its topic asks: the schemes of GitHub, Stripe, Standard Webhooks, and
a bare HMAC of the body. Pure.

All are HMAC-SHA256. What is signed is the body as it was before any Content-Encoding, and with
``stripe`` and ``standard`` a time: what was overheard cannot be sent again after tolerance_s.
Until then, what these two sign names the delivery, and the dedupe window keeps it from being stored
twice. What ``github`` and ``hmac`` sign names no delivery and no time: it can be sent again.
Signatures are compared in constant time, with those of all secrets.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping, Sequence

from daemon.schemas.errors import ApiError
from delivery.push.signatures import key_of
from ledger.types import HookSettings

GITHUB, STRIPE, STANDARD = "x-hub-signature-256", "stripe-signature", "webhook-signature"
# Senders have one for each secret during a change.
SIGNATURES_MAX = 16


def check_signature(
    topic: str,
    asked: HookSettings,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    now_ms: int,
) -> str | None:
    """Raises ApiError 403 unless the hook is signed with one of the secrets. ``headers`` have
    lower-case names. Returns what its sender has signed besides the body that tells it from others:
    the id of ``standard``, or the time of ``stripe``; None if there is nothing."""
    signed = [body]
    named: str | None = None
    if asked.scheme == "stripe":
        fields = _fields(_header(topic, STRIPE, headers))
        time = next((value for name, value in fields if name == "t"), "")
        signatures = [value for name, value in fields if name == "v1"]
        signed = [time.encode(), b".", body]
        named = time
        _check_time(topic, STRIPE, time, asked.tolerance_s, now_ms)
    elif asked.scheme == "standard":
        time = _header(topic, "webhook-timestamp", headers)
        named = _header(topic, "webhook-id", headers)
        texts = _header(topic, STANDARD, headers).split(" ")
        signatures = [each.removeprefix("v1,") for each in texts if each.startswith("v1,")]
        signed = [named.encode("latin-1"), b".", time.encode("latin-1"), b".", body]
        _check_time(topic, "webhook-timestamp", time, asked.tolerance_s, now_ms)
    else:
        name = GITHUB if asked.scheme == "github" else asked.header.lower()
        signatures = [_header(topic, name, headers).removeprefix("sha256=")]
    given = [_bytes(each) for each in signatures[:SIGNATURES_MAX]]
    for secret in secrets:
        key = key_of(secret) if asked.scheme == "standard" else secret.encode()
        made = hmac.new(key, digestmod="sha256")
        for piece in signed:
            made.update(piece)
        if any(hmac.compare_digest(made.digest(), each) for each in given):
            return named
    raise _refused(
        topic,
        f"no signature ({asked.scheme}) is that of this body with a secret of topic {topic!r}:"
        " compare the secret at the sender with the topic's, and let no proxy change the body",
    )


def _header(topic: str, name: str, headers: Mapping[str, str]) -> str:
    value = headers.get(name)
    if value is None:
        raise _refused(
            topic, f"topic {topic!r} takes signed hooks only, and the header {name} is missing"
        )
    return value


def _fields(text: str) -> list[tuple[str, str]]:
    """The pairs of ``t=1,v1=ab,v1=cd``."""
    pairs = [each.strip().partition("=") for each in text.split(",")]
    return [(name, value) for name, _, value in pairs]


def _check_time(topic: str, header: str, text: str, tolerance_s: int, now_ms: int) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise _refused(topic, f"{header} must have the seconds since 1970, got {text[:40]!r}")
    off_s = abs(now_ms // 1_000 - int(text))
    if off_s > tolerance_s:
        raise _refused(
            topic,
            f"the signature in {header} is of a time that is {off_s} s off, the limit is"
            f" tolerance_s = {tolerance_s}; the sender must sign each attempt anew, and both clocks"
            " be right",
        )


def _bytes(text: str) -> bytes:
    """A signature in hex (64 characters) or base64 (44); empty if it is neither."""
    try:
        return bytes.fromhex(text) if len(text) == 64 else b64decode(text, validate=True)
    except (ValueError, Error):
        return b""


def _refused(topic: str, why: str) -> ApiError:
    return ApiError(403, "bad_signature", f"{why}; nothing was stored", {"topic": topic})
