"""Reads the key ``prices``: a TOML table of store classes, or the same as JSON text.

What is written is added to the default classes. A class that exists already keeps the prices that
are not written; a new one must have all prices that have no default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from daemon.config.values import ValueType
from uploader.stores.prices import DEFAULT_PRICES, Prices

CLASS = re.compile(r"[a-z][a-z0-9_-]{0,31}")
CLASSES_MAX = 32  # a store has one; the rest is for comparison
PRICE_USD_MAX = 1e6  # scaled up for an experiment
KEYS = Prices.__struct_fields__
REQUIRED = tuple(
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
        raise ValueError(f"must have a table of prices for {name!r}, with {', '.join(KEYS)}")
    for key, price in written.items():
        if key not in KEYS:
            raise ValueError(f"must not have {key!r} for {name!r}; its keys are {', '.join(KEYS)}")
        number = isinstance(price, int | float) and not isinstance(price, bool)
        if not number or not math.isfinite(price) or not 0 <= price <= PRICE_USD_MAX:
            raise ValueError(
                f"must have a number of dollars from 0 to {PRICE_USD_MAX:g} for"
                f" {name}.{key}, not {price!r}"
            )
    given = {key: float(price) for key, price in written.items()}
    missing = [key for key in REQUIRED if known is None and key not in given]
    if missing:
        raise ValueError(f"must have {' and '.join(missing)} for the new class {name!r}")
    return Prices(**given) if known is None else msgspec.structs.replace(known, **given)


PRICES = ValueType("table", read_prices)
