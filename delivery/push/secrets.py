"""What push subscriptions keep secret: signing secrets, and the values of own headers. And the
secrets with which senders of hooks sign.

They are in one file next to the ledger, ``push-secrets.json``, and not in it: images of the ledger
go to the store. Only its owner may read it (0600). The settings of a subscription or topic name its
entry.

    save (an entry of its own, durable) -> the ledger commits settings that name it -> load, by
    senders -> other settings are committed -> remove

A kill between two steps and the deletion of a topic leave entries that no settings name; ``retain``
removes them a day later. Entries are never changed: settings that change get another id, so that a
sender never has secrets of one state and settings of another.

All calls of the file block for a few ms; none is for an event loop. No message shows a secret, and
``Hiding`` takes them out of what a receiver repeats.
"""

from __future__ import annotations

import contextlib
import html
import json
import logging
import os
import re
import secrets as randomness
from base64 import b64decode
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from delivery.push.signatures import PREFIX, SIGNING_MAX, key_of
from ledger.delivery.push_settings import PushSettings
from shards.clock import wall_ms
from uploader.stores.disk import locked, replace_private

if TYPE_CHECKING:
    from delivery.push.posts.answers import PushAnswer  # whoever names a limit loads less

log = logging.getLogger(__name__)

FILE_NAME = "push-secrets.json"
LOCK_NAME = "push-secrets.lock"
VERSION = 1
ABANDONED_MS = 86_400_000  # a ledger that is empty by mistake leaves a day for another one
HOOK_SECRET_CHARACTERS_MAX = 512  # those of senders have 20 to 100
HEADERS_MAX = 16
HEADER_NAME_MAX = 64
# Receivers take 8 KiB of headers or more; the other half is for attributes of records. With 1,024
# subscriptions, each with 4 signing secrets of 100 characters, the file has 5 MiB.
HEADER_CHARACTERS_MAX = 4_096
HIDDEN = "(hidden)"
# What is shorter protects nothing, and stands in texts by chance.
SECRET_CHARACTERS_MIN = 4

