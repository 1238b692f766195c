"""A store that fails in every known way, under virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.sim.schedule import MS, Schedule, log_uniform
from uploader.stores.base import ForeignObject, ObjectHead, StoreBusy, StoreError


class Store:
    """Objects by key. With ``faults``: slow, busy, reset before, lost answer after."""

    url = "sim://"

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.kept: dict[str, tuple[int, bytes]] = {}
        self.confirmed_ns: dict[str, int] = {}  # when a PUT was answered with success last
        self.faults = True
        self.puts = 0

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """One attempt."""
        schedule, rng = self._schedule, self._schedule.rng
        self.puts += 1
        fate = rng.randrange(8) if self.faults else 9
        schedule.sleep(int(log_uniform(rng, 1, 3_000 if fate == 4 else 100)) * MS)
        if fate == 0:
            raise StoreBusy("503 SlowDown")
        if fate == 1:
            raise StoreError("reset before the body", retryable=True, outcome_unknown=True)
        found = self.kept.setdefault(key, (crc32c, body))
        if found[0] != crc32c:
            raise ForeignObject(f"{key} is taken by other bytes")
        schedule.sleep(int(log_uniform(rng, 0.1, 20) * MS))
        if fate in (2, 3):
            raise StoreError("timeout, though it was kept", retryable=True, outcome_unknown=True)
        self.confirmed_ns[key] = schedule.now_ns
        return key

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """Part of an object."""
        body = self.kept[locator][1]
        return body[start:] if length is None else body[start : start + length]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """Not asked for in a run."""
        raise NotImplementedError(prefix + start_after)

    def delete(self, locators: Sequence[str]) -> None:
        """Not asked for in a run."""
        raise NotImplementedError(str(locators))

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Not asked for in a run."""
        raise NotImplementedError(f"{key}, {len(body)} bytes")

    def check(self) -> None:
        """This store can be used."""

    def reconnect(self) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""
