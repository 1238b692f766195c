"""What the sender of a request may do. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.access.allowance import Allowance, Allowances
from daemon.access.token_file import Scope, Token
from daemon.schemas.errors import ApiError
from delivery.filters import compiled
from ledger.types import TokenName
from shards.boards.namecounts import TokenTally


class Rights:
    """The rights of a token's bearer, or of all clients where there are no tokens. ``live`` is
    False from the revocation or expiry of the token on; heads, streams and requests refer to one
    object for each token. ``allowance`` is what limits its bearers, None if nothing does; ``tally``
    is where their traffic is counted, None if nowhere."""

    __slots__ = (
        "_beginnings",
        "_matchers",
        "_names",
        "_of_all",
        "allowance",
        "live",
        "scopes",
        "tally",
        "token",
        "who",
    )

    def __init__(
        self,
        token: Token | None,
        scopes: Iterable[Scope],
        topics: Iterable[str],
        allowance: Allowance | None = None,
    ) -> None:
        self.token = None if token is None else TokenName(token.id, token.name)
        self.who = "everybody" if token is None else f"token {token.name!r}"
        self.scopes = frozenset(scopes)
        self._of_all = "*" in topics
        # A page of metrics asks for thousands of names, and most patterns are a name or begin one.
        wild = {each: [i for i, sign in enumerate(each) if sign in "*?"] for each in topics}
        self._names = frozenset(each for each, at in wild.items() if not at)
        self._beginnings = tuple(
            each[:-1] for each, at in wild.items() if at == [len(each) - 1] and each[-1] == "*"
        )
        rest = wild.keys() - self._names - {f"{each}*" for each in self._beginnings}
        self._matchers = [compiled(pattern) for pattern in sorted(rest)]
        self.live = True
        self.allowance = allowance
        self.tally: TokenTally | None = None

    def covers(self, topic: str) -> bool:
        """Whether a name is among the topics of the token. The daemon's own cursors, which have a
        ``/`` in their names, are for tokens of all topics: their names tell of what they belong
        to."""
        return self._of_all or (
            "/" not in topic
            and (
                topic in self._names
                or topic.startswith(self._beginnings)
                or any(matches(topic) for matches in self._matchers)
            )
        )

    @property
    def is_for_all_topics(self) -> bool:
        """Whether it is for the topics of everybody."""
        return self._of_all

    def check_scope(self, *needed: Scope) -> None:
        """Raises ApiError 403 unless the token has one of these."""
        if self.scopes.isdisjoint(needed):
            self.check_live()
            wanted = " or ".join(needed)
            raise ApiError(
                403,
                "forbidden",
                f"this needs a token with the scope {wanted}, and {self.who} has"
                f" {', '.join(sorted(self.scopes))}",
                {"scopes": sorted(needed)},
            )

    def check_topics(self, *names: str) -> None:
        """Raises ApiError 403 unless the token is for all of these. The answer is the same whether
        they exist or not."""
        for name in names:
            if not self.covers(name):
                raise ApiError(
                    403,
                    "forbidden",
                    f"the topics of {self.who} do not include {name[:255]!r}: use a token that is"
                    " for it",
                )

    def check_all_topics(self) -> None:
        """Raises ApiError 403 unless the token is for the topics of everybody."""
        if not self._of_all:
            raise ApiError(
                403,
                "forbidden",
                f"this concerns all topics, and {self.who} is for some of them: use a token for all"
                " (`headgate tokens create` without --topics)",
            )

    def check_live(self) -> None:
        """Raises ApiError 401 once the token is revoked or expired."""
        if not self.live:
            raise unauthenticated("the token was revoked, or it has expired")

    def shown(self, error: ApiError) -> ApiError:
        """An error as its bearer gets it: without topics that the token is not for."""
        if self._of_all or all(self.covers(name) for name in error.names):
            return error
        return ApiError(
            error.status,
            error.code,
            f"this cannot be done because of topics that {self.who} is not for; who has a token for"
            " all topics is told which",
            close=error.close,
        )


def unauthenticated(why: str) -> ApiError:
    """401: the daemon does not know who asks."""
    return ApiError(
        401,
        "unauthenticated",
        f"{why}; send one that `headgate tokens create` printed, as `Authorization: Bearer TOKEN`",
    )


def rights_of(token: Token, allowances: Allowances | None = None) -> Rights:
    """Those of a token's bearer; without ``allowances``, nothing limits it."""
    allowance = None if allowances is None else allowances.of_token(token)
    return Rights(token, token.scopes, token.topics, allowance)


def of_everybody(allowances: Allowances | None) -> Rights:
    """Those of a daemon without tokens."""
    if allowances is None or allowances.of_all is None:
        return EVERYTHING
    return Rights(None, Scope, ("*",), allowances.of_all)


EVERYTHING = Rights(None, Scope, ("*",))
"""Of the Unix socket, which only the daemon's user can open, and of a daemon without tokens."""
