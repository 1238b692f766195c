"""Names of topics, subscriptions, columns and the like, as clients send them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from daemon.schemas.errors import ApiError, invalid

TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
CONSUMER_CHARACTERS_MAX = 255
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
    return _checked("topic", name)


def check_cursor_name(name: str) -> str:
    """The cursor's name, of the same form as a topic's. Raises ApiError 400 ``invalid_cursor``."""
    return _checked("cursor", name)


def check_router_name(name: str) -> str:
    """The router's name, of the same form as a topic's. Raises ApiError 400 ``invalid_router``."""
    return _checked("router", name)


def check_subscription_name(name: str) -> str:
    """The subscription's name, of the same form as a topic's. Raises ApiError 400
    ``invalid_subscription``."""
    return _checked("subscription", name)


def check_consumer_name(name: str) -> str:
    """The name that a consumer has given itself. Raises ApiError 400 ``invalid_consumer``."""
    if not 1 <= len(name) <= CONSUMER_CHARACTERS_MAX or not name.isprintable():
        shown = _shown(name)
        raise ApiError(
            400,
            "invalid_consumer",
            f"a consumer's name must have 1 to {CONSUMER_CHARACTERS_MAX} characters, all printable,"
            f" got {len(name)}: {shown!r}",
            {"consumer": shown, "limit_characters": CONSUMER_CHARACTERS_MAX},
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


def _checked(what: str, name: str) -> str:
    if TOPIC_NAME.fullmatch(name) is None:
        shown = _shown(name)
        raise ApiError(
            400,
            f"invalid_{what}",
            f"a {what}'s name must begin with a letter or digit, continue with letters, digits and"
            f" . _ : - and have at most 255 characters, got {shown!r}",
            {what: shown},
        )
    return name


def _shown(name: str) -> str:
    return name if len(name) <= 60 else name[:60] + "..."
