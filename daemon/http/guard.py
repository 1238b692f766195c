"""Whose requests the front takes in by TCP: those that were sent to this daemon, and not for a page
of another origin.

A browser sends requests for any page that it shows, from inside the network of its user. What such
a page cannot do is say another Host, Origin or Sec-Fetch-Site than the browser does:

- A page whose name was made to lead here (DNS rebinding) is of the same origin, but its requests
  carry its name as Host. An address cannot be rebound.
- Requests for pages of other origins have an Origin, or Sec-Fetch-Site says so. Those of GET that
  need no leave have only the latter.

This is checked where a head is parsed for the first time; a head that is found in the cache was
checked. It says nothing about programs, which send what they like (SECURITY.md).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from compaction.access.bearer import is_loopback
from daemon.config import Config
from daemon.http.cors import Cors
from daemon.http.head import Head
from daemon.schemas.errors import ApiError

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)(?:%[^\[\]]*)?\]|([^:@\[\]]*))(?::[0-9]*)?\Z")
# What a browser says when no page of another origin has to do with the request.
_OWN_SITE = frozenset({"none", "same-origin"})


class Guard:
    """What one configuration allows. ``cors`` is None if no page of another origin may do
    anything."""

    def __init__(
        self, listen_host: str, allowed_hosts: Sequence[str] = (), cors_origins: Sequence[str] = ()
    ) -> None:
        self.cors = Cors(cors_origins) if cors_origins else None
        self._all = "*" in allowed_hosts
        self._names = {name.lower() for name in (listen_host, *allowed_hosts)}
        self._domains = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._any_address = not is_loopback(listen_host)
        if self._any_address:
            self._names.add(socket.gethostname().lower())

    def check(self, head: Head) -> None:
        """Raises ApiError 421 for a request to another host, 403 for one of a foreign page."""
        for host in (head.headers.get("host"), head.authority):
            if host is not None and not self._is_ours(host):
                raise ApiError(
                    421,
                    "misdirected",
                    f"the request is for host {host[:255]!r}, which is neither a loopback name nor"
                    " an address or name that this daemon listens on; if it is one of its names,"
                    " add it to allowed_hosts",
                    {"host": host[:255]},
                )
        headers = head.headers
        origin = headers.get("origin")
        if origin is not None:
            if origin.partition("://")[2].lower() == headers.get("host", "").lower() != "":
                return
            if self.cors is None or not self.cors.allows(origin):
                raise _foreign(f"origin {origin[:255]!r}", head)
        elif headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            if self.cors is not None and self.cors.allows("*"):
                return
            # Whoever follows a link sees the answer, and no page does.
            if (
                head.method not in ("GET", "HEAD")
                or headers.get("sec-fetch-mode") != "navigate"
                or headers.get("sec-fetch-dest") != "document"
            ):
                raise _foreign("another origin", head)
            head.is_followed_link = True

    def _is_ours(self, host: str) -> bool:
        if self._all:
            return True
        parts = _AUTHORITY.match(host)
        if parts is None:
            return False
        name = (parts[1] or parts[2]).lower().removesuffix(".")
        if name in self._names or is_loopback(name):
            return True
        if self._domains and name.endswith(self._domains):
            return True
        return self._any_address and _address(name) is not None


def guard_of(config: Config) -> Guard:
    """The guard of a daemon with this configuration."""
    hosts = [config.listen_host] if config.tls_listen is None else [
        config.listen_host, config.tls_host
    ]  # fmt: skip
    # Loopback names are always allowed; one other address is enough to allow all.
    hosts.sort(key=is_loopback)
    return Guard(hosts[0], (*hosts[1:], *config.allowed_hosts), config.cors_origins)


def refuse_link(head: Head) -> None:
    """Raises ApiError 403 for a link on a foreign page to a route that takes something."""
    if head.is_followed_link:
        raise _foreign("another origin", head)


def _foreign(whose: str, head: Head) -> ApiError:
    return ApiError(
        403,
        "foreign_page",
        f"a page of {whose} may not {head.method} {head.path}: add its origin to cors_origins if it"
        " may",
        {"origin": head.headers.get("origin", "")[:255]},
    )


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
