"""How much a token's bearer, and all together, may use: limits of the token and of the daemon.

A request takes from each rate that it concerns, or is refused with 429 before its body is taken in.
What is known only later (how long an answer is) is charged afterwards: then the next ones wait. The
counting is in shared memory (shards/boards/limits.py), so limits hold over all shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from daemon.access.token_file import Token
from daemon.config.limits import BY_NAME, limit_text
from daemon.schemas.errors import ApiError
from shards.boards.limits import SharedCount, SharedRate
from shards.segment import Segment

DAEMON_SLOT = 0


class _Limited(NamedTuple):
    rate: SharedRate
    whose: str
    of: str
    value: float


class _Counted(NamedTuple):
    now: SharedCount
    whose: str
    of: str
    value: float


class _Limits(NamedTuple):
    """Of one slot, by name."""

    whose: str
    of: str
    rates: dict[str, _Limited]
    counts: dict[str, _Counted]
    objects: dict[str, float]


class Carried(Protocol):
    """A connection, which is among those of one allowance: that of its last request."""

    allowance: Allowance | None


class Allowance:
    """Of the bearers of one token, on one shard. The limits of the daemon count too."""

    __slots__ = (
        "_bytes_in", "_bytes_out", "_connections", "_keys", "_objects", "_requests", "_settings",
        "_streams",
    )  # fmt: skip

    def __init__(self, *limits: _Limits) -> None:
        def those(name: str) -> tuple[_Limited, ...]:
            return tuple(each.rates[name] for each in limits if name in each.rates)

        def counts(name: str) -> tuple[_Counted, ...]:
            return tuple(each.counts[name] for each in limits if name in each.counts)

        self._objects = [each for each in limits if each.objects]
        self._connections, self._streams = counts("connections"), counts("streams")
        self._requests, self._settings = those("requests"), those("settings")
        self._bytes_in, self._bytes_out = those("bytes_in"), those("bytes_out")
        self._keys = those("dedupe_entries")

    def take(self, connection: Carried, body_bytes: int, *, is_setting: bool = False) -> None:
        """A request comes in. Raises ApiError 429."""
        if connection.allowance is not self:
            self._take_connection(connection)
        # Written out, since every request of a limited token comes here.
        for limited in self._requests:
            wait_ns = limited.rate.take(1)
            if wait_ns:
                raise self._refused(limited, wait_ns, body_bytes)
        if body_bytes:
            for limited in self._bytes_in:
                wait_ns = limited.rate.take(body_bytes)
                if wait_ns:
                    raise self._refused(limited, wait_ns, body_bytes)
        for limited in self._bytes_out:
            wait_ns = limited.rate.take(1)
            if wait_ns:
                raise self._refused(limited, wait_ns, body_bytes)
        if is_setting:
            for limited in self._settings:
                wait_ns = limited.rate.take(1)
                if wait_ns:
                    raise self._refused(limited, wait_ns, body_bytes)

    def charge(self, connection: Carried, body_bytes: int) -> None:
        """A request comes in that is not refused for a rate: the next ones wait for the debt.
        Raises ApiError 429 for a connection too many."""
        if connection.allowance is not self:
            self._take_connection(connection)
        for limited in self._requests:
            limited.rate.charge(1)
        for limited in self._bytes_in:
            limited.rate.charge(body_bytes)

    def charge_setting(self) -> None:
        """Such a request changes something other than records."""
        for limited in self._settings:
            limited.rate.charge(1)

    def debt_ns(self) -> int:
        """For how many ns no such request should come in."""
        rates = (*self._requests, *self._bytes_in, *self._bytes_out, *self._settings)
        return max((each.rate.debt_ns() for each in rates), default=0)

    def _refused(self, refusing: _Limited, wait_ns: int, body_bytes: int) -> ApiError:
        """Gives back what was taken before this one refused."""
        for name, those, units in (
            ("requests", self._requests, 1),
            ("bytes_in", self._bytes_in, body_bytes),
            ("bytes_out", self._bytes_out, 1),
            ("settings", self._settings, 1),
        ):
            for limited in those:
                if limited is refusing:
                    return _refusal(name, limited, wait_ns)
                limited.rate.give_back(units)
        raise AssertionError(refusing)

    def take_key(self) -> None:
        """A request with an idempotency key is to be stored. Raises ApiError 429."""
        for place, limited in enumerate(self._keys):
            wait_ns = limited.rate.take(1)
            if wait_ns:
                for other in self._keys[:place]:
                    other.rate.give_back(1)
                raise _refusal("dedupe_entries", limited, wait_ns)

    def give_key_back(self) -> None:
        """It was not stored after all."""
        for limited in self._keys:
            limited.rate.give_back(1)

    def _take_connection(self, connection: Carried) -> None:
        if connection.allowance is not None:
            connection.allowance.count_connection(-1)
            connection.allowance = None
        _check("connections", self._connections)
        self.count_connection(1)
        connection.allowance = self

    def count_connection(self, change: int) -> None:
        """There is one connection more, or one less."""
        for each in self._connections:
            each.now.add(change)

    def check_stream(self) -> None:
        """Raises ApiError 429 if there may be no further stream."""
        _check("streams", self._streams)

    def count_stream(self, change: int) -> None:
        """There is one stream more, or one less."""
        for each in self._streams:
            each.now.add(change)

    def limits_objects(self, *names: str) -> bool:
        """Whether there is a limit of any of these."""
        return any(name in each.objects for each in self._objects for name in names)

    def check_objects(self, name: str, of_token: int, of_all: int) -> None:
        """Raises ApiError 429 if there may not be this many of the token's, or of all."""
        for each in self._objects:
            value = each.objects.get(name)
            count = of_token if each.of == "token" else of_all
            if value is not None and count > value:
                raise _too_many(name, value, each.whose, each.of, count - 1)

    def charge_out(self, size_bytes: int) -> int:
        """Charges the bytes of an answer that are sent. Returns for how many ns nothing more should
        be."""
        return max((each.rate.charge(size_bytes) for each in self._bytes_out), default=0)

    def charge_in(self, size_bytes: int) -> int:
        """Charges the bytes of a body of unknown length that were received; likewise."""
        return max((each.rate.charge(size_bytes) for each in self._bytes_in), default=0)


