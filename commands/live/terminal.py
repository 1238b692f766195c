"""The terminal of `top`: keys, and a screen that is drawn over itself.

Lifecycle: entered (keys come one by one, without echo; the alternate screen is shown) -> drawn any
number of times -> left: the terminal is as before, however the command ends.
"""

from __future__ import annotations

import signal
import sys
import termios
import tty
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from commands.live.keys import wait_for_key
from commands.live.screen import Size
from commands.live.spans import Line

# For terminals that are not UTF-8: a character for each that the screen uses.
ASCII = str.maketrans("├└│─▁▂▃▄▅▆▇█", "|`|-.:-=+*#@")


class LiveTerminal:
    """Draws lines and reads keys. Keys are read only if stdin is a terminal too."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop"
        )
        self._keys_fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []
        self._is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"

    def __enter__(self) -> LiveTerminal:
        if self._keys_fd is not None:
            self._before = termios.tcgetattr(self._keys_fd)
            tty.setcbreak(self._keys_fd)
        self._on_term = signal.signal(signal.SIGTERM, _terminated)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._keys_fd is not None:
            termios.tcsetattr(self._keys_fd, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGTERM, self._on_term)

    @property
    def size(self) -> Size:
        """The size now: a window may be resized."""
        return Size(self._console.width, self._console.height)

    def draw(self, lines: list[Line]) -> None:
        """Replaces the screen."""
        text = Text(no_wrap=True, overflow="crop", end="")
        for number, line in enumerate(lines):
            if number:
                text.append("\n")
            for span in line:
                shown = span.text if self._is_utf8 else span.text.translate(ASCII)
                text.append(shown, span.style)
        self._live.update(text, refresh=True)

    def key(self, within_s: float) -> str | None:
        """The next key, or None after this time."""
        return wait_for_key(self._keys_fd, within_s)


def _terminated(number: int, _: object) -> None:
    """The terminal is put in order on the way out; the code is what a shell calls it."""
    raise SystemExit(128 + number)
