"""Options for the push settings of a subscription."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TypeVar, get_args

import click

from commands.quantities import Bytes, Milliseconds
from commands.shell.options import within
from commands.shell.secret_lines import secret_lines
from ledger.delivery.push_settings import RATE_MAX, RATE_MIN, PushFormat, PushTarget

Function = TypeVar("Function", bound=Callable[..., Any])
NO_RECEIVER = "none"  # the value that ends the push
NO_TYPE = "none"  # events have the type that they have by default

_PLAIN = {
    "push_rate_max": "rate_max",
    "push_rate_start": "rate_start",
    "push_senders": "senders",
    "push_connections_max": "connections_max",
    "push_timeout_ms": "timeout_ms",
    "push_format": "format",
    "push_batch_max": "batch_max",
    "push_batch_bytes_max": "batch_bytes_max",
    "push_batch_wait_ms": "batch_wait_ms",
    "push_type_from": "type_from",
}

_OPTIONS = (
    click.option("--push", metavar=f"URL|{NO_RECEIVER}",
                 help="Let the daemon POST the records to this URL."),
    click.option("--push-rate-max", type=within(RATE_MIN, RATE_MAX), metavar="N",
                 help="Most POSTs a second; the daemon finds out how many the receiver can take."),
    click.option("--push-rate-start", type=within(RATE_MIN, RATE_MAX), metavar="N",
                 help="POSTs a second to begin with; by default a fifth of the most."),
    click.option("--push-senders", type=click.IntRange(1), metavar="N",
                 help="Shards that send."),
    click.option("--push-connections-max", type=click.IntRange(1), metavar="N",
                 help="Most POSTs that a sender has under way at a time."),
    click.option("--push-timeout-ms", type=Milliseconds(1), metavar="DURATION",
                 help="How long a POST may take."),
    click.option("--push-format", type=click.Choice(get_args(PushFormat)),
                 help="How records are CloudEvents."),
    click.option("--push-batch-max", type=click.IntRange(1), metavar="N",
                 help="Most records in a POST of --push-format batch."),
    click.option("--push-batch-bytes-max", type=Bytes(1), metavar="SIZE",
                 help="Most bytes in it."),
    click.option("--push-batch-wait-ms", type=Milliseconds(0), metavar="DURATION",
                 help="How long it waits for more records."),
    click.option("--push-type-from", metavar=f"tag|data.FIELD|{NO_TYPE}",
                 help="What the type of an event is; by default headgate.record."),
    click.option("--push-secrets", metavar="FILE",
                 help="Sign with these secrets: whsec_... in lines, the newest first. - is stdin."),
    click.option("--push-unsigned", is_flag=True, help="Do not sign any more."),
    click.option("--push-headers", metavar="FILE",
                 help="Send these headers, too: Name: value in lines. - is stdin."),
    click.option("--push-header-remove", multiple=True, metavar="NAME",
                 help="Do not send this header any more."),
)  # fmt: skip


def push_options(function: Function) -> Function:
    """Options for push settings; those not given are None, False or empty."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def take_push_settings(options: MutableMapping[str, Any]) -> dict[str, Any]:
    """``{"push": ...}`` as the API takes it, or nothing if no such option was given. Takes these
    options out of ``options``. Raises click.UsageError."""
    endpoint = options.pop("push")
    plain = {field: options.pop(option) for option, field in _PLAIN.items()}
    push = {field: value for field, value in plain.items() if value is not None}
    if push.get("type_from") == NO_TYPE:
        push["type_from"] = None
    secrets, headers = options.pop("push_secrets"), options.pop("push_headers")
    is_unsigned, removed = options.pop("push_unsigned"), options.pop("push_header_remove")
    if secrets is not None and is_unsigned:
        raise click.UsageError("use only one of --push-secrets and --push-unsigned")
    if secrets == "-" and headers == "-":
        raise click.UsageError("only one of --push-secrets and --push-headers can be - (stdin)")
    if endpoint == NO_RECEIVER:
        if push or secrets or headers or is_unsigned or removed:
            raise click.UsageError(f"--push {NO_RECEIVER} ends the push; use it alone")
        return {"push": None}
    if endpoint is not None:
        push["endpoint"] = endpoint
    if secrets is not None:
        push["secrets"] = _secrets(secret_lines("--push-secrets", secrets))
    elif is_unsigned:
        push["secrets"] = []
    wanted: dict[str, str | None] = dict.fromkeys(removed)
    if headers is not None:
        wanted |= _headers(secret_lines("--push-headers", headers))
    if wanted:
        push["headers"] = wanted
    return {"push": push} if push else {}


def shown_target(push: dict[str, Any] | None) -> PushTarget | None:
    """What the daemon would show of push settings if a subscription were created with them. The
    values of secrets are not in it."""
    if push is None or "endpoint" not in push:
        return None
    given = dict(push)
    secrets, headers = given.pop("secrets", []), given.pop("headers", {})
    return PushTarget(
        **given,
        headers=sorted(name.lower() for name, value in headers.items() if value is not None),
        signed=bool(secrets),
        secrets_count=len(secrets),
    )


def _secrets(lines: Iterable[tuple[int, str]]) -> list[str]:
    return [line for _, line in lines]


def _headers(lines: Iterable[tuple[int, str]]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for number, line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(
                f"line {number} is not a header like Name: value", param_hint="--push-headers"
            )
        found[name.strip()] = value.strip()
    return found
