"""A store that fails in every known way, under virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.sim.schedule import MS, Process, Schedule, log_uniform
from uploader.stores.base import ForeignObject, ObjectHead, StoreBusy, StoreError

LIST_PAGE = 50


class Store:
    """Objects by key. With ``faults``: slow, busy, reset before, lost answer after."""

    url = "sim://"
    # A PUT whose sender gave up, or died, may arrive this much later.
    late_ms_max = 20_000

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._network = Process(schedule, "network")
        self.kept: dict[str, tuple[int, bytes]] = {}
        self.confirmed_ns: dict[str, int] = {}  # when a PUT was answered with success last
        self.faults = True
        self.puts = 0
        self.deleted: dict[str, bytes] = {}

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
        if fate == 3:
            schedule.start(self._network, "late put", lambda: self._arrive(key, body, crc32c))
            raise StoreError("timeout, and it is under way", retryable=True, outcome_unknown=True)
        self._keep(key, body, crc32c)
        schedule.sleep(int(log_uniform(rng, 0.1, 20) * MS))
        if fate == 2:
            raise StoreError("timeout, though it was kept", retryable=True, outcome_unknown=True)
        self.confirmed_ns[key] = schedule.now_ns
        return key

    def _keep(self, key: str, body: bytes, crc32c: int) -> None:
        found = self.kept.setdefault(key, (crc32c, body))
        if found[0] != crc32c:
            raise ForeignObject(f"{key} is taken by other bytes")

    def _arrive(self, key: str, body: bytes, crc32c: int) -> None:
        """What was sent arrives after its sender gave it up."""
        self._schedule.sleep(
            int(log_uniform(self._schedule.rng, 100, self.late_ms_max * 1_000)) * MS
        )
        self._keep(key, body, crc32c)

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """Part of an object."""
        body = self.kept[locator][1]
        return body[start:] if length is None else body[start : start + length]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """Each page as of a moment between the question and the answer."""
        while True:
            self._pause()
            page = sorted(key for key in self.kept if key.startswith(prefix) and key > start_after)
            heads = [ObjectHead(key, key, len(self.kept[key][1]), 0) for key in page[:LIST_PAGE]]
            self._pause()
            if not heads:
                return
            yield from heads
            start_after = heads[-1].key

    def delete(self, locators: Sequence[str]) -> None:
        """One after the other, slowly; what is gone is not an error."""
        for locator in locators:
            self._pause()
            if locator in self.kept:
                self.deleted[locator] = self.kept.pop(locator)[1]

    def _pause(self) -> None:
        self._schedule.sleep(int(log_uniform(self._schedule.rng, 0.1, 500) * MS))

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Not asked for in a run."""
        raise NotImplementedError(f"{key}, {len(body)} bytes")

    def check(self) -> None:
        """This store can be used."""

    def reconnect(self) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""
