"""What the supervisor tells the service manager: the datagrams of sd_notify(3), without a library.

The *address* is NOTIFY_SOCKET: a path or, with a leading @, an abstract name. The *period* is
WATCHDOG_USEC: the manager ends the daemon if no ``WATCHDOG=1`` arrives within it.

Only the supervisor sends, from its tick: no thread answers for a loop that is stuck. ``take``
removes the variables from the environment, so that no shard inherits them. Without NOTIFY_SOCKET
nothing is sent.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, MutableMapping

log = logging.getLogger("headgate.notify")

START_S = 3600.0  # a take-over may rebuild a ledger; a first start is not watched at all
SEND_TIMEOUT_S = 0.5  # the manager's queue may be full while a machine boots
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
BEATS_PER_PERIOD = 4  # a beat is at most a tick late, and must arrive within half a period


class Notifier:
    """The connection to the service manager, if there is one."""

    def __init__(
        self, address: str, watchdog_usec: int = 0, taken: Mapping[str, str] | None = None
    ) -> None:
        self.taken = dict(taken or {})  # of the environment; a process that replaces us needs it
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_usec = watchdog_usec
        self._beat_ns = watchdog_usec * 1_000 // BEATS_PER_PERIOD
        self._beaten_ns = 0

    @classmethod
    def take(cls, environ: MutableMapping[str, str], pid: int) -> Notifier:
        """Reads the manager's variables and removes them; ignores a watchdog for another pid."""
        taken = {name: environ.pop(name) for name in _VARIABLES if name in environ}
        address, usec = taken.get("NOTIFY_SOCKET", ""), taken.get("WATCHDOG_USEC", "")
        watched = taken.get("WATCHDOG_PID") or str(pid)
        ours = watched == str(pid) and usec.isascii() and usec.isdigit()
        return cls(address, int(usec) if ours else 0, taken)

    def ready(self, status: str) -> None:
        """The start or the reload is done: from now on the daemon is watched."""
        self._send("READY=1", f"STATUS={status}", *self._watched(self._watchdog_usec))

    def starting(self, status: str) -> None:
        """What was ready starts again, as a standby or its owner: no tick feeds the watchdog
        until ``ready``, so it gets START_S."""
        self._send(f"STATUS={status}", *self._watched(int(START_S * 1e6)))

    def status(self, status: str) -> None:
        """Sets the line of ``systemctl status``."""
        self._send(f"STATUS={status}")

    def reloading(self, now_ns: int) -> None:
        """A reload begins at ``now_ns`` of the monotonic clock; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_ns // 1_000}")

    def stopping(self, status: str, at_most_s: float) -> None:
        """The drain begins; it takes at most ``at_most_s``."""
        usec = int(at_most_s * 1e6)
        self._send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={usec}")

    def alive(self, now_ns: int) -> None:
        """Feeds the watchdog if that is due. Call it on each tick on which all shards live."""
        if self._beat_ns and now_ns - self._beaten_ns >= self._beat_ns and self._send("WATCHDOG=1"):
            self._beaten_ns = now_ns

    def _watched(self, usec: int) -> tuple[str, ...]:
        return (f"WATCHDOG_USEC={usec}",) if self._watchdog_usec else ()

    def _send(self, *lines: str) -> bool:
        """Sends one datagram. The daemon serves on if the manager does not take it."""
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