def _check(name: str, counted: tuple[_Counted, ...]) -> None:
    for each in counted:
        if each.now.total() >= each.value:
            error = _too_many(name, each.value, each.whose, each.of, each.now.total())
            error.close = True
            raise error


def _too_many(name: str, value: float, whose: str, of: str, count: int) -> ApiError:
    return ApiError(
        429,
        "over_limit",
        f"{whose} is limited to {value:g} {name}, and there are {count}; nothing of this request"
        f" was done: end some, {_remedy(of)}",
        {"limit": name, "value": f"{value:g}", "of": of},
        retry_after_s=1,
    )


def _remedy(of: str) -> str:
    if of == "token":
        return "or ask for a token with a higher limit"
    return "or raise it in the daemon's configuration (limits)"


def _refusal(name: str, limited: _Limited, wait_ns: int) -> ApiError:
    retry_after_ms = -(-wait_ns // 1_000_000)
    value = limit_text(name, limited.value)
    return ApiError(
        429,
        "over_limit",
        f"{limited.whose} is limited to {value} {BY_NAME[name].says} ({name}); nothing of this"
        f" request was done, send it again in {retry_after_ms} ms, {_remedy(limited.of)}",
        {"limit": name, "value": value, "of": limited.of, "retry_after_ms": retry_after_ms},
        retry_after_s=-(-retry_after_ms // 1000),
    )


class Allowances:
    """Makes the allowances of one shard."""

    def __init__(self, segment: Segment, shard: int, daemon_limits: Mapping[str, float]) -> None:
        self._segment, self._shard = segment, shard
        self._counts: dict[tuple[int, int], SharedCount] = {}
        self._daemon = self._limits("the daemon", "daemon", DAEMON_SLOT, daemon_limits)
        self.of_all = Allowance(self._daemon) if daemon_limits else None

    def of_token(self, token: Token) -> Allowance | None:
        """That of a token; None if nothing is limited."""
        if not token.limits:
            return self.of_all
        own = self._limits(f"token {token.name!r}", "token", token.slot, token.limits)
        return Allowance(own, self._daemon)

    def _limits(self, whose: str, of: str, slot: int, limits: Mapping[str, float]) -> _Limits:
        found = _Limits(whose, of, {}, {}, {})
        for name, value in limits.items():
            limit = BY_NAME[name]
            if limit.word is None:
                found.objects[name] = value
            elif limit.is_rate:
                rate = SharedRate(self._segment, self._shard, slot, limit.word, value)
                found.rates[name] = _Limited(rate, whose, of, value)
            else:
                found.counts[name] = _Counted(self._count(slot, limit.word), whose, of, value)
        return found

    def _count(self, slot: int, word: int) -> SharedCount:
        """The same object for a token that has changed, whose connections are still there."""
        found = self._counts.get((slot, word))
        if found is None:
            found = self._counts[slot, word] = SharedCount(self._segment, self._shard, slot, word)
            found.clear()
        return found
