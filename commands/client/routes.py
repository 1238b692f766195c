"""What the daemon calls its routes, as a command of the terminal.

Its errors say what to do with a method and a path, which is right for whoever has sent one.
"""

from __future__ import annotations

import re

_NAME = r"([^\s/,;)]+)"
_COMMANDS = [
    (re.compile(route), command)
    for route, command in (
        (r"GET /v0/status", "`headgate status`"),
        (
            rf"PUT /v0/topics/{_NAME}/subscriptions/{_NAME}",
            r"`headgate subscriptions create \1 \2`",
        ),
        (rf"PUT /v0/topics/{_NAME}(?!/)", r"`headgate topics create \1`"),
        (rf"PUT /v0/cursors/{_NAME}", r"`headgate cursors create \1`"),
        (r"GET \.\.\./keys", "`headgate subscriptions keys`"),
        (r"POST /v0/watch", "`headgate watch`"),
    )
]


def in_commands(message: str) -> str:
    """The message of an error, for who has called a command."""
    for route, command in _COMMANDS:
        message = route.sub(command, message)
    return message
