"""What the supervisor tells the service manager: the datagrams of sd_notify(3), in stdlib.

Words: the *address* is NOTIFY_SOCKET, a path or, with a leading @, an abstract name; the *period*
is WATCHDOG_USEC, within which a ``WATCHDOG=1`` must come or the manager ends the daemon.

Only the supervisor speaks, from its own tick: there is no thread that answers for a loop which is
stuck. ``take`` removes the variables from the environment, so that no shard inherits them. Without
NOTIFY_SOCKET everything here does nothing.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import MutableMapping

log = logging.getLogger("headgate.notify")

SEND_TIMEOUT_S = 0.5  # the manager's queue may be full while a machine boots
BEATS_PER_PERIOD = 4  # a beat is due a tick late at most, and must come in less than half a period


class Notifier:
    """The way to one service manager, or to none."""

    def __init__(self, address: str, watchdog_usec: int = 0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._beat_ns = watchdog_usec * 1_000 // BEATS_PER_PERIOD
        self._beaten_ns = 0

    @classmethod
    def take(cls, environ: MutableMapping[str, str], pid: int) -> Notifier:
        """Reads the manager's variables and removes them; a watchdog of another pid is not ours."""
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        watched = environ.pop("WATCHDOG_PID", "") or str(pid)
        ours = watched == str(pid) and usec.isascii() and usec.isdigit()
        return cls(address, int(usec) if ours else 0)

    def ready(self, status: str) -> None:
        """The start, or a reload, is done."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={status}")

    def reloading(self, now_ns: int) -> None:
        """A reload begins at ``now_ns`` of the monotonic clock; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_ns // 1_000}")

    def stopping(self, status: str, at_most_s: float) -> None:
        """The drain begins; it takes no longer than ``at_most_s``."""
        usec = int(at_most_s * 1e6)
        self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={usec}")

    def alive(self, now_ns: int) -> None:
        """Feeds the watchdog when that is due. Called on each tick on which all shards live."""
        if self._beat_ns and now_ns - self._beaten_ns >= self._beat_ns and self._send("WATCHDOG=1"):
            self._beaten_ns = now_ns

    def _send(self, *lines: str) -> bool:
        """One datagram; a manager that does not take it is no reason to stop serving."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(SEND_TIMEOUT_S)
                out.connect(self._address)
                out.sendall("\n".join(lines).encode())
        except OSError as error:
            log.warning("the service manager did not take %s: %s", lines[0], error)
            return False
        return True
