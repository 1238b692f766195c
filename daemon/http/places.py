"""Who may have a connection: there is a limit for a shard, and one for each address. Pure.

    accepted -> has a place -> left (lost, or a stream from now on)
    accepted, but the shard or the address is full -> the longest idle connection of it gives way
    ... and none is idle -> has a reserved place: it is refused at its first request, unless that is
    a probe

So idle connections make room for new ones, and busy ones are at most the share of one address.
Probes reach the shard in both cases. A connection in a reserved place gives way to the next one,
however short it has been idle, and so keeps no probe out.

Idle means that no request is under way; the beginning of a head does not count as one. The longest
idle one is found in a list that is made at most once per moment of the coarse clock, however many
come.

Rules (``check_invariants``): at most ``limit`` have places, at most ``address_limit`` of one
address; at most ``reserved_limit`` have reserved ones.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Generic, Protocol, TypeVar

# A connection between two requests is not idle. Those that reconnect now and then are younger.
IDLE_NS_MIN: Final = 1_000_000_000
IPV6_NETWORK_BITS: Final = 64  # what one customer of a provider has, at least


class Occupant(Protocol):
    """A connection."""

    def idle_since_ns(self) -> int | None:
        """Since when no request is under way on it; None while one is."""

    def give_way(self) -> None:
        """Ends it, for others."""


Member = TypeVar("Member", bound=Occupant)


class _Group(Generic[Member]):
    """Some of the members, and the idle ones among them, the longest last."""

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self._idle: list[tuple[int, Member]] = []
        self._made_ns = -1

    def longest_idle(self, before_ns: int, now_ns: int) -> Member | None:
        """The member that has been idle for the longest time, and since ``before_ns`` at least."""
        while True:
            while self._idle:
                since_ns, member = self._idle[-1]
                if member in self.members and member.idle_since_ns() == since_ns:
                    return member if since_ns <= before_ns else None
                self._idle.pop()
            if self._made_ns == now_ns:
                return None
            self._made_ns = now_ns
            found = ((member.idle_since_ns(), member) for member in self.members)
            self._idle = [(since_ns, member) for since_ns, member in found if since_ns is not None]
            self._idle.sort(key=lambda each: -each[0])


class ConnectionPlaces(Generic[Member]):
    """The places of one shard."""

    def __init__(self, limit: int, address_limit: int, reserved_limit: int) -> None:
        self.limit = limit
        self.address_limit = address_limit
        self.reserved_limit = reserved_limit
        self._all: _Group[Member] = _Group()
        self._reserved: dict[Member, None] = {}  # the longest there first
        self._by_address: dict[str, _Group[Member]] = {}
        self._address_of: dict[Member, str] = {}

    def __len__(self) -> int:
        return len(self._all.members)

    def take(self, member: Member, address: str, now_ns: int) -> bool:
        """Gives a place to a new connection, if need be that of the longest idle one; False if
        there is none."""
        address = same_address(address)
        of_address = self._by_address.get(address)
        full: _Group[Member] | None = None
        if of_address is not None and len(of_address.members) >= self.address_limit:
            full = of_address
        elif len(self._all.members) >= self.limit:
            full = self._all
        if full is not None:
            longest = full.longest_idle(now_ns - IDLE_NS_MIN, now_ns)
            if longest is None:
                return False
            self.leave(longest)
            longest.give_way()
        self._by_address.setdefault(address, _Group()).members[member] = None
        self._all.members[member] = None
        self._address_of[member] = address
        return True

    def reserve(self, member: Member) -> bool:
        """Gives a reserved place to a connection without another; False if there is none."""
        if len(self._reserved) >= self.reserved_limit:
            idle = (each for each in self._reserved if each.idle_since_ns() is not None)
            first = next(idle, None)
            if first is None:
                return False
            self.leave(first)
            first.give_way()
        self._reserved[member] = None
        return True

    def leave(self, member: Member) -> None:
        """A connection is lost, gives way or has become a stream."""
        self._reserved.pop(member, None)
        address = self._address_of.pop(member, None)
        if address is None:
            return
        del self._all.members[member]
        of_address = self._by_address[address]
        del of_address.members[member]
        if not of_address.members:
            del self._by_address[address]

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self) <= self.limit and len(self._reserved) <= self.reserved_limit
        assert self._all.members.keys() == self._address_of.keys()
        groups = self._by_address.items()
        assert all(0 < len(group.members) <= self.address_limit for _, group in groups)
        assert {m: a for a, group in groups for m in group.members} == self._address_of


def same_address(address: str) -> str:
    """What counts as one address: of IPv6, a network of 64 bits."""
    if ":" not in address:
        return address
    try:
        read = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if read.ipv4_mapped is not None:
        return str(read.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(read), IPV6_NETWORK_BITS), strict=False))
