"""The file of tokens, ``auth_file``: who may call the daemon, and for what.

A *token* is the text ``hg_ID_SECRET`` that a client sends. The file has its id and a SHA-256 of its
secret, which has 256 random bits and so needs no slow hash. *Scopes* say what its bearer may do,
*topics* are patterns of the names that it may do it to.

    issue -> the file has the token -> the daemon reads the file again -> revoke

Every change raises the *generation*: a daemon refuses an older file than the one it has read. This
module knows nothing of requests (``access.py``). Its calls block for a few ms.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import secrets as randomness
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from daemon.config.limits import check_limit
from ledger.private_files import OTHERS
from shards import layout as at
from shards.clock import wall_ms
from uploader.stores.disk import locked, replace_private

log = logging.getLogger(__name__)

VERSION = 1
FILE_BYTES_MAX = 4 << 20  # about 10,000 tokens
NAME_CHARACTERS_MAX = 128
TOPICS_MAX = 64
LOCK_WAIT_S = 10.0
LIFETIME_MAX = timedelta(days=36_500)
ID_BYTES = 8
SECRET_BYTES = 32
_TOKEN = re.compile(r"hg_([0-9a-f]{16})_([0-9a-f]{64})")
_PATTERN = re.compile(r"[A-Za-z0-9._:*?-]{1,255}\Z")
_CERTIFICATE = re.compile(r"[!-~]{1,255}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*\Z")


class TokenFileError(Exception):
    """The file cannot be used or changed; the message has its name, the reason and a remedy."""


class Scope(StrEnum):
    """What a token allows, in the topics that it names."""

    PRODUCE = "produce"
    READ = "read"
    CONSUME = "consume"
    MANAGE = "manage"
    PUSH = "push"
    COMPACT = "compact"
    METRICS = "metrics"
    ADMIN = "admin"


class Token(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token. ``expires`` is None if it never does. ``limits``: how much its bearers may use
    (daemon/config/limits.py), counted in the words of its ``slot``, which no other token has; 0
    without limits. ``certificate``: a name in the certificate of a client that needs to send no
    token; no other token has it."""

    id: str
    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...]
    created: datetime
    expires: datetime | None = None
    limits: dict[str, float] = {}
    slot: int = 0
    certificate: str = ""

    def is_of(self, secret: str) -> bool:
        """Whether this is its secret. Takes as long for a wrong one."""
        return hmac.compare_digest(self.sha256, hash_of(secret))


class Tokens(Struct, frozen=True, forbid_unknown_fields=True):
    """What the file has."""

    version: int
    generation: int
    tokens: tuple[Token, ...] = ()


_decoder = msgspec.json.Decoder(Tokens)


def hash_of(secret: str) -> str:
    """What the file keeps of a secret."""
    return sha256(secret.encode()).hexdigest()


def split_token(text: str) -> tuple[str, str] | None:
    """Id and secret of a token; None if the text is not a token."""
    parts = _TOKEN.fullmatch(text)
    return None if parts is None else (parts[1], parts[2])


def has_token(text: str) -> bool:
    """Whether a token is anywhere in it, in force or not."""
    return _TOKEN.search(text) is not None


