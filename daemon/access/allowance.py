"""How much a token's bearer, and all together, may use: limits of the token and of the daemon.

A request takes from each rate that it concerns, or is refused with 429 before its body is taken in.
What is known only later (how long an answer is) is charged afterwards: then the next ones wait. The
counting is in shared memory (shards/boards/limits.py), so limits hold over all shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from daemon.access.token_file import Token
from daemon.config.limits import BY_NAME, limit_text
from daemon.schemas.errors import ApiError
from shards.boards.limits import SharedRate
from shards.segment import Segment

DAEMON_SLOT = 0


class _Limited(NamedTuple):
    rate: SharedRate
    whose: str
    of: str
    value: float


class Allowance:
    """Of the bearers of one token, on one shard. The limits of the daemon count too."""

    __slots__ = ("_bytes_in", "_bytes_out", "_requests", "_settings")

    def __init__(self, *limited: Mapping[str, _Limited]) -> None:
        def those(name: str) -> tuple[_Limited, ...]:
            return tuple(each[name] for each in limited if name in each)

        self._requests, self._settings = those("requests"), those("settings")
        self._bytes_in, self._bytes_out = those("bytes_in"), those("bytes_out")

    def take(self, body_bytes: int, *, is_setting: bool = False) -> None:
        """A request comes in. Raises ApiError 429."""
        taken: list[tuple[_Limited, int]] = []
        self._take("requests", self._requests, 1, taken)
        if body_bytes and self._bytes_in:
            self._take("bytes_in", self._bytes_in, body_bytes, taken)
        if self._bytes_out:
            self._take("bytes_out", self._bytes_out, 1, taken)
        if is_setting:
            self._take("settings", self._settings, 1, taken)

    def _take(
        self, name: str, of: tuple[_Limited, ...], units: int, taken: list[tuple[_Limited, int]]
    ) -> None:
        for limited in of:
            wait_ns = limited.rate.take(units)
            if wait_ns:
                for other, given in taken:
                    other.rate.give_back(given)
                raise _refusal(name, limited, wait_ns)
            taken.append((limited, units))

    def charge_out(self, size_bytes: int) -> int:
        """So much of an answer is sent. Returns for how many ns nothing more should be."""
        return max((each.rate.charge(size_bytes) for each in self._bytes_out), default=0)

    def charge_in(self, size_bytes: int) -> int:
        """So much of a body of unknown length was received; likewise."""
        return max((each.rate.charge(size_bytes) for each in self._bytes_in), default=0)


def _refusal(name: str, limited: _Limited, wait_ns: int) -> ApiError:
    retry_after_ms = -(-wait_ns // 1_000_000)
    value = limit_text(name, limited.value)
    remedy = (
        "or ask for a token with a higher one"
        if limited.of == "token"
        else "or raise it in the daemon's configuration (limits)"
    )
    return ApiError(
        429,
        "over_limit",
        f"{limited.whose} is limited to {value} {BY_NAME[name].says} ({name}); nothing of this"
        f" request was done, send it again in {retry_after_ms} ms, {remedy}",
        {"limit": name, "value": value, "of": limited.of, "retry_after_ms": retry_after_ms},
        retry_after_s=-(-retry_after_ms // 1000),
    )


class Allowances:
    """Makes the allowances of one shard."""

    def __init__(self, segment: Segment, shard: int, daemon_limits: Mapping[str, float]) -> None:
        self._segment, self._shard = segment, shard
        self._daemon = self._limited("the daemon", "daemon", DAEMON_SLOT, daemon_limits)
        self.of_all = Allowance(self._daemon) if self._daemon else None

    def of_token(self, token: Token) -> Allowance | None:
        """That of a token; None if nothing is limited."""
        if not token.limits:
            return self.of_all
        own = self._limited(f"token {token.name!r}", "token", token.slot, token.limits)
        return Allowance(own, self._daemon)

    def _limited(
        self, whose: str, of: str, slot: int, limits: Mapping[str, float]
    ) -> dict[str, _Limited]:
        found: dict[str, _Limited] = {}
        for name, value in limits.items():
            word = BY_NAME[name].word
            if word is not None:
                rate = SharedRate(self._segment, self._shard, slot, word, value)
                found[name] = _Limited(rate, whose, of, value)
        return found
