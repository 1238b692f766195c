"""Who may be called: the endpoint of a subscription, and ``push_allow``.

Two questions, asked at two times. ``check_endpoint`` is asked when a subscription is created: is
this a URL that can be called, as far as the URL itself shows it? ``AllowList.allows`` is asked for
every connection, with the name in the URL and the address that is connected to: a name says
nothing about where it leads, and may lead elsewhere at the next look.

A name that the list has may lead anywhere: whoever writes the list trusts it. For any other name,
and for addresses, the address itself must be in a network of the list.

*Public* is an address that the internet routes: not loopback, private, link-local, shared, reserved
or multicast. An IPv6 address that stands for an IPv4 address is as public as that one. This module
opens nothing and looks nothing up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import urlsplit

from msgspec import Struct

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

PUBLIC = "public"
ENTRIES_MAX = 1_000
ENDPOINT_CHARACTERS_MAX = 2_048
# A name as DNS has it, with a final dot or without; underscores occur.
NAME = re.compile(r"(?=.{1,253}\.?$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*\.?")
# Only these may stand in a URL as it is sent (RFC 3986), so that nothing in it ends a line.
URL_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
# A host and perhaps a port, as they stand between // and the path.
AUTHORITY = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(:[0-9]{1,5})?")
# What the internet uses of IPv6; everything else is reserved, local or multicast.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# Addresses that embed an IPv4 address, with how far to the left it stands.
TRANSLATED = ((IPv6Network("64:ff9b::/96"), 0), (IPv6Network("2002::/16"), 80))
# Versions of Python differ about these.
NOT_PUBLIC_4 = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"))
NOT_PUBLIC_6 = (IPv6Network("2001::/23"), IPv6Network("2001:db8::/32"), IPv6Network("3fff::/20"))


class BadEndpoint(ValueError):
    """The endpoint is not a URL that can be called; the text says why, and what to do."""


class ForbiddenEndpoint(ValueError):
    """``push_allow`` does not allow the endpoint; the text names what is not allowed."""


class CheckedEndpoint(Struct, frozen=True):
    """The parts of an endpoint that were checked. ``host`` is in lower case, without brackets."""

    scheme: str
    host: str
    port: int
    # None for a name.
    address: IPAddress | None


def is_public(address: IPAddress) -> bool:
    """Whether the internet routes this address."""
    if isinstance(address, IPv4Address):
        return (
            address.is_global
            and not address.is_multicast
            and not address.is_reserved
            and not any(address in network for network in NOT_PUBLIC_4)
        )
    plain = IPv6Address(int(address))  # without a zone
    if plain.ipv4_mapped is not None:
        return is_public(plain.ipv4_mapped)
    for network, shift in TRANSLATED:
        if plain in network:
            return is_public(IPv4Address(int(plain) >> shift & 0xFFFFFFFF))
    return plain in GLOBAL_UNICAST and not any(plain in network for network in NOT_PUBLIC_6)


class AllowList:
    """``push_allow``, ready to be asked. Raises ValueError for an entry that is none."""

    __slots__ = ("_is_public_allowed", "_names", "_networks", "_suffixes", "entries")

    def __init__(self, entries: Sequence[str] = (PUBLIC,)) -> None:
        if len(entries) > ENTRIES_MAX:
            raise ValueError(f"must have at most {ENTRIES_MAX} entries, not {len(entries)}")
        self.entries = tuple(dict.fromkeys(entry.strip().lower() for entry in entries))
        self._is_public_allowed = PUBLIC in self.entries
        self._names: set[str] = set()
        self._suffixes: set[str] = set()
        self._networks: list[IPNetwork] = []
        for entry in self.entries:
            if entry != PUBLIC:
                self._take(entry)

    def _take(self, entry: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(entry.strip("[]")))
            return
        except ValueError as error:
            if "/" in entry:
                raise ValueError(f"must have networks like 10.0.0.0/8: {error}") from None
        is_suffix = entry.startswith("*.")
        name = entry.removeprefix("*.").rstrip(".")
        if not NAME.fullmatch(name) or _is_number(name.rpartition(".")[2]):
            raise ValueError(
                f"must have `public`, host names like hooks.example.com or *.example.com,"
                f" addresses, or networks like 10.0.0.0/8; {entry!r} is none of them"
            )
        (self._suffixes if is_suffix else self._names).add(name)

    def allows_name(self, host: str) -> bool:
        """Whether this name may lead anywhere. ``*.example.com`` is not example.com itself."""
        name = host.rstrip(".").lower()
        if name in self._names:
            return True
        while name:
            name = name.partition(".")[2]
            if name in self._suffixes:
                return True
        return False

    def allows_address(self, address: IPAddress) -> bool:
        """Whether this address may be connected to, whatever name led to it."""
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or IPv6Address(int(address))
        if self._is_public_allowed and is_public(address):
            return True
        return any(address in network for network in self._networks)

    def allows(self, host: str, address: str) -> bool:
        """Whether a connection to ``address`` may be made for a URL with ``host``."""
        return self.allows_name(host) or self.allows_address(ipaddress.ip_address(address))

    def check(self, endpoint: str) -> CheckedEndpoint:
        """The endpoint, if it may be called as far as the URL shows it.

        Raises BadEndpoint and ForbiddenEndpoint.
        """
        found = check_endpoint(endpoint)
        is_local = found.host.rstrip(".").rpartition(".")[2] == "localhost"
        address = IPv4Address("127.0.0.1") if is_local else found.address
        if self.allows_name(found.host) or address is None or self.allows_address(address):
            return found
        raise ForbiddenEndpoint(forbidden_text(found.host, str(address)))


def forbidden_text(host: str, address: str) -> str:
    """The sentence about an address that may not be connected to."""
    leads = "" if host == address else f" ({host} leads there)"
    return (
        f"{address}{leads} is not allowed by push_allow: add the host, the address or its network"
        " to push_allow in the configuration"
    )


def check_endpoint(endpoint: str) -> CheckedEndpoint:
    """The parts of an http or https URL. Raises BadEndpoint."""
    if len(endpoint) > ENDPOINT_CHARACTERS_MAX:
        raise BadEndpoint(
            f"the endpoint has {len(endpoint):,} characters, more than {ENDPOINT_CHARACTERS_MAX:,}"
        )
    if "@" in re.split("[/?#]", endpoint.partition("://")[2], maxsplit=1)[0]:
        # Before anything that shows the endpoint: that is a secret.
        raise BadEndpoint(
            "the endpoint must have no user and no password: give them as an own header,"
            " `Authorization`, whose value is kept secret"
        )
    if not URL_CHARACTERS.fullmatch(endpoint):
        raise BadEndpoint(
            f"the endpoint must be a URL in ASCII, got {endpoint!r}: write other characters of a"
            " path as %XX, and those of a host as xn--..."
        )
    try:
        parts = urlsplit(endpoint)
        port = parts.port
        host = (parts.hostname or "").lower()
    except ValueError as error:
        raise BadEndpoint(f"the endpoint must be a URL, got {endpoint!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise BadEndpoint(
            f"the endpoint must be a URL with http or https and a host, got {endpoint!r}"
        )
    if "#" in endpoint:
        raise BadEndpoint(f"the endpoint must have no fragment (#...), got {endpoint!r}")
    if port == 0 or not AUTHORITY.fullmatch(parts.netloc):
        raise BadEndpoint(
            f"the endpoint must have a host and perhaps a port from 1 to 65535, got {endpoint!r}"
        )
    port = port or (443 if parts.scheme == "https" else 80)
    if "[" in parts.netloc:
        try:
            return CheckedEndpoint(parts.scheme, host, port, IPv6Address(host))
        except ValueError:
            raise BadEndpoint(f"the endpoint must have a valid address, got {host!r}") from None
    if _is_number(host.rstrip(".").rpartition(".")[2]):
        # Also 127.1, 2130706433 and 0x7f.1, which some libraries take for addresses.
        try:
            return CheckedEndpoint(parts.scheme, host, port, IPv4Address(host))
        except ValueError:
            raise BadEndpoint(
                f"the endpoint must have an address like 192.0.2.1, got {host!r}"
            ) from None
    if not NAME.fullmatch(host):
        raise BadEndpoint(f"the endpoint must have a host name, got {host!r}")
    return CheckedEndpoint(parts.scheme, host, port, None)


def _is_number(label: str) -> bool:
    return label.isdigit() or label.startswith("0x")
