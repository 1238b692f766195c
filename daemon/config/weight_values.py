"""Reads the key ``pressure_weights``: a TOML table, or text like ``busy=0.5,store=0``."""

from __future__ import annotations

from collections.abc import Mapping

from daemon.config.sensors import BY_NAME, SENSORS
from daemon.config.values import ValueType, read_number

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


WEIGHTS = ValueType("table", read_weights)
