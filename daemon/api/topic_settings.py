"""A topic's settings as clients send them: read and checked, nothing stored.

Settings that nothing enforces yet are refused when they are not the default. Caps and
the time to live hold for each partition. ``columns`` name the typed columns of the topic's table;
whether one would change its type is for the ledger to say, which knows the type it has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from daemon.api.errors import ApiError, invalid
from daemon.api.questions import read_json
from daemon.http.request import Request
from ledger.types import TopicConfig

PARTITIONS_MAX = 1_000
COLUMNS_MAX = 200
LIMIT_MAX = (1 << 63) - 1
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# What a table has of its own: eight columns, a flag, and the day that it is partitioned by.
TAKEN = frozenset(
    (
        "partition", "offset", "timestamp", "key", "tag", "node", "meta", "data",
        "data_is_base64", "timestamp_day",
    )
)  # fmt: skip
_LIMITS = ("cap_records", "cap_bytes", "ttl_ms")
# What is stored but has no effect before the work on scheduling.
_NOT_YET = ("priority", "auto_priority", "lossy")
_DEFAULT = TopicConfig()
_config_decoder = msgspec.json.Decoder(TopicConfig)
_names_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_config(request: Request) -> tuple[TopicConfig, tuple[str, ...]]:
    """The settings of a PUT, and which were given; no body gives none. Raises ApiError."""
    if not request.body:
        return _DEFAULT, ()
    config = read_json(request, _config_decoder, "a topic's settings")
    names = read_json(request, _names_decoder, "a topic's settings")
    check(config)
    return config, tuple(names)


def check(config: TopicConfig) -> None:
    """Raises ApiError 400 for a value that is out of range or not enforced."""
    if not 1 <= config.partitions <= PARTITIONS_MAX:
        raise invalid(
            f"partitions is {config.partitions}; it must be between 1 and {PARTITIONS_MAX}",
            field="partitions",
        )
    for field in _LIMITS:
        value = getattr(config, field)
        if value is not None and not 1 <= value <= LIMIT_MAX:
            raise invalid(
                f"{field} is {value}; it must be between 1 and {LIMIT_MAX}, or null for none",
                field=field,
            )
    for field in _NOT_YET:
        if getattr(config, field) != getattr(_DEFAULT, field):
            raise ApiError(
                400,
                "not_supported_yet",
                f"{field} is not enforced yet, so only its default is accepted; leave it out",
                {"field": field},
            )
    _check_columns(config.columns)


def _check_columns(columns: Mapping[str, object]) -> None:
    if len(columns) > COLUMNS_MAX:
        raise invalid(
            f"there are {len(columns)} columns; a topic has at most {COLUMNS_MAX}", field="columns"
        )
    seen: dict[str, str] = {}
    for name in columns:
        shown = name if len(name) <= 60 else name[:60] + "..."
        if COLUMN.fullmatch(name) is None:
            raise invalid(
                f"{shown!r} is no name of a column: it begins with a letter or _, then letters,"
                " digits and _ follow, 128 characters at most",
                field="columns",
                column=shown,
            )
        small = name.lower()
        if small in TAKEN:
            raise invalid(
                f"every table has a column {small!r} of its own; give the field another name",
                field="columns",
                column=shown,
            )
        if small in seen:
            raise invalid(
                f"the columns {seen[small]!r} and {name!r} differ in case only, which engines do"
                " not tell apart",
                field="columns",
                column=shown,
            )
        seen[small] = name