def read_tokens(path: Path) -> Tokens:
    """The file's content. Raises TokenFileError: it is a link, others may read it, it is damaged,
    or another version wrote it."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        if path.is_symlink():
            raise TokenFileError(f"{path} is a symbolic link; name the file itself in auth_file")
        with open(os.open(path, flags), "rb") as file:
            _check_status(path, os.fstat(file.fileno()))
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise TokenFileError(
            f"there is no {path}; `headgate tokens create NAME --auth-file {path}` makes it"
        ) from None
    except OSError as error:
        raise TokenFileError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise TokenFileError(f"{path} has more than {FILE_BYTES_MAX} bytes, which is the limit")
    try:
        content = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TokenFileError(
            f"{path} is damaged: {error}; restore it from a backup, or move it away and create all"
            " tokens again"
        ) from None
    if content.version != VERSION:
        raise TokenFileError(
            f"{path} has the version {content.version}, and this Headgate knows {VERSION}: use the"
            " Headgate that wrote it, or move it away and create all tokens again"
        )
    ids = [token.id for token in content.tokens]
    if len({*ids}) < len(ids):
        raise TokenFileError(f"{path} has two tokens of one id; restore it from a backup")
    slots = [token.slot for token in content.tokens if token.limits]
    if len({*slots}) < len(slots) or not all(0 < slot < at.LIMIT_SLOTS for slot in slots):
        raise TokenFileError(
            f"{path} has a token with limits without a slot of its own, from 1 to"
            f" {at.LIMIT_SLOTS - 1}: {slots}; restore it from a backup"
        )
    for token in content.tokens:
        try:
            for name, number in token.limits.items():
                check_limit(name, number)
        except ValueError as error:
            raise TokenFileError(f"{path}: the limits of {token.name!r}: {error}") from None
    return content


def _check_status(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenFileError(f"{path} is not a file")
    if status.st_uid != os.geteuid():
        raise TokenFileError(
            f"{path} belongs to user {status.st_uid}, and this process runs as {os.geteuid()}:"
            " chown it"
        )
    if status.st_mode & OTHERS:
        raise TokenFileError(
            f"other users have rights to {path} (mode {stat.S_IMODE(status.st_mode):o}): run"
            f" `chmod 600 {path}`, and create new tokens if anybody may have written to it"
        )


class ReadBefore:
    """What was read of the file last, in the data directory: after a restart an older file that was
    put back is known. All shards read it, and one ``writes`` it. Where it ``stands_in``, a shard
    that starts again goes on with it while the file cannot be used."""

    def __init__(
        self, path: Path, auth_file: Path, *, writes: bool = True, stands_in: bool = False
    ) -> None:
        self.path = path
        self._stands_in = stands_in
        self._writes = writes
        self._auth_file = str(auth_file)

    @property
    def generation(self) -> int:
        """0 if this file was never read. Raises TokenFileError."""
        kept = self._kept()
        return 0 if kept is None else kept.generation

    @property
    def stand_in(self) -> Tokens | None:
        """What was read last, if it may be used while the file cannot be: by a shard that starts
        again. Raises TokenFileError."""
        kept = self._kept()
        return None if kept is None or not self._stands_in else kept.content

    def _kept(self) -> _Kept | None:
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TokenFileError(
                f"{self.path} cannot be read: {error}; delete it if the tokens in"
                f" {self._auth_file} are those that should be in force"
            ) from None
        return kept if kept.auth_file == self._auth_file else None

    def check(self, generation: int) -> None:
        """Raises TokenFileError for an older file than was read before."""
        before = self.generation
        if generation < before:
            raise TokenFileError(
                f"{self._auth_file} has the generation {generation}, and {before} was read before:"
                " an older file was put back, maybe with tokens that were revoked; put the newest"
                f" one back, or delete {self.path} if this one should be in force"
            )

    def keep(self, content: Tokens) -> None:
        """Remembers what was read. What cannot be written is logged."""
        try:
            before = self._kept()
            if self._writes and (before is None or before.content != content):
                kept = _Kept(self._auth_file, content.generation, content)
                replace_private(self.path, msgspec.json.encode(kept))
        except (OSError, TokenFileError) as error:
            log.error("which tokens were read last cannot be remembered: %s", error)


class _Kept(Struct):
    auth_file: str
    generation: int
    content: Tokens | None = None


class TokenFile:
    """The file, for those who change it: one at a time, each change durable when it returns."""

    def __init__(self, path: Path, now_ms: Callable[[], int] = wall_ms) -> None:
        self.path = path
        self._now_ms = now_ms

    def tokens(self) -> tuple[Token, ...]:
        """All tokens, in the order of their creation. Raises TokenFileError."""
        return read_tokens(self.path).tokens

    def begin(self, before: ReadBefore) -> bool:
        """Makes a file without tokens unless one is there or was; returns whether it did. Raises
        TokenFileError if there was one."""
        if os.path.lexists(self.path):
            return False
        if before.generation:
            raise TokenFileError(
                f"{self.path} is gone, and its generation {before.generation} was read before: put"
                f" it back, or delete {before.path} to begin without tokens"
            )
        with self._changing() as content:
            if content.generation:
                return False  # made meanwhile
            self._write(content, ())
        return True

    def issue(
        self,
        name: str,
        scopes: Sequence[Scope],
        topics: Sequence[str] = ("*",),
        expires_in: timedelta | None = None,
        limits: Mapping[str, float] | None = None,
        certificate: str = "",
    ) -> tuple[Token, str]:
        """Adds a token, and returns it with the text that its bearer sends, which nobody can find
        out later. Raises TokenFileError."""
        _check(name, scopes, topics, certificate)
        secret = randomness.token_hex(SECRET_BYTES)
        with self._changing() as content:
            if any(token.name == name for token in content.tokens):
                raise TokenFileError(
                    f"{self.path} has a token {name!r} already: revoke it first, or take another"
                    " name"
                )
            if certificate and any(token.certificate == certificate for token in content.tokens):
                raise TokenFileError(
                    f"{self.path} has a token for the certificate {certificate!r} already: revoke"
                    " it first"
                )
            now = datetime.fromtimestamp(self._now_ms() // 1000, UTC)
            token = Token(
                randomness.token_hex(ID_BYTES), name, hash_of(secret), tuple(dict.fromkeys(scopes)),
                tuple(dict.fromkeys(topics)), now, None if expires_in is None else now + expires_in,
                dict(limits or {}), self._free_slot(content) if limits else 0,
                certificate,
            )  # fmt: skip
            self._write(content, (*content.tokens, token))
        return token, f"hg_{token.id}_{secret}"

    def revoke(self, name: str) -> Token:
        """Removes the token of this name or id. Raises TokenFileError."""
        self.tokens()  # where there is no file, no lock is made
        with self._changing() as content:
            found = next((each for each in content.tokens if name in (each.name, each.id)), None)
            if found is None:
                raise TokenFileError(f"{self.path} has no token {name!r}")
            self._write(content, tuple(each for each in content.tokens if each is not found))
        return found

    def _free_slot(self, content: Tokens) -> int:
        """One that no token has, and none had lately: what a former one used beyond its limit, a
        debt that may last for hours, is still counted in its slot until the daemon restarts."""
        taken = {token.slot for token in content.tokens}
        slots = at.LIMIT_SLOTS - 1
        for number in range(slots):
            slot = 1 + (content.generation + number) % slots
            if slot not in taken:
                return slot
        raise TokenFileError(
            f"{self.path} has {at.LIMIT_SLOTS - 1} tokens with limits already: revoke some that"
            " nobody uses"
        )

    def _read(self) -> Tokens:
        if not os.path.lexists(self.path):
            return Tokens(VERSION, 0)
        return read_tokens(self.path)

    def _write(self, old: Tokens, tokens: tuple[Token, ...]) -> None:
        content = Tokens(VERSION, old.generation + 1, tokens)
        data = msgspec.json.format(msgspec.json.encode(content), indent=1)
        if len(data) > FILE_BYTES_MAX:
            raise TokenFileError(
                f"{self.path} would have more than {FILE_BYTES_MAX} bytes, which is the limit:"
                " revoke tokens that nobody uses"
            )
        try:
            replace_private(self.path, data)
        except OSError as error:
            raise TokenFileError(f"cannot write {self.path}: {error.strerror}") from error

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Tokens]:
        lock_path = self.path.with_name(f"{self.path.name}.lock")
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(locked(lock_path, LOCK_WAIT_S))
            except BlockingIOError:
                raise TokenFileError(
                    f"another process has held {lock_path} for {LOCK_WAIT_S:g} s; nothing was"
                    f" changed: end it (`fuser {lock_path}` names it), and ask again"
                ) from None
            except OSError as error:
                raise TokenFileError(f"cannot lock {self.path}: {error.strerror}") from error
            yield self._read()


def check_lifetime(lifetime: timedelta) -> None:
    """Raises TokenFileError for a token that would never be in force, or whose end has no date."""
    if not timedelta(seconds=1) <= lifetime <= LIFETIME_MAX:
        raise TokenFileError(
            f"a token expires after 1 s to {LIFETIME_MAX.days} days, got"
            f" {lifetime.total_seconds():g} s"
        )


def _check(name: str, scopes: Sequence[Scope], topics: Sequence[str], certificate: str) -> None:
    if len(name) > NAME_CHARACTERS_MAX or _NAME.match(name) is None:
        raise TokenFileError(
            f"a token's name must have 1 to {NAME_CHARACTERS_MAX} letters, digits or characters of"
            f" . _ : @ -, and begin with a letter or a digit, got {name[:NAME_CHARACTERS_MAX]!r}"
        )
    if not scopes:
        raise TokenFileError(f"a token needs a scope: {', '.join(Scope)}")
    if not 1 <= len(topics) <= TOPICS_MAX:
        raise TokenFileError(
            f"a token names 1 to {TOPICS_MAX} patterns of topics, got {len(topics)}"
        )
    if certificate and _CERTIFICATE.match(certificate) is None:
        raise TokenFileError(
            "a certificate's name must have 1 to 255 printable characters without blanks, got"
            f" {certificate[:80]!r}"
        )
    for pattern in topics:
        if _PATTERN.match(pattern) is None:
            raise TokenFileError(
                "a pattern of topics must have 1 to 255 characters of a topic's name, or * for any"
                f" text and ? for any character, got {pattern[:80]!r}"
            )
