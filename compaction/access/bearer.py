"""The token that a client sends: from the environment, so that no list of processes shows it.

``HEADGATE_TOKEN`` has the token itself, ``HEADGATE_TOKEN_FILE`` the name of a file that has it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

TOKEN = "HEADGATE_TOKEN"
TOKEN_FILE = "HEADGATE_TOKEN_FILE"


class TokenUnusable(ValueError):
    """The token cannot be read, or must not be sent there."""


def bearer(
    url: str, environ: Mapping[str, str] = os.environ, token_file: str = ""
) -> dict[str, str]:
    """The headers that carry the token to a daemon; none if there is no token. ``token_file`` comes
    before the environment. Raises TokenUnusable, also where it would cross a network in clear
    text."""
    if token_file:
        token = _read(token_file, "tokenFile")
        if not token:
            raise TokenUnusable(f"tokenFile {token_file} has no token: it is empty")
    else:
        token = _token(environ)
    if not token:
        return {}
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise TokenUnusable(
            f"a token is not sent to {url} in clear text, where others could read it; use https://"
        )
    return {"Authorization": f"Bearer {token}"}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host, a name or an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _token(environ: Mapping[str, str]) -> str:
    token, path = environ.get(TOKEN, ""), environ.get(TOKEN_FILE, "")
    return _checked(token, TOKEN) if token or not path else _read(path, TOKEN_FILE)


def _read(path: str, origin: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return _checked(file.read(1024).strip(), f"{origin} ({path})")
    except OSError as error:
        raise TokenUnusable(f"cannot read {origin} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenUnusable(f"{origin} {path} has no token: it is not ASCII") from error


def _checked(token: str, origin: str) -> str:
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise TokenUnusable(f"{origin} has no token: it has blanks or control characters")
    return token
