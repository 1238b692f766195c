"""What all requests of a shard but those of produce may take, from their heads to their answers.

promised (before its body) -> promised again, when it is handed over -> released twice: by who
took in the body, and when it is answered
"""

from __future__ import annotations

from typing import NamedTuple

from daemon.schemas.errors import ApiError

# 32,000 long polls, or six bodies of 1 MiB that are decoded.
REQUESTS_BYTES_MAX = 128 << 20
# A request that waits: its task, and what is kept of its target. A body is up to twenty times as
# large once it is decoded, as ``[[],[],...`` is.
REQUEST_BYTES = 4 << 10
TARGET_COPIES = 4
DECODED = 20
# No request counts more, or the largest of the admin API (16 MiB, of 50,000 files) had to be alone.
REQUEST_BYTES_MAX = REQUESTS_BYTES_MAX // 4


class Promise(NamedTuple):
    """The token of a request (daemon/http/application.py)."""

    size_bytes: int


class RequestBudget:
    """The budget of one shard."""

    def __init__(self) -> None:
        self.promised_bytes = 0

    def promise(self, target_bytes: int, body_bytes: int) -> Promise:
        """Room for a request and its body. Raises ApiError 503."""
        needed = REQUEST_BYTES + TARGET_COPIES * target_bytes + DECODED * body_bytes
        promise = Promise(min(needed, REQUEST_BYTES_MAX))
        if self.promised_bytes + promise.size_bytes > REQUESTS_BYTES_MAX:
            raise ApiError(
                503,
                "memory_short",
                f"the requests that this shard is serving take {self.promised_bytes} of the"
                f" {REQUESTS_BYTES_MAX} bytes that they may, and this one would take"
                f" {promise.size_bytes} more; nothing of it was done, send it again",
                {"limit_bytes": REQUESTS_BYTES_MAX},
                retry_after_s=1,
            )
        self.promise_again(promise)
        return promise

    def promise_again(self, promise: Promise) -> None:
        """A second promise for what has one, which the caller is going to release."""
        self.promised_bytes += promise.size_bytes

    def release(self, promise: Promise) -> None:
        """Gives it back."""
        self.promised_bytes -= promise.size_bytes
