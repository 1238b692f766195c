"""What all requests of a shard but those of produce may take, from their heads to their answers.

promised (before its body) -> promised again, when it is handed over -> released twice: by who
took in the body, and when it is answered

A *large* request is one whose body may take more than LARGE_BYTES once it is decoded; only the
admin API takes such bodies. There is one at a time, in addition to all others, and it is decoded
only if it has few enough values.
"""

from __future__ import annotations

from typing import NamedTuple

from daemon.http.head import TARGET_COPIES
from daemon.schemas.errors import ApiError, too_large

# 32,000 long polls, or three bodies of 1 MiB that are decoded.
REQUESTS_BYTES_MAX = 128 << 20
# Probes are answered beyond it.
PROBES_BYTES_MAX = 4 << 20
# A request that waits: its task, and what is kept of its target. A body is up to 32 times as large
# once it is decoded, as ``[1,1,...`` is where values are kept raw.
REQUEST_BYTES = 4 << 10
DECODED = 32
LARGE_BYTES = REQUESTS_BYTES_MAX // 2
# A large one: the largest body (16 MiB, of 50,000 files) twice while it is joined, and what its
# values take: 64 bytes for what each comma, colon and bracket begins, as was measured for the raw
# values of a list and for dicts, of which an entry has two.
LARGE_BYTES_MAX = 160 << 20
VALUE_BYTES = 64


class Promise(NamedTuple):
    """The token of a request (daemon/http/application.py)."""

    size_bytes: int
    is_large: bool = False


class RequestBudget:
    """The budget of one shard."""

    def __init__(self) -> None:
        self.promised_bytes = 0
        self._large = 0  # promises to the large one

    def promise(self, target_bytes: int, body_bytes: int, *, is_probe: bool = False) -> Promise:
        """Room for a request and its body. Raises ApiError 503."""
        needed = REQUEST_BYTES + TARGET_COPIES * target_bytes
        is_large = is_large_body(body_bytes)
        promise = Promise(needed if is_large else needed + DECODED * body_bytes, is_large)
        limit_bytes = REQUESTS_BYTES_MAX + (PROBES_BYTES_MAX if is_probe else 0)
        if is_large and self._large:
            raise _short(
                f"another request with more than {LARGE_BYTES // DECODED} bytes is being"
                " served, and there is room for one",
                LARGE_BYTES_MAX,
            )
        return self._promise(promise, limit_bytes)

    def promise_kept(self, size_bytes: int) -> Promise:
        """Room for what is kept of a request until it is answered. Raises ApiError 503."""
        return self._promise(Promise(size_bytes), REQUESTS_BYTES_MAX)

    def _promise(self, promise: Promise, limit_bytes: int) -> Promise:
        if self.promised_bytes + promise.size_bytes > limit_bytes:
            raise _short(
                f"the requests that this shard is serving take {self.promised_bytes} of the"
                f" {limit_bytes} bytes that they may, and this one would take"
                f" {promise.size_bytes} more",
                limit_bytes,
            )
        self.promise_again(promise)
        return promise

    def promise_again(self, promise: Promise) -> None:
        """A second promise for what has one, which the caller is going to release."""
        self.promised_bytes += promise.size_bytes
        self._large += promise.is_large

    def release(self, promise: Promise) -> None:
        """Gives it back."""
        self.promised_bytes -= promise.size_bytes
        self._large -= promise.is_large


def is_large_body(body_bytes: int) -> bool:
    """Whether a body of this many bytes belongs to a large request."""
    return DECODED * body_bytes > LARGE_BYTES


def check_values(body: bytes) -> None:
    """Raises ApiError 413 for a large body that would take more than it may once it is decoded."""
    if not is_large_body(len(body)):
        return
    values = sum(map(body.count, (b",", b":", b"[", b"{")))
    limit = (LARGE_BYTES_MAX - 2 * len(body)) // VALUE_BYTES
    if values > limit:
        raise too_large(
            f"the body has up to {values} values, a body of {len(body)} bytes may have {limit};"
            " send it in several requests",
            limit_values=limit,
        )


def _short(why: str, limit_bytes: int) -> ApiError:
    return ApiError(
        503,
        "memory_short",
        f"{why}; nothing of it was done, send it again",
        {"limit_bytes": limit_bytes},
        retry_after_s=1,
    )
