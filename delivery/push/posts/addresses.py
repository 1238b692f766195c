"""Who may be called: the endpoint of a subscription, ``push_allow`` and ``push_deny``.

Two questions, asked at two times. ``check_endpoint`` is asked when a subscription is created: is
this a URL that can be called, as far as the URL itself shows it? ``AllowList.why_not`` is asked for
every connection, with the name in the URL and the address that is connected to: a name says
nothing about where it leads, and may lead elsewhere at the next look.

A name that ``push_allow`` has may lead anywhere: the author of the list trusts it. For any other
name, and for addresses, the address itself must be in a network of the list. What ``push_deny`` has
is not called whatever name leads there, unless ``push_allow`` has the address, or a network that is
no larger than the denied one: the narrower of the two decides. The entry ``own`` takes away from
``public`` only: a service of this machine may be allowed by its name.

*Public* is an address that the internet routes: not loopback, private, link-local, shared, reserved
or multicast. An IPv6 address that stands for an IPv4 address is as public, and as denied, as that
one.

Whether an address is this machine's *own*, the system is asked each time, since addresses come and
go: which source it would take to talk to an address is that address itself if it is our own.
Nothing is sent. The address that a NAT gives the machine outside is not known here.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

PUBLIC = "public"
OWN = "own"
METADATA = "metadata"
DENIED = (OWN, METADATA)  # by default
# Where clouds serve a machine's credentials and settings, or talk to its agents.
METADATA_HOSTS = (
    "169.254.169.254",  # AWS, Azure, Google, Oracle, DigitalOcean, Hetzner, OpenStack and others
    "169.254.170.2", "169.254.170.23",  # AWS: tasks of ECS, pods of EKS
    "fd00:ec2::254", "fd00:ec2::23",  # AWS
    "168.63.129.16",  # Azure
    "fd20:ce::254",  # Google
    "100.100.100.200",  # Alibaba
    "169.254.0.23",  # Tencent
    "169.254.42.42", "fd00:42::42",  # Scaleway
    "192.0.0.192",  # Oracle
    "fe80::a9fe:a9fe",  # OpenStack
)  # fmt: skip
ENTRIES_MAX = 1_000
ENTRY_CHARACTERS_MAX = 256  # a name has 253, and may begin with *.
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
INTERFACES_6 = Path("/proc/self/net/if_inet6")
# There is no way to the address, so it is not here.
_NOT_HERE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT,
             errno.EACCES, errno.EINVAL)  # fmt: skip
_ANY_PORT = 9


class BadEndpoint(ValueError):
    """The endpoint is not a URL that can be called; the text says why, and what to do."""


class ForbiddenEndpoint(ValueError):
    """``push_allow`` does not allow the endpoint, or ``push_deny`` denies it; the text says it."""


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
    meant = _meant(plain)[-1]
    if isinstance(meant, IPv4Address):
        return is_public(meant)
    return plain in GLOBAL_UNICAST and not any(plain in network for network in NOT_PUBLIC_6)


def is_own(address: IPAddress) -> bool:
    """Whether this machine, or one in an IPv6 network of an interface, has the address. Raises
    OSError if there is no open file left to ask with."""
    is_6 = isinstance(address, IPv6Address)
    if is_6 and any(address in network for network in networks_6(INTERFACES_6)):
        return True
    try:
        with socket.socket(socket.AF_INET6 if is_6 else socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((str(address), _ANY_PORT))
            return ipaddress.ip_address(asked.getsockname()[0]) == address
    except OSError as error:
        if error.errno in _NOT_HERE:
            return False
        raise


def networks_6(interfaces: Path) -> list[IPv6Network]:
    """The IPv6 networks of all interfaces; none if the machine has no IPv6."""
    try:
        lines = interfaces.read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [
        IPv6Network((int(address, 16), int(prefix, 16)), strict=False)
        for address, _, prefix, *_ in fields
    ]


class AllowList:
    """``push_allow`` and ``push_deny``, ready to be asked. ``set`` changes them for all who have
    this object. Raises ValueError for an entry that cannot be one."""

    def __init__(
        self,
        entries: Sequence[str] = (PUBLIC,),
        denied: Sequence[str] = DENIED,
        is_own: Callable[[IPAddress], bool] = is_own,
    ) -> None:
        self._is_own = is_own
        self.set(entries, denied)

    def set(self, entries: Sequence[str], denied: Sequence[str]) -> None:
        """Other lists, from now on. Raises ValueError, and then nothing has changed."""
        entries, denied = _unique(entries), _unique(denied)
        names: set[str] = set()
        networks = [each for entry in entries if (each := _allowed(entry, names)) is not None]
        is_own_denied = OWN in denied
        denied_networks = [each for entry in denied for each in _denied(entry)]
        self.entries, self.denied = entries, denied
        self._is_public_allowed = PUBLIC in entries
        self._names = {name for name in names if not name.startswith("*.")}
        self._suffixes = {name.removeprefix("*.") for name in names if name.startswith("*.")}
        self._networks = networks
        self._is_own_denied = is_own_denied
        self._denied = denied_networks

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

    def why_not(self, host: str, address: str) -> str:
        """Why no connection to ``address`` may be made for a URL with ``host``, in a sentence;
        empty: it may. Raises OSError if that cannot be found out now."""
        known = _meant(ipaddress.ip_address(address))
        shown = address if host == address else f"{address} ({host} leads there)"
        allowed = max((_narrowness(network, known[:1]) for network in self._networks), default=-1)
        denying = max(self._denied, key=lambda each: _narrowness(each, known), default=None)
        if denying is not None and _narrowness(denying, known) > allowed:
            return (
                f"{shown} is denied by push_deny, which has {denying}: to call it anyway, add"
                " this address to push_allow in the configuration"
            )
        if allowed >= 0 or self.allows_name(host):
            return ""
        if not (self._is_public_allowed and is_public(known[0])):
            return (
                f"{shown} is not allowed by push_allow: add the host, the address or its network to"
                " push_allow in the configuration"
            )
        if self._is_own_denied and any(self._is_own(each) for each in known):
            return (
                f"{shown} is denied by push_deny, which has `own`: it is an address of this machine"
                " or of its IPv6 network; add the host or the address to push_allow in the"
                " configuration"
            )
        return ""

    def check(self, endpoint: str) -> CheckedEndpoint:
        """The endpoint, if it may be called as far as the URL shows it.

        Raises BadEndpoint and ForbiddenEndpoint.
        """
        found = check_endpoint(endpoint)
        is_local = found.host.rstrip(".").rpartition(".")[2] == "localhost"
        address = IPv4Address("127.0.0.1") if is_local else found.address
        try:
            why = "" if address is None else self.why_not(found.host, str(address))
        except OSError:
            why = ""  # each connection asks again
        if why:
            raise ForbiddenEndpoint(why)
        return found


def _unique(entries: Sequence[str]) -> tuple[str, ...]:
    if len(entries) > ENTRIES_MAX:
        raise ValueError(f"must have at most {ENTRIES_MAX} entries, not {len(entries)}")
    found = tuple(dict.fromkeys(entry.strip().lower() for entry in entries))
    if any(len(entry) > ENTRY_CHARACTERS_MAX for entry in found):
        raise ValueError(f"must have entries of at most {ENTRY_CHARACTERS_MAX} characters")
    return found


def _network(entry: str) -> IPNetwork | None:
    """The network or address of an entry; None if it is not one. For addresses that stand for those
    of IPv4, the network of these: nothing else is compared (``_meant``). Raises ValueError."""
    try:
        network = ipaddress.ip_network(entry.strip("[]"))
        first = network.network_address
        if isinstance(first, IPv4Address) or first.ipv4_mapped is None:
            return network
        return IPv4Network((first.ipv4_mapped, network.prefixlen - 96))
    except ValueError as error:
        if "/" in entry:
            raise ValueError(f"must have networks like 10.0.0.0/8: {error}") from None
        return None


def _allowed(entry: str, names: set[str]) -> IPNetwork | None:
    """The network of an entry of ``push_allow``; adds names to ``names``. Raises ValueError."""
    if entry == PUBLIC or (network := _network(entry)) is not None:
        return None if entry == PUBLIC else network
    name = entry.removeprefix("*.").rstrip(".")
    if not NAME.fullmatch(name) or _is_number(name.rpartition(".")[2]):
        raise ValueError(
            f"must have `public`, host names like hooks.example.com or *.example.com,"
            f" addresses, or networks like 10.0.0.0/8; {entry!r} is none of them"
        )
    names.add(f"*.{name}" if entry.startswith("*.") else name)
    return None


def _denied(entry: str) -> Iterable[IPNetwork]:
    """The networks of an entry of ``push_deny``. Raises ValueError."""
    if entry == OWN:
        return ()
    if entry == METADATA:
        return map(ipaddress.ip_network, METADATA_HOSTS)
    if (network := _network(entry)) is None:
        raise ValueError(
            f"must have `own`, `metadata`, addresses, or networks like 10.0.0.0/8; {entry!r} is"
            " none of them"
        )
    return (network,)


def _meant(address: IPAddress) -> tuple[IPAddress, ...]:
    """An address without its zone, and the IPv4 address that it stands for, if it does."""
    if isinstance(address, IPv4Address):
        return (address,)
    plain = IPv6Address(int(address))
    if plain.ipv4_mapped is not None:
        return (plain.ipv4_mapped,)
    for network, shift in TRANSLATED:
        if plain in network:
            return plain, IPv4Address(int(plain) >> shift & 0xFFFFFFFF)
    return (plain,)


def _narrowness(network: IPNetwork, addresses: Iterable[IPAddress]) -> int:
    """How many bits of its addresses a network fixes; -1 if it has none of these. Those of IPv4
    count as the last of 128."""
    if not any(address in network for address in addresses):
        return -1
    return network.prefixlen + 128 - network.max_prefixlen


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
