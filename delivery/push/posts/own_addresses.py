"""Whether an address is this machine's own, or in an IPv6 network that it is in.

The system is asked each time, since addresses come and go: which source it would take to talk to an
address is that address itself if it is our own. Nothing is sent. The address that
a NAT gives the machine outside is not known here.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path

INTERFACES_6 = Path("/proc/self/net/if_inet6")
# There is no way to the address, so it is not here.
_NOT_HERE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT,
             errno.EACCES, errno.EINVAL)  # fmt: skip
_ANY_PORT = 9


def is_own(address: IPv4Address | IPv6Address) -> bool:
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
