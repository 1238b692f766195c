"""Waits for a key, or for time to pass."""

from __future__ import annotations

import os
import select

from shards.clock import monotonic_ns


def wait_for_key(keys_fd: int | None, within_s: float) -> str | None:
    """A key from the terminal, or None. Without one, or after its end, it only waits."""
    end_ns = monotonic_ns() + int(within_s * 1e9)
    while True:
        left_s = max(0.0, (end_ns - monotonic_ns()) / 1e9)
        ready, _, _ = select.select([] if keys_fd is None else [keys_fd], [], [], left_s)
        if not ready or keys_fd is None:
            return None
        key = os.read(keys_fd, 1)
        if key:
            return key.decode(errors="replace")
        keys_fd = None  # the terminal is gone
