"""No process that finds this module may touch what is below HEADGATE_FORBIDDEN.

Python imports it at its start, so it holds for a driver and for the workers that Spark starts.
A process that tries ends with exit code 99 and says what it opened.
"""

from __future__ import annotations

import os
import sys

_FOLDER = os.environ.get("HEADGATE_FORBIDDEN", "")
_EVENTS = frozenset(
    {
        "open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename",
        "os.rmdir", "os.scandir", "os.symlink", "os.truncate", "os.utime", "socket.bind",
        "socket.connect", "sqlite3.connect",
    }
)  # fmt: skip


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _EVENTS:
        return
    for argument in arguments:
        text = os.fsdecode(argument) if isinstance(argument, bytes) else argument
        if isinstance(text, str) and _FOLDER in text:
            os.write(2, f"FORBIDDEN: {event} {text}\n".encode())
            os._exit(99)


if _FOLDER:
    sys.addaudithook(_look)
