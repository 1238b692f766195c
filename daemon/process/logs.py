"""Log lines on standard error: text for people, or one JSON object per line.

``set_level`` changes the level at run time; shards take theirs from a shared word.
"""

from __future__ import annotations

import logging
import sys

import msgspec

from shards.clock import wall_ms

LEVELS = ("debug", "info", "warning", "error")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": wall_ms(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def start(level: str, log_format: str, who: str) -> None:
    """Sets up the log of this process; ``who`` ("serve", "shard 3") is in each line of text."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        layout = f"%(asctime)s %(levelname)s {who}: %(message)s"
        handler.setFormatter(logging.Formatter(layout))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """The lowest level that is written."""
    logging.getLogger("headgate").setLevel(level.upper())
    # From libraries, only what is wrong.
    logging.getLogger().setLevel(max(logging.WARNING, getattr(logging, level.upper())))
