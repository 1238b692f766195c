"""A load: what a generator sends, and what it measures.

A request is *acknowledged* if it was answered 2xx; other answers and failures are counted
separately. Latency is from the first byte of the request to the end of the answer, without the
pause before the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec


class Request(NamedTuple):
    """The one request that a load repeats. By TLS, no certificate is refused."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    method: str = "POST"
    by_tls: bool = False

    def encoded(self, host: str) -> bytes:
        """The request on the wire."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {len(self.body)}", "", ""]
        return "\r\n".join(lines).encode() + self.body


class Pace(NamedTuple):
    """How many connections, for how long, and the pause between an answer and the next request.

    Pauses are spread evenly over ``pause_ms`` x [1 - spread, 1 + spread].
    """

    connections: int
    seconds: float
    pause_ms: float = 0.0
    pause_spread: float = 0.5

    @property
    def pause_range_ms(self) -> tuple[float, float]:
        """The shortest and the longest pause."""
        width_ms = self.pause_ms * self.pause_spread
        return self.pause_ms - width_ms, self.pause_ms + width_ms


class Load(msgspec.Struct, frozen=True):
    """Counts and times of one run. ``generator_cpu_s`` is the CPU that the generator used."""

    requests: int
    not_2xx: int
    socket_errors: int
    seconds: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    generator_cpu_s: float

    @property
    def acked(self) -> int:
        return self.requests - self.not_2xx

    @property
    def acked_per_s(self) -> float:
        return self.acked / self.seconds


class Generator(Protocol):
    """Sends a load from its own processes on ``cpus``."""

    name: str

    def run(self, port: int, request: Request, pace: Pace, cpus: Iterable[int]) -> Load:
        """Runs one load against 127.0.0.1:``port``. Raises GeneratorError."""
        ...


class GeneratorError(Exception):
    """The generator failed; the message has the end of its output."""
