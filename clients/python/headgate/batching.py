"""How a producer batches: a state machine of encoded records. It does no I/O and reads no clock.

    add -> waiting -> due -> one request under way -> stored -> forgotten

One request is under way at a time, so records are stored in the order in which they were added,
whatever is repeated. While it is, the next batch fills. All that is not stored counts against
``buffer_bytes``. A failure is for good: the records after it would overtake it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headgate.errors import HeadgateError, ProducerFailed

RECORD_BYTES = 64  # what a record takes besides its text


@dataclass(frozen=True, slots=True)
class Limits:
    """When a batch is full, how much is kept, and how long a first record waits for others."""

    batch_records: int = 5_000
    batch_bytes: int = 2 << 20
    buffer_bytes: int = 16 << 20
    linger_s: float = 0.01

    def __post_init__(self) -> None:
        for name in ("batch_records", "batch_bytes", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.linger_s >= 0:
            raise ValueError(f"linger_s must not be negative, got {self.linger_s}")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one request sends: its number from 0, and how many records were before it."""

    number: int
    before: int
    lines: list[bytes]


class Batching:
    """The records of a producer that are not stored. ``stored`` counts those that are."""

    def __init__(self, limits: Limits, stored: int = 0) -> None:
        self._limits = limits
        self.added = self.stored = stored
        self._bytes = 0
        self._waiting: deque[bytes] = deque()
        self._first_s = 0.0  # when the first of them came
        self._under_way: Batch | None = None
        self._number = 0
        self._flush_to = stored
        self._failure: HeadgateError | None = None

    def check(self) -> None:
        """Raises ProducerFailed after a failure."""
        if self._failure is not None:
            raise ProducerFailed(self._failure, self.added - self.stored) from self._failure

    def has_room(self, line: bytes) -> bool:
        """Whether a record can be added; a large one can if there is no other. Raises as
        ``check``."""
        self.check()
        return not self._bytes or self._bytes + _size(line) <= self._limits.buffer_bytes

    def add(self, line: bytes, now_s: float) -> None:
        """Takes a record for which there is room."""
        if not self._waiting:
            self._first_s = now_s
        self._waiting.append(line)
        self._bytes += _size(line)
        self.added += 1

    def flush(self) -> int:
        """Waits for no others to what is there; it is stored when ``is_stored`` of the result."""
        self._flush_to = self.added
        return self.added

    def is_stored(self, count: int) -> bool:
        """Whether the first ``count`` records are stored. Raises as ``check``."""
        self.check()
        return self.stored >= count

    def due(self, now_s: float) -> Batch | None:
        """The batch to send now."""
        wait_s = self.wait_s(now_s)
        if wait_s is None or wait_s > 0:
            return None
        lines: list[bytes] = []
        size = 0
        while self._waiting and len(lines) < self._limits.batch_records:
            size += _size(self._waiting[0])
            if lines and size > self._limits.batch_bytes:
                break
            lines.append(self._waiting.popleft())
        self._first_s = now_s  # what is left has waited for this request
        self._under_way = Batch(self._number, self.stored, lines)
        self._number += 1
        return self._under_way

    def wait_s(self, now_s: float) -> float | None:
        """How long until a batch is due; None: until something is added or stored."""
        if self._failure is not None or self._under_way is not None or not self._waiting:
            return None
        is_full = len(self._waiting) >= self._limits.batch_records
        if is_full or self._bytes >= self._limits.batch_bytes or self._flush_to > self.stored:
            return 0.0
        return max(0.0, self._first_s + self._limits.linger_s - now_s)

    def done(self) -> None:
        """The batch under way is stored."""
        assert self._under_way is not None
        self.stored += len(self._under_way.lines)
        self._bytes -= sum(map(_size, self._under_way.lines))
        self._under_way = None

    def fail(self, error: HeadgateError) -> None:
        """The batch under way is not stored, or not known to be."""
        self._failure = error

    def close(self) -> None:
        """Nothing more is sent, which is a failure unless all is stored."""
        if self._failure is None and self.stored < self.added:
            self._failure = closed()


def closed() -> HeadgateError:
    """The failure of what a producer had when it was closed."""
    return HeadgateError("closed", "the producer was closed before all was stored")


def _size(line: bytes) -> int:
    return len(line) + RECORD_BYTES
