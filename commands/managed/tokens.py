"""``headgate tokens``: create, list and revoke the tokens that clients need.

The commands change the file that the daemon's key ``auth_file`` names; the daemon notices within a
second. They ask no daemon, so the first token can be made before one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct

from commands.client.reader import DURATION, DURATION_MS
from commands.output import show, table
from commands.shell.exits import CommandFailed
from commands.shell.options import output_option, parsed_by
from daemon.access.token_file import Scope, Token, TokenFile, TokenFileError
from daemon.config.limits import BY_NAME as LIMITS
from daemon.config.limits import limit_text, read_limits

Function = TypeVar("Function", bound=Callable[..., Any])


class TokenRow(Struct, frozen=True):
    """A token as the commands show it: without its secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...]
    created: datetime
    expires: datetime | None
    limits: dict[str, str]


class NewToken(TokenRow, frozen=True):
    """A token with the text that its bearer sends, which is shown once."""

    token: str


def _scopes(text: str) -> tuple[Scope, ...]:
    names = [part.strip() for part in text.split(",")]
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
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a duration like 12h or 30d, got {text!r}")
    try:
        lifetime = timedelta(milliseconds=float(match[1]) * DURATION_MS[match[2]])
        if lifetime > timedelta(days=36_500):
            raise OverflowError
    except OverflowError:
        raise ValueError(f"must be at most 36500d, got {text!r}") from None
    return lifetime


def _file_option(function: Function) -> Function:
    return click.option(
        "--auth-file", "auth_file", envvar="HEADGATE_AUTH_FILE", show_envvar=True, required=True,
        type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        help="The file of tokens, as the daemon's key auth_file names it.",
    )(function)  # fmt: skip


@click.group()
def tokens() -> None:
    """Create, list and revoke the tokens that clients need.

    \b
    Examples:
      headgate tokens create shop --scope produce --topics 'orders*' --auth-file tokens.json
      headgate tokens ls --auth-file tokens.json
      headgate tokens revoke shop --auth-file tokens.json
    """


@tokens.command("create")
@click.argument("name")
@click.option(
    "--scope", "scopes", required=True, metavar="SCOPE[,SCOPE...]", callback=parsed_by(_scopes),
    help=f"What its bearer may do: {', '.join(Scope)}.",
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
@_file_option
@output_option
def tokens_create(
    name: str, scopes: tuple[Scope, ...], topics: Sequence[str], lifetime: timedelta | None,
    limits: dict[str, float], auth_file: Path, as_json: bool,
) -> None:  # fmt: skip
    """Create a token and print it. Nobody can print it again.

    \b
    Examples:
      headgate tokens create shop --scope produce --topics 'orders*' --auth-file tokens.json
      headgate tokens create dashboard --scope metrics,read --expires 30d --auth-file tokens.json
      headgate tokens create guest --scope produce --limit requests=100/s --limit bytes_in=1MiB/s \
        --auth-file tokens.json
    """
    try:
        token, text = TokenFile(auth_file).issue(name, scopes, topics, lifetime, limits)
    except TokenFileError as error:
        raise CommandFailed(str(error)) from error
    shown = NewToken(**msgspec.structs.asdict(_row(token)), token=text)
    show(shown, as_json, lambda made: made.token)


@tokens.command("ls")
@_file_option
@output_option
def tokens_ls(auth_file: Path, as_json: bool) -> None:
    """List all tokens, without their secrets.

    \b
    Example:
      headgate tokens ls --auth-file tokens.json
    """
    try:
        found = TokenFile(auth_file).tokens()
    except TokenFileError as error:
        raise CommandFailed(str(error)) from error
    show([_row(token) for token in found], as_json, _list_text)


@tokens.command("revoke")
@click.argument("name")
@_file_option
@output_option
def tokens_revoke(name: str, auth_file: Path, as_json: bool) -> None:
    """Revoke a token, by its name or id: within two seconds it opens and receives nothing more.

    \b
    Example:
      headgate tokens revoke shop --auth-file tokens.json
    """
    try:
        revoked = TokenFile(auth_file).revoke(name)
    except TokenFileError as error:
        raise CommandFailed(str(error), hint="`headgate tokens ls` lists them") from error
    show(_row(revoked), as_json, lambda row: f"revoked {row.name} ({row.id})")


def _row(token: Token) -> TokenRow:
    limits = {name: limit_text(name, value) for name, value in token.limits.items()}
    return TokenRow(
        token.id, token.name, token.scopes, token.topics, token.created, token.expires, limits
    )


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
