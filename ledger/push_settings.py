"""The settings of a push subscription: where its records are sent, how, and how fast.

What is secret is not among them: signing secrets and the values of own headers are in a file next
to the ledger, under ``secrets_id`` (images of the ledger go to the store).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta, Struct

RATE_MIN = 1 / 60
RATE_MAX = 100_000
SENDERS_MAX = 64
PushFormat = Literal["binary", "structured", "batch"]

_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")  # RFC 3986
_HOST = re.compile(r"[0-9A-Za-z._:-]{1,253}")  # without the brackets of IPv6
_SHOWN_CHARACTERS_MAX = 100


class PushTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how the daemon's own senders deliver a subscription."""

    endpoint: Annotated[
        str, Meta(max_length=2_048, description="the URL, `http` or `https`, that gets the POSTs")
    ]
    rate_max: Annotated[
        float,
        Meta(
            ge=RATE_MIN, le=RATE_MAX,
            description="POSTs a second, of all senders together; they find out how many the"
            " receiver can take, and never send more than this",
        ),
    ] = 100.0  # fmt: skip
    senders: Annotated[
        int,
        Meta(
            ge=1, le=SENDERS_MAX,
            description="shards that send; they share `rate_max`, and each needs one a minute",
        ),
    ] = 1  # fmt: skip
    connections_max: Annotated[
        int, Meta(ge=1, le=256, description="POSTs that a sender has under way at a time")
    ] = 16
    timeout_ms: Annotated[
        int,
        Meta(ge=100, le=300_000, description="how long a POST may take, to the end of its answer"),
    ] = 10_000
    format: Annotated[
        PushFormat,
        Meta(
            description="`binary`: a record is the body, its attributes are headers; `structured`:"
            " one CloudEvents document for each record; `batch`: a list of them"
        ),
    ] = "binary"
    batch_max: Annotated[int, Meta(ge=1, le=1_000, description="records in a POST of `batch`")] = (
        100
    )
    batch_bytes_max: Annotated[
        int, Meta(ge=1_024, le=4 << 20, description="and their bytes; a larger record goes alone")
    ] = 256 << 10
    batch_wait_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="how long a batch waits for more records")
    ] = 100
    headers: Annotated[
        list[str], Meta(description="names of own headers; their values are not shown")
    ] = []
    signed: Annotated[bool, Meta(description="POSTs are signed (Standard Webhooks)")] = False
    secrets_count: Annotated[
        int, Meta(description="secrets that sign each POST: more than one during a rotation")
    ] = 0


class PushSettings(PushTarget, frozen=True, forbid_unknown_fields=True):
    """The same, with the name under which its secrets are kept; null: it has none."""

    secrets_id: str | None = None


class SettingProblem(NamedTuple):
    """Why a setting cannot be: what follows its name in a sentence."""

    field: str
    says: str


def problem_of(push: PushSettings) -> SettingProblem | None:
    """What is wrong with settings whose fields are each within their limits; None: nothing."""
    problem = endpoint_problem(push.endpoint)
    if problem:
        return SettingProblem("endpoint", problem)
    if push.senders > push.rate_max * 60:
        return SettingProblem(
            "senders",
            f"is {push.senders}, but each sender needs one POST a minute, and rate_max allows"
            f" {push.rate_max * 60:g}; use fewer senders, or raise rate_max",
        )
    return None


def endpoint_problem(endpoint: str) -> str:
    """Why a text is not the URL of a receiver; empty if it is one."""
    shown = f"must be a URL like https://example.com/path, got {_shown(endpoint)}"
    if "@" in re.split("[/?#]", endpoint.partition("://")[2], maxsplit=1)[0]:
        # Not shown: it is a secret.
        return "must not have a user or password in it; put an Authorization header into headers"
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        return f"{shown}: {error}"
    return f"{shown}{problem}" if (problem := _url_problem(endpoint, parts, port)) else ""


def _url_problem(endpoint: str, parts: SplitResult, port: int | None) -> str:
    if parts.scheme not in ("http", "https"):
        return "; it must begin with http:// or https://"
    if not _URL.fullmatch(endpoint):
        return ", which has characters that a URL must have percent-encoded"
    if not parts.hostname or not _HOST.fullmatch(parts.hostname):
        return ", which names no host"
    if port == 0:
        return ", whose port is 0"
    if "#" in endpoint:
        return ", which has a fragment (#...), and that is never sent"
    return ""


def _shown(endpoint: str) -> str:
    cut = endpoint[:_SHOWN_CHARACTERS_MAX]
    return repr(cut) + ("..." if len(endpoint) > len(cut) else "")
