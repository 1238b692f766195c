"""Changes of the file of tokens as they are asked for: by ``headgate tokens`` itself, or by a
daemon for it, whose user alone may have rights to the file."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from daemon.access.token_file import (
    ReadBefore,
    Scope,
    Token,
    TokenFile,
    TokenFileError,
    check_lifetime,
    read_tokens,
)
from daemon.config.limits import check_limit, limit_text


class TokenRow(Struct, frozen=True):
    """A token as it is shown: without its secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...]
    created: datetime
    expires: datetime | None
    limits: dict[str, str]
    certificate: str


class NewToken(TokenRow, frozen=True):
    """A token with the text that its bearer sends, which is shown once."""

    token: str


class TokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A token that is wanted."""

    name: str
    scopes: list[Scope]
    topics: tuple[str, ...] = ("*",)
    expires_in_s: float | None = None
    limits: dict[str, float] = {}
    certificate: str = ""


class TokensRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One change, or with neither a list of all tokens."""

    create: TokenRequest | None = None
    revoke: str | None = None


class TokensAnswer(Struct, frozen=True):
    """The token that was made; that which was revoked; or all."""

    made: NewToken | None = None
    tokens: list[TokenRow] = []


def apply(file: TokenFile, asked: TokensRequest, before: ReadBefore | None = None) -> TokensAnswer:
    """Does what is asked. Blocks for a few ms. Raises TokenFileError, also for a change of an older
    file than was read ``before``: its generation would rise, and its tokens be in force again."""
    if before is not None and (asked.create is not None or asked.revoke is not None):
        before.check(read_tokens(file.path).generation)
    if asked.create is not None:
        return TokensAnswer(made=_create(file, asked.create))
    if asked.revoke is not None:
        return TokensAnswer(tokens=[_row(file.revoke(asked.revoke))])
    return TokensAnswer(tokens=[_row(token) for token in file.tokens()])


def _create(file: TokenFile, asked: TokenRequest) -> NewToken:
    lifetime = None
    try:
        for name, number in asked.limits.items():
            check_limit(name, number)
        if asked.expires_in_s is not None:
            lifetime = timedelta(seconds=asked.expires_in_s)
            check_lifetime(lifetime)
    except (ValueError, OverflowError) as error:
        raise TokenFileError(str(error)) from None
    token, text = file.issue(
        asked.name, asked.scopes, asked.topics, lifetime, asked.limits, asked.certificate
    )
    return NewToken(**msgspec.structs.asdict(_row(token)), token=text)


def _row(token: Token) -> TokenRow:
    limits = {name: limit_text(name, number) for name, number in token.limits.items()}
    return TokenRow(
        token.id,
        token.name,
        token.scopes,
        token.topics,
        token.created,
        token.expires,
        limits,
        token.certificate,
    )
