"""Reads the values that are made of several: prices, weights of sensors, and whom push may call.

``prices`` is a TOML table of store classes, or the same as JSON text. What is written is added to
the default classes. A class that exists already keeps the prices that are not written; a new one
must have all prices that have no default.

``pressure_weights`` is a TOML table, or text like ``busy=0.5,store=0``; so is ``limits``.
``push_allow`` and ``push_deny`` are lists, or text with commas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from daemon.config.limits import read_limits
from daemon.config.sensors import BY_NAME, SENSORS
from daemon.config.values import ValueType, read_number
from delivery.push.posts.addresses import AllowList
from uploader.stores.prices import DEFAULT_PRICES, Prices

CLASS = re.compile(r"[a-z][a-z0-9_-]{0,31}")
CLASSES_MAX = 32  # a store has one; the rest is for comparison
PRICE_USD_MAX = 1e6  # scaled up for an experiment
PRICE_KEYS = Prices.__struct_fields__
REQUIRED_PRICES = tuple(
    field.name for field in msgspec.structs.fields(Prices) if field.default is msgspec.NODEFAULT
)


def read_prices(value: object) -> dict[str, Prices]:
    """The prices of each class, the default ones included."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"must be a table, or the same as JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise ValueError("must be a table of store classes")
    found = dict(DEFAULT_PRICES)
    for name, written in value.items():
        if not CLASS.fullmatch(name):
            raise ValueError(
                f"must have classes of lower-case letters, digits, - and _ (at most 32), not"
                f" {name!r}"
            )
        found[name] = _prices(name, written, found.get(name))
    if len(found) > CLASSES_MAX:
        raise ValueError(f"must have at most {CLASSES_MAX} classes")
    return found


def _prices(name: str, written: object, known: Prices | None) -> Prices:
    if not isinstance(written, Mapping):
        raise ValueError(f"must have a table of prices for {name!r}, with {', '.join(PRICE_KEYS)}")
    for key, price in written.items():
        if key not in PRICE_KEYS:
            raise ValueError(
                f"must not have {key!r} for {name!r}; its keys are {', '.join(PRICE_KEYS)}"
            )
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not number or not math.isfinite(price) or not 0 <= price <= PRICE_USD_MAX:
            raise ValueError(
                f"must have a number of dollars from 0 to {PRICE_USD_MAX:g} for"
                f" {name}.{key}, not {price!r}"
            )
    given = {key: float(price) for key, price in written.items()}
    missing = [key for key in REQUIRED_PRICES if known is None and key not in given]
    if missing:
        raise ValueError(f"must have {' and '.join(missing)} for the new class {name!r}")
    return Prices(**given) if known is None else msgspec.structs.replace(known, **given)


SOFT = tuple(sensor.name for sensor in SENSORS if not sensor.hard)


def read_weights(value: object) -> dict[str, float]:
    """The weight of each sensor that is named."""
    if value == ():
        return {}
    if isinstance(value, str):
        pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError("must be a table, or text like busy=0.5,store=0")
        value = {name.strip(): weight for name, _, weight in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("must be a table, or text like busy=0.5,store=0")
    return {name: _weight(name, weight) for name, weight in value.items()}


def _weight(name: str, value: object) -> float:
    if name not in BY_NAME:
        raise ValueError(f"must have the sensors {', '.join(SOFT)}, not {name!r}")
    if BY_NAME[name].hard:
        raise ValueError(f"must not have {name!r}: it is a hard sensor, which always counts fully")
    try:
        weight = read_number(value)
    except ValueError as error:
        raise ValueError(f"{error} for {name!r}") from None
    if not 0 <= weight <= 1:
        raise ValueError(f"must be 0 to 1 for {name!r}")
    return weight


def read_allowed(value: object) -> tuple[str, ...]:
    """The entries, each checked; an empty list allows nobody."""
    return AllowList(_entries(value), ()).entries


def read_denied(value: object) -> tuple[str, ...]:
    """The entries, each checked; an empty list denies nobody."""
    return AllowList((), _entries(value)).denied


def _entries(value: object) -> list[str]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError("must be a list of hosts and networks, or text with commas between them")
    entries = [each.strip() for each in given]
    return [] if entries == [""] else entries


PRICES = ValueType("table", read_prices)
WEIGHTS = ValueType("table", read_weights)
LIMITS = ValueType("table", read_limits)
ALLOWED = ValueType("list of hosts and networks", read_allowed)
DENIED = ValueType("list of networks", read_denied)
