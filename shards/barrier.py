"""Order between processes on machines that reorder memory accesses: ``fence``, or None.

What is stored last makes the stores before it true (docs/protocol.md). x86-64 keeps the order of
stores, and of loads, by itself, so nothing is done there. aarch64 does not: there each publication
is preceded by a fence, and so is each load of what a publication has made true::

    writer   payload, fence, word            reader   word, fence, payload
    writer   word, fence, payload            reader   payload, fence, word   (bytes may be reused)

The fence is what Python has: an uncontended lock. Taking it acquires and giving it back releases,
and no access passes a release that is followed by an acquire; so it is taken twice. (Once would
not do: accesses of both sides may move to between the acquire and the release.)

Which machines are known to be right is said here, and the daemon does not start on others.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable

_ORDERED = "x86_64"
_FENCED = "aarch64"
SUPPORTED = (_ORDERED, _FENCED)

_lock = threading.Lock()


class MachineUnknown(RuntimeError):
    """A kind of processor on which the order of shared memory was never looked at."""


def _fence() -> None:
    """No load or store passes this, in either direction."""
    with _lock:
        pass
    with _lock:
        pass


def fence_for(machine: str) -> Callable[[], None] | None:
    """The fence that a machine needs, None for none."""
    return None if machine == _ORDERED else _fence


def require_supported(machine: str) -> None:
    """Raises MachineUnknown unless shared memory is known to be kept in order on ``machine``."""
    if machine not in SUPPORTED:
        raise MachineUnknown(
            f"this machine is {machine or 'unknown'}; headgate runs on {' and '.join(SUPPORTED)},"
            " where the order of shared memory is known"
        )


fence = fence_for(platform.machine())
