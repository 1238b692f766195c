"""Names of topics, cursors, routers and columns, as clients send them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from daemon.api.errors import ApiError, invalid

TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# The columns that every table has, and the day that tables are partitioned by.
TAKEN = frozenset(
    (
        "partition", "offset", "timestamp", "key", "tag", "node", "meta", "data",
        "data_is_base64", "timestamp_day",
    )
)  # fmt: skip


def check_topic_name(name: str) -> str:
    """The topic's name. Raises ApiError 400 ``invalid_topic``."""
    if TOPIC_NAME.fullmatch(name) is None:
        shown = _shown(name)
        raise ApiError(
            400,
            "invalid_topic",
            f"a topic's name must begin with a letter or digit, continue with letters, digits and"
            f" . _ : - and have at most 255 characters, got {shown!r}",
            {"topic": shown},
        )
    return name


def check_cursor_name(name: str) -> str:
    """The cursor's name, of the same form as a topic's. Raises ApiError 400 ``invalid_cursor``."""
    if TOPIC_NAME.fullmatch(name) is None:
        shown = _shown(name)
        raise ApiError(
            400,
            "invalid_cursor",
            f"a cursor's name must begin with a letter or digit, continue with letters, digits and"
            f" . _ : - and have at most 255 characters, got {shown!r}",
            {"cursor": shown},
        )
    return name


def check_router_name(name: str) -> str:
    """The router's name, of the same form as a topic's. Raises ApiError 400 ``invalid_router``."""
    if TOPIC_NAME.fullmatch(name) is None:
        shown = _shown(name)
        raise ApiError(
            400,
            "invalid_router",
            f"a router's name must begin with a letter or digit, continue with letters, digits and"
            f" . _ : - and have at most 255 characters, got {shown!r}",
            {"router": shown},
        )
    return name


def check_columns(columns: Mapping[str, object]) -> None:
    """Raises ApiError 400 for names that a table cannot have."""
    seen: dict[str, str] = {}
    for name in columns:
        shown = _shown(name)
        if COLUMN_NAME.fullmatch(name) is None:
            raise invalid(
                "a column's name must begin with a letter or _, continue with letters, digits and"
                f" _ and have at most 128 characters, got {shown!r}",
                field="columns",
                column=shown,
            )
        small = name.lower()
        if small in TAKEN:
            raise invalid(
                f"every table already has a column {small!r}; give the field another name",
                field="columns",
                column=shown,
            )
        if small in seen:
            raise invalid(
                f"the columns {seen[small]!r} and {name!r} differ only in case, which query"
                " engines ignore",
                field="columns",
                column=shown,
            )
        seen[small] = name


def _shown(name: str) -> str:
    return name if len(name) <= 60 else name[:60] + "..."
