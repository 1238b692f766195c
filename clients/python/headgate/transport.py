"""What the two clients share of HTTP: their settings, and what httpx's answers and errors mean."""

from __future__ import annotations

import ipaddress
import math
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx

from headgate.steps import Answer, Lost, Request

REACH_S = 5.0  # of a daemon that never answered: the address may be wrong


def settings(
    url: str, token: str | None, ca_file: str | None, timeout_s: float, patience_s: float
) -> dict[str, Any]:
    """The arguments of an httpx client. Raises ValueError, and OSError for a file of authorities
    that cannot be read."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise ValueError(f"{url!r} is not the URL of a daemon, like http://127.0.0.1:7440")
    if not (0 < timeout_s < math.inf and patience_s >= 0):
        raise ValueError(f"timeout_s {timeout_s} and patience_s {patience_s} must be positive")
    headers = {"User-Agent": "headgate-python"}
    if token is not None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("the token is empty, or has blanks or control characters")
        if parts.scheme == "http" and not _is_loopback(host):
            raise ValueError(f"a token is not sent to {url} in clear text; use https://")
        headers["Authorization"] = f"Bearer {token}"
    return {
        "base_url": url, "headers": headers, "timeout": timeout_s, "trust_env": False,
        "verify": ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else False,
        "limits": httpx.Limits(max_connections=None),
    }  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def built(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    """The request as httpx sends it."""
    timeout_s = http.timeout.read or 0
    patient = {**http.timeout.as_dict(), "read": timeout_s + request.silent_s}
    return http.build_request(
        request.method, request.target.removeprefix("/"), content=request.body,
        headers={"Accept": "application/json", **request.headers}, timeout=httpx.Timeout(**patient),
    )  # fmt: skip


def answer_of(response: httpx.Response, stream: object = None) -> Answer:
    """An answer; its body, if it is not a stream, has been read."""
    return Answer(
        response.status_code, response.headers, b"" if stream else response.content, stream
    )


def lost(error: httpx.RequestError) -> Lost:
    """What an error of httpx means."""
    text = str(error) or type(error).__name__
    unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return Lost(text, sent=not unsent, is_final="CERTIFICATE_VERIFY_FAILED" in text)
