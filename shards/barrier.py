"""Memory order between processes on machines that reorder accesses: ``fence``, or None.

The last store of a publication makes the stores before it valid (docs/protocol.md). x86-64 keeps
the order of stores and of loads, so no fence is needed. aarch64 does not: a fence precedes each
publication, and each load of what a publication has made valid::

    writer   payload, fence, word            reader   word, fence, payload
    writer   word, fence, payload            reader   payload, fence, word   (bytes may be reused)

The fence is what Python offers: an uncontended lock. Taking it is an acquire, releasing it is a
release, and no access passes a release that is followed by an acquire. So the lock is taken twice.
(Once is not enough: accesses of both sides may move between the acquire and the release.)

This module lists the machines on which the order is known; the daemon does not start on others.
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
    """A kind of processor whose memory order was never examined."""


def _fence() -> None:
    """No load or store passes this, in either direction."""
    with _lock:
        pass
    with _lock:
        pass


def fence_for(machine: str) -> Callable[[], None] | None:
    """The fence that a machine needs, or None."""
    return None if machine == _ORDERED else _fence


def require_supported(machine: str) -> None:
    """Raises MachineUnknown unless the order of shared memory on ``machine`` is known."""
    if machine not in SUPPORTED:
        raise MachineUnknown(
            f"this machine is {machine or 'unknown'}; headgate runs on {' and '.join(SUPPORTED)},"
            " where the order of shared memory is known"
        )


fence = fence_for(platform.machine())


def keep_order() -> None:
    """The fence, if there is one. What each record passes does not call this, but looks itself."""
    if fence is not None:
        fence()
