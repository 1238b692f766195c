"""URIs without their secrets, for all that is shown, logged or told to another machine.

A password may be the user's part of a URI or any value of its query, and people write it without
escapes: ``postgresql://me:se/cret@host``. So nothing is shown but what is known to be no secret:
scheme, user, host, path, and the parameters in ``_OPEN``. In doubt a URI is its scheme alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

MARK = "***"

# Parameters of SQL drivers whose values may be shown.
_OPEN = frozenset(
    ("timeout", "connect_timeout", "application_name", "charset", "driver", "sslmode", "ssl",
     "sslrootcert", "sslcert", "host", "port", "user", "dbname", "database", "service",
     "unix_socket", "schema", "warehouse", "role", "mode", "cache", "region")
)  # fmt: skip
_ON_DISK = ("sqlite", "file")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]*")


class _Parts(NamedTuple):
    """``user`` has its colon. ``query`` has the parts that may be shown, and None for others."""

    scheme: str
    user: str
    has_secret: bool
    rest: str
    query: list[str | None]
    hidden: list[str]


def redacted(uri: str) -> str:
    """A URI with ``***`` for each secret in it."""
    parts = _parts(uri)
    user = f"{parts.user}{MARK}@" if parts.has_secret else ""
    query = "&".join(MARK if each is None else each for each in parts.query)
    return parts.scheme + user + parts.rest + (f"?{query}" if query else "")


def without_secrets(uri: str) -> str:
    """A URI that is still one, without its secrets."""
    parts = _parts(uri)
    user = f"{parts.user[:-1]}@" if len(parts.user) > 1 else ""
    query = "&".join(each for each in parts.query if each is not None)
    return parts.scheme + user + parts.rest + (f"?{query}" if query else "")


def secrets_of(uri: str) -> set[str]:
    """What ``redacted`` hides, as it was written and as it is read."""
    hidden = _parts(uri).hidden
    return {form for text in hidden for form in (text, unquote(text), unquote_plus(text))}


def redacted_text(text: str) -> str:
    """A text of others with each URI in it redacted."""
    return _IN_TEXT.sub(lambda found: redacted(found[0]), text)


def _parts(uri: str) -> _Parts:
    found = _SCHEME.match(uri)
    scheme = found[0] if found else ""
    rest = uri.removeprefix(scheme)
    kind = re.split(r"\W", scheme, maxsplit=1)[0].lower()
    is_path = rest.startswith("/") and (not scheme or kind in _ON_DISK)
    if is_path and not scheme:
        return _Parts("", "", False, rest, [], [])
    user = ""
    hidden: list[str] = []
    secret, at, host = rest.rpartition("@")
    if at and not is_path:
        if "?" in secret or "#" in secret:  # a password with one, or a query with an @
            return _Parts(scheme, "", True, "", [], [rest])
        rest = host
        if kind not in ("", "http", "https") and ":" in secret:
            user, _, secret = secret.partition(":")
            user += ":"
        hidden.append(secret)
    rest, *query = re.split(r"[?&;#]", rest) if re.search(r"[?#]", rest) else [rest]
    open_parts: list[str | None] = []
    for each in query:
        key, equals, value = each.partition("=")
        if equals and key.lower() in _OPEN:
            open_parts.append(each)
        elif each:
            open_parts.append(None)
            hidden += [each, value]
    hidden = [each for each in hidden if each]
    return _Parts(scheme, user, bool(at) and not is_path, rest, open_parts, hidden)