_name = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_value = re.compile(r"[!-~]([ -~]*[!-~])?")
# What the request itself needs, or the connection.
RESERVED = frozenset(
    {
        "connection", "content-encoding", "content-length", "content-type", "expect", "host",
        "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_RESERVED_PREFIXES = ("ce-", "webhook-", "proxy-")


class SecretMissing(Exception):
    """A request needs a secret that is not there."""


class SecretsRefused(ValueError):
    """Secrets that cannot be used. The message does not show them."""


class SecretsFileError(Exception):
    """The file cannot be read or written; the message has its name and the reason."""


class PushSecrets(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one subscription keeps secret. ``signing`` are secrets for signatures, all of which are
    used; ``headers`` are own headers, by their names in lower case. ``hook``: of a topic instead,
    the secrets that its hooks may be signed with."""

    signing: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    hook: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(self.headers)
        return f"PushSecrets({len(self.signing)} signing secrets, headers: {names or 'none'})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("signing", len(self.signing)), ("headers", [*self.headers])]


def missing(settings: PushSettings, secrets: PushSecrets | None) -> str:
    """Which secrets these settings need and do not have; empty if nothing is missing."""
    lacks = []
    if settings.signed and (secrets is None or not secrets.signing):
        lacks.append("its signing secret")
    absent = [
        name for name in settings.headers if secrets is None or name.lower() not in secrets.headers
    ]
    if absent:
        lacks.append(f"the values of {', '.join(absent)}")
    if not lacks:
        return ""
    return f"{' and '.join(lacks)} are not in {FILE_NAME}, next to the ledger; set them again"


def check_header_name(name: str) -> str:
    """The name of an own header, in lower case. Raises SecretsRefused."""
    lower = name.lower()
    if len(name) > HEADER_NAME_MAX or _name.fullmatch(lower) is None:
        raise SecretsRefused(
            f"the name of an own header must be a token of HTTP with 1 to {HEADER_NAME_MAX}"
            f" characters, got {name[:80]!r}"
        )
    if lower in RESERVED or lower.startswith(_RESERVED_PREFIXES):
        raise SecretsRefused(f"the header {lower} is the daemon's own; use another name")
    return lower


def check_secrets(secrets: PushSecrets) -> None:
    """Raises SecretsRefused, or SecretRefused for a signing secret."""
    if len(secrets.signing) > SIGNING_MAX:
        raise SecretsRefused(
            f"there are {len(secrets.signing)} signing secrets, the limit is {SIGNING_MAX}; leave"
            " out the oldest"
        )
    for secret in secrets.signing:
        key_of(secret)
    for secret in secrets.hook:
        if _value.fullmatch(secret) is None or len(secret) > HOOK_SECRET_CHARACTERS_MAX:
            raise SecretsRefused(
                f"a secret of hooks must have 1 to {HOOK_SECRET_CHARACTERS_MAX} characters of"
                f" printable ASCII, without blanks around it, and has not ({len(secret)})"
            )
    if len(secrets.headers) > HEADERS_MAX:
        raise SecretsRefused(
            f"there are {len(secrets.headers)} own headers, the limit is {HEADERS_MAX}"
        )
    for name, value in secrets.headers.items():
        if check_header_name(name) != name:
            raise SecretsRefused(f"the name of the header {name} must be in lower case")
        if _value.fullmatch(value) is None:
            raise SecretsRefused(
                f"the value of the header {name} must be printable ASCII, without blanks around it,"
                f" and is not ({len(value)} characters)"
            )
    size = sum(len(name) + len(value) for name, value in secrets.headers.items())
    if size > HEADER_CHARACTERS_MAX:
        raise SecretsRefused(
            f"own headers have {size} characters, the limit is {HEADER_CHARACTERS_MAX}"
        )


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    saved_ms: int
    secrets: msgspec.Raw


class _Content(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    entries: dict[str, _Entry]


_content = msgspec.json.Decoder(_Content)
_secrets = msgspec.json.Decoder(PushSecrets)
_encoder = msgspec.json.Encoder()


class SecretsFile:
    """The file of a data directory, for any process and thread."""

    def __init__(
        self,
        data_dir: Path,
        token: Callable[[int], str] = randomness.token_hex,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.path = data_dir / FILE_NAME
        self._lock_path = data_dir / LOCK_NAME
        self._token = token
        self._now_ms = now_ms

    def load(self, secrets_id: str) -> PushSecrets | None:
        """The secrets of an id; None if they are not there. Raises SecretsFileError."""
        entry = self._read().get(secrets_id)
        if entry is None:
            return None
        try:
            return _secrets.decode(entry.secrets)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SecretsFileError(f"an entry of {self.path} is damaged: {error}") from None

    def save(self, secrets: PushSecrets) -> str:
        """Stores secrets durably and returns their id. Raises SecretsRefused, SecretRefused,
        SecretsFileError."""
        check_secrets(secrets)
        secrets_id = self._token(16)
        encoded = msgspec.Raw(_encoder.encode(secrets))
        with self._locked():
            entries = self._read()
            entries[secrets_id] = _Entry(self._now_ms(), encoded)
            self._write(entries)
        return secrets_id

    def remove(self, ids: Collection[str]) -> int:
        """Removes entries, and returns how many were there. Raises SecretsFileError."""
        return self._remove(lambda secrets_id, entry: secrets_id in ids)

    def retain(self, ids: Collection[str]) -> int:
        """Removes all other entries that are older than a day, and returns how many were there.
        Raises SecretsFileError."""
        before_ms = self._now_ms() - ABANDONED_MS
        return self._remove(
            lambda secrets_id, entry: secrets_id not in ids and entry.saved_ms < before_ms
        )

    def _remove(self, is_over: Callable[[str, _Entry], bool]) -> int:
        if not self.path.exists():
            return 0
        with self._locked():
            entries = self._read()
            rest = {each: entry for each, entry in entries.items() if not is_over(each, entry)}
            if len(rest) < len(entries):
                self._write(rest)
        return len(entries) - len(rest)

    def _read(self) -> dict[str, _Entry]:
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                if mode & 0o077:
                    log.warning(
                        "%s could be read by others (mode %o); its mode is now 600. Set other"
                        " secrets if anybody had access", self.path, mode,
                    )  # fmt: skip
                    os.fchmod(file.fileno(), 0o600)
                content = _content.decode(file.read())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SecretsFileError(f"cannot read {self.path}: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SecretsFileError(
                f"{self.path} is damaged: {error}; restore it from a backup, or move it away and"
                " set the secrets of all push subscriptions again"
            ) from None
        if content.version != VERSION:
            raise SecretsFileError(
                f"{self.path} has the version {content.version}, and this daemon knows {VERSION}"
            )
        return content.entries

    def _write(self, entries: dict[str, _Entry]) -> None:
        try:
            replace_private(self.path, _encoder.encode(_Content(VERSION, entries)))
        except OSError as error:
            raise SecretsFileError(f"cannot write {self.path}: {error}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(locked(self._lock_path))
            except OSError as error:
                raise SecretsFileError(f"cannot lock {self._lock_path}: {error}") from error
            yield


class Hiding:
    """Hides what one subscription keeps secret in what its receiver says: usually 1 KB, at most 20.

    The beginning of an answer is shown to operators, logged, and kept as the reason of a dead
    letter, which is a record and goes to the store. A receiver may repeat what it got: some show
    the request they refuse. So whatever was secret in a request is replaced in its answer, also in
    the forms that it has in JSON, HTML and URLs, and where the answer was cut in the middle of it.

    A receiver that encodes what it repeats in another way cannot be helped."""

    def __init__(self, secrets: PushSecrets | None) -> None:
        self._forms = [] if secrets is None else _forms(secrets)
        # As they are in bytes that are taken for characters.
        self._as_bytes = [
            form if form.isascii() else form.encode().decode("latin-1") for form in self._forms
        ]

    def shown(self, answer: PushAnswer) -> PushAnswer:
        """An answer as it may be shown."""
        if not self._forms:
            return answer
        return msgspec.structs.replace(
            answer,
            message=_hidden(answer.message, self._forms),
            head=_hidden(answer.head.decode("latin-1"), self._as_bytes).encode("latin-1"),
            headers=tuple((name, _hidden(value, self._forms)) for name, value in answer.headers),
        )


def _hidden(text: str, forms: list[str]) -> str:
    for form in forms:
        if form in text:
            text = text.replace(form, HIDDEN)
    for form in forms if text else ():
        begin = text.find(form[:SECRET_CHARACTERS_MIN], max(0, len(text) - len(form)))
        while begin >= 0:
            if form.startswith(text[begin:]):
                return text[:begin] + HIDDEN
            begin = text.find(form[:SECRET_CHARACTERS_MIN], begin + 1)
    return text


def _forms(secrets: PushSecrets) -> list[str]:
    """All that is to be hidden, the longest first, so that none is left in a part of another."""
    found = set()
    for part in _parts(secrets):
        if len(part) >= SECRET_CHARACTERS_MIN:
            found |= {part, json.dumps(part)[1:-1], html.escape(part), quote(part, safe="")}
    return sorted(found, key=len, reverse=True)


def _parts(secrets: PushSecrets) -> Iterator[str]:
    for secret in secrets.signing:
        yield secret
        yield secret.removeprefix(PREFIX)
    for value in secrets.headers.values():
        yield value
        scheme, _, rest = value.partition(" ")
        if not rest:
            continue
        yield rest
        if scheme.lower() == "basic":
            try:
                told = b64decode(rest, validate=True).decode()
            except ValueError:
                continue
            yield told
            yield told.partition(":")[2]
