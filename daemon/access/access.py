"""Finds the rights of a request: the one place that knows how its sender is authenticated.

A head is asked about once, before anything else is done for it, and is kept with its rights
(daemon/http/head.py). The file of tokens is looked at twice a second and read again when it has
changed. What cannot be read leaves the tokens in force that were; it is logged once.
"""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from daemon.access.allowance import Allowances
from daemon.access.audit import AuditLog
from daemon.access.rights import Rights, of_everybody, rights_of, unauthenticated
from daemon.access.tickets import KEY_BYTES, Tickets
from daemon.access.token_file import (
    ID_BYTES,
    ReadBefore,
    Token,
    TokenFileError,
    Tokens,
    read_tokens,
    split_token,
)
from daemon.config import Config
from daemon.schemas.errors import ApiError, invalid
from ledger.private_files import signature
from ledger.types import TokenName
from shards.boards.namecounts import TokenTally
from shards.clock import monotonic_ns, wall_ms

log = logging.getLogger(__name__)

LOOK_NS = 500_000_000


class _Known:
    """A token that is in force, and the rights that its heads have."""

    __slots__ = ("rights", "token")

    def __init__(self, token: Token, allowances: Allowances | None) -> None:
        self.token = token
        self.rights = rights_of(token, allowances)


class Access:
    """The tokens of one process, which ``allowances`` limit. Without a ``path`` there are none, and
    everybody may do everything. ``ticket_key`` is that of all shards. Changes of tokens go to
    ``audit``; ``tally_of`` says where the traffic of a token of this name is counted. Raises
    TokenFileError if the file cannot be used."""

    def __init__(
        self,
        path: Path | None,
        now_ms: Callable[[], int] = wall_ms,
        ticket_key: bytes | None = None,
        read_before: ReadBefore | None = None,
        allowances: Allowances | None = None,
        audit: AuditLog | None = None,
        tally_of: Callable[[str], TokenTally] | None = None,
    ) -> None:
        self._path = path
        self._tally_of = tally_of
        self._allowances = allowances
        self._audit = audit
        self._everybody = of_everybody(allowances)
        self._now_ms = now_ms
        self._tickets = Tickets(ticket_key or secrets.token_bytes(KEY_BYTES))
        self._known: dict[str, _Known] = {}
        self._by_certificate: dict[str, _Known] = {}
        self._generation = 0
        self._seen: object = None
        self.version = 0  # changes with what ``why_gone`` says
        self._look_at_ns = 0
        self._before = read_before
        self.problem = ""  # why the file cannot be used; what was read before is in force
        if path is not None:
            self._seen = signature(path, follow_link=False)
            self._take(self._first(path, read_before))

    @property
    def has_tokens(self) -> bool:
        """Whether clients need one."""
        return self._path is not None

    def of(self, headers: Mapping[str, str], client_names: Sequence[str] = ()) -> Rights:
        """The rights of a request with these headers, or without a token in them those of the
        names of the client's certificate. Raises ApiError 401 without a token that is in force,
        400 for two."""
        if self._path is None:
            return self._everybody
        header, key = headers.get("authorization"), headers.get("x-api-key")
        if header is not None and key is not None:
            raise _two_tokens()
        if header is not None:
            scheme, _, key = header.partition(" ")
            if scheme.lower() != "bearer":
                raise unauthenticated("Authorization must be a bearer token")
            key = key.strip()
        if key is None:
            known = self._of_certificate(client_names)
        else:
            known = self._of_key(key)
        if self._is_over(known, self._now_ms()):
            raise unauthenticated("the token has expired")
        return self._counted(known)

    @staticmethod
    def _is_over(known: _Known, now_ms: int) -> bool:
        """Whether it has expired; also until the next look if the clock was set back since."""
        return not known.rights.live or _has_expired(known.token, now_ms)

    def _counted(self, known: _Known) -> Rights:
        """Its rights. From their first head on, what is done with them is counted."""
        rights = known.rights
        if rights.tally is None and self._tally_of is not None:
            rights.tally = self._tally_of(known.token.name)
        return rights

    def _of_key(self, key: str) -> _Known:
        parts = split_token(key)
        known = None if parts is None else self._known.get(parts[0])
        if parts is None or known is None or not known.token.is_of(parts[1]):
            raise unauthenticated("this daemon does not know the token")
        return known

    def _of_certificate(self, names: Sequence[str]) -> _Known:
        for name in names:
            known = self._by_certificate.get(name)
            if known is not None:
                return known
        if names:
            raise unauthenticated(f"no token is for the certificate of {', '.join(names)[:255]}")
        raise unauthenticated("this daemon needs a token")

    def of_ticket(
        self, headers: Mapping[str, str], segments: Sequence[str], query: Mapping[str, str]
    ) -> Rights:
        """The rights of a request whose query has a ticket: those of the token that it stands
        for. Raises ApiError 401, or 400 if there is a token too."""
        if self._path is None:
            return self._everybody
        if "authorization" in headers or "x-api-key" in headers:
            raise _two_tokens()
        now_ms = self._now_ms()
        known = self._known.get(
            self._tickets.token_id(query["ticket"], segments, query, now_ms) or ""
        )
        if known is None or self._is_over(known, now_ms):
            raise ApiError(
                401,
                "unauthenticated",
                "the ticket is not for this path and query, or it has expired, or its token was"
                " revoked; ask for another one",
            )
        return self._counted(known)

    def ticket(
        self, rights: Rights, segments: Sequence[str], query: Mapping[str, str]
    ) -> tuple[str, int]:
        """A ticket for a stream's target, and when it expires. Raises ApiError 400 where there is
        no token that it could stand for."""
        rights.check_live()
        if rights.token is None and self._path is not None:
            raise invalid(
                "a ticket stands for a token: ask for it with one, not on the Unix socket"
            )
        token_id = "00" * ID_BYTES if rights.token is None else rights.token.id
        return self._tickets.issue(token_id, segments, query, self._now_ms())

    def why_gone(self, token: TokenName | None) -> str:
        """Why what was set up with this token must wait; empty while it is in force, and for what
        was set up without one."""
        if token is None or self._path is None:
            return ""
        known = self._known.get(token.id)
        if known is not None and known.rights.live:
            return ""
        how = "revoked" if known is None else "expired"
        return (
            f"token {how}: {token.name!r}, with which it was set up last; PUT it again with a token"
            " that is in force"
        )

    def look(self) -> bool:
        """Follows the file and the clock. Returns whether any rights are over."""
        path, now_ns = self._path, monotonic_ns()
        if path is None or now_ns < self._look_at_ns:
            return False
        self._look_at_ns = now_ns + LOOK_NS
        seen = signature(path, follow_link=False)
        ended = False
        if seen != self._seen:
            self._seen = seen
            try:
                if seen == errno.ENOENT:
                    raise TokenFileError(f"{path} is gone; put it back")
                content = read_tokens(path)
                if content.generation < self._generation:
                    raise TokenFileError(
                        f"{path} has the generation {content.generation}, and {self._generation}"
                        " was read before: an older file was put back, maybe with tokens that were"
                        " revoked; put the newest one back"
                    )
                ended = self._take(content)
                self.problem = ""
                log.info("%s was read again: %d tokens", path, len(self._known))
            except TokenFileError as error:
                self._keep(error)
                self._note("tokens_unusable", problem=self.problem)
        return self._end_expired() or ended

    def _first(self, path: Path, before: ReadBefore | None) -> Tokens:
        try:
            content = read_tokens(path)
            if before is not None:
                before.check(content.generation)
        except TokenFileError as error:
            kept = None if before is None else before.stand_in
            if kept is None:
                raise
            self._keep(error)
            return kept
        return content

    def _keep(self, error: TokenFileError) -> None:
        self.problem = str(error)
        log.error("the tokens that were read before stay in force: %s", error)

    def _take(self, content: Tokens) -> bool:
        """The tokens that are in force from now on. Returns whether one is not, or has changed."""
        before = self._known
        self.version += 1
        self._generation = content.generation
        if self._before is not None:
            self._before.keep(content)
        self._known = {
            token.id: known
            if (known := before.get(token.id)) is not None and known.token == token
            else _Known(token, self._allowances)
            for token in content.tokens
        }
        self._by_certificate = {
            known.token.certificate: known
            for known in self._known.values()
            if known.token.certificate
        }
        over = [known for id_, known in before.items() if self._known.get(id_) is not known]
        for known in over:
            known.rights.live = False
        self._note(
            "tokens",
            generation=content.generation,
            count=len(self._known),
            ended=[known.token.name for known in over],
            new=[
                known.token.name
                for id_, known in self._known.items()
                if before and before.get(id_) is not known
            ],
        )
        return bool(over)

    def _note(self, event: str, **fields: object) -> None:
        if self._audit is not None:
            self._audit.note(event, **fields)

    def _end_expired(self) -> bool:
        """Returns whether rights have ended. A token that expired since the clock was wrong is in
        force again when the clock is right."""
        now_ms = self._now_ms()
        over = back = 0
        for known in self._known.values():
            has_expired = _has_expired(known.token, now_ms)
            if known.rights.live and has_expired:
                known.rights.live = False
                over += 1
                self._note("token_expired", who=known.token.name)
            elif not (known.rights.live or has_expired):
                known.rights = rights_of(known.token, self._allowances)
                back += 1
                log.warning("the clock was set back: %r has not expired yet", known.token.name)
                self._note("token_in_force", who=known.token.name)
        self.version += bool(over or back)
        return bool(over)


def read_before(config: Config, *, writes: bool, stands_in: bool = False) -> ReadBefore | None:
    """What the data directory remembers of the file of tokens; None without one."""
    if config.auth_file is None:
        return None
    kept = Path(config.data_dir) / "tokens-read.json"
    return ReadBefore(kept, Path(config.auth_file), writes=writes, stands_in=stands_in)


def _two_tokens() -> ApiError:
    return ApiError(
        400, "two_tokens",
        "send one token, as Authorization or as X-Api-Key, or a ticket instead of it",
    )  # fmt: skip


def _has_expired(token: Token, now_ms: int) -> bool:
    expires: datetime | None = token.expires
    return expires is not None and expires.timestamp() * 1000 <= now_ms
