"""``headgate tokens``: create, list and revoke the tokens that clients need.

They change the file that the daemon's key ``auth_file`` names, and need no daemon then; or they ask
the daemon that runs, through its Unix socket, to do so. It notices within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from commands.output import show, table
from commands.quantities import duration_ms
from commands.shell.exits import UNREACHABLE, CommandFailed
from commands.shell.options import config_option, data_option, loaded, output_option, parsed_by
from compaction.access.http_calls import DaemonRefused, DaemonUnreachable, call, socket_address
from daemon.access.token_changes import (
    TokenRequest,
    TokenRow,
    TokensAnswer,
    TokensRequest,
    apply,
)
from daemon.access.token_file import (
    LIFETIME_MAX,
    Scope,
    TokenFile,
    TokenFileError,
    check_lifetime,
)
from daemon.config.limits import BY_NAME as LIMITS
from daemon.config.limits import read_limits

Function = TypeVar("Function", bound=Callable[..., Any])


def _scopes(texts: Sequence[str]) -> tuple[Scope, ...]:
    names = [part.strip() for text in texts for part in text.split(",")]
    unknown = [name for name in names if name not in list(Scope)]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a scope; the scopes are {', '.join(Scope)}")
    return tuple(Scope(name) for name in names)


def _limits(texts: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        found |= read_limits(text)
    return found


def _lifetime(text: str) -> timedelta:
    lifetime_ms = duration_ms(text)
    try:
        lifetime = timedelta(milliseconds=lifetime_ms)
        check_lifetime(lifetime)
    except (OverflowError, TokenFileError):
        raise ValueError(f"must be from 1s to {LIFETIME_MAX.days}d, got {text!r}") from None
    return lifetime


def _file_options(function: Function) -> Function:
    file_option = click.option(
        "--auth-file", "auth_file", envvar="HEADGATE_AUTH_FILE", show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        help="The file of tokens; without it, the daemon with this data directory is asked.",
    )  # fmt: skip
    return file_option(data_option(config_option(function)))


def _apply(
    asked: TokensRequest, auth_file: Path | None, data: str | None, config_file: str | None
) -> TokensAnswer:
    """What became of a change: of the file itself, or by the daemon that runs."""
    if auth_file is not None:
        try:
            return apply(TokenFile(auth_file), asked)
        except TokenFileError as error:
            raise CommandFailed(str(error)) from error
    address = socket_address(loaded(config_file, (), data, None).data_dir)
    try:
        # Once: a token that was made and not told would be in the way of a second try.
        answer = call(address, "POST", "/v0/admin/tokens", msgspec.json.encode(asked), once=True)
    except DaemonUnreachable as error:
        raise CommandFailed(
            str(error),
            hint="--data is the data directory of a daemon that runs; without one, name the file"
            " with --auth-file",
            exit_code=UNREACHABLE,
        ) from error
    except DaemonRefused as error:
        raise CommandFailed(error.message) from error
    return msgspec.json.decode(answer, type=TokensAnswer)


@click.group()
def tokens() -> None:
    """Create, list and revoke the tokens that clients need.

    \b
    Examples:
      headgate tokens create shop --scope produce --topics 'orders*' --auth-file tokens.json
      headgate tokens ls --data /var/lib/headgate
      headgate tokens revoke shop --data /var/lib/headgate
    """


@tokens.command("create")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, metavar="SCOPE[,SCOPE...]",
    callback=parsed_by(_scopes),
    help=f"What its bearer may do: {', '.join(Scope)}; repeatable.",
)  # fmt: skip
@click.option(
    "--topics", "topics", multiple=True, default=("*",), show_default=True, metavar="PATTERN",
    help="In which topics; * is any text, ? any character; repeatable.",
)  # fmt: skip
@click.option(
    "--expires", "lifetime", metavar="DURATION", callback=parsed_by(_lifetime),
    help="After 12h, 30d; by default never.",
)  # fmt: skip
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE", callback=parsed_by(_limits),
    help=f"How much its bearers may use together: {', '.join(LIMITS)}; repeatable.",
)  # fmt: skip
@click.option(
    "--certificate", default="", metavar="NAME",
    help="Also for clients whose TLS certificate has this name (DNS, email or URI) and who send no"
    " token; the daemon needs tls_client_ca.",
)  # fmt: skip
@_file_options
@output_option
def tokens_create(
    name: str, scopes: tuple[Scope, ...], topics: Sequence[str], lifetime: timedelta | None,
    limits: dict[str, float], certificate: str, auth_file: Path | None,
    data: str | None, config_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Create a token and print it. Nobody can print it again.

    \b
    Examples:
      headgate tokens create shop --scope produce --topics 'orders*' --auth-file tokens.json
      headgate tokens create dashboard --scope metrics,read --expires 30d --auth-file tokens.json
      headgate tokens create guest --scope produce --limit requests=100/s --limit streams=9
    """
    lifetime_s = None if lifetime is None else lifetime.total_seconds()
    wanted = TokenRequest(name, list(scopes), tuple(topics), lifetime_s, limits, certificate)
    made = _apply(TokensRequest(create=wanted), auth_file, data, config_file).made
    assert made is not None  # what was asked for
    show(made, as_json, lambda made: made.token)


@tokens.command("ls")
@_file_options
@output_option
def tokens_ls(
    auth_file: Path | None, data: str | None, config_file: str | None, as_json: bool
) -> None:
    """List all tokens, without their secrets.

    \b
    Example:
      headgate tokens ls --auth-file tokens.json
    """
    show(_apply(TokensRequest(), auth_file, data, config_file).tokens, as_json, _list_text)


@tokens.command("revoke")
@click.argument("name")
@_file_options
@output_option
def tokens_revoke(
    name: str, auth_file: Path | None, data: str | None, config_file: str | None, as_json: bool
) -> None:
    """Revoke a token, by its name or id: within two seconds it opens and receives nothing more.

    \b
    Example:
      headgate tokens revoke shop --auth-file tokens.json
    """
    (revoked,) = _apply(TokensRequest(revoke=name), auth_file, data, config_file).tokens
    show(revoked, as_json, lambda row: f"revoked {row.name} ({row.id})")


def _list_text(rows: list[TokenRow]) -> str:
    return table(
        ["name", "scopes", "topics", "limits", "expires", "id"],
        [
            [
                row.name,
                ",".join(row.scopes),
                " ".join(row.topics),
                _limits_text(row.limits),
                _time(row.expires),
                row.id,
            ]
            for row in rows
        ],
    )


def _limits_text(limits: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in limits.items()) or "none"


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
