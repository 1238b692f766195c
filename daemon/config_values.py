"""How one configured value is read: a TOML value or a text in, a typed value or a sentence out.

A *value type* reads; a *check* limits what was read. Both raise ValueError with the end of a
sentence ("is no whole number"); daemon/config.py puts key, value and origin in front of it.

Sizes are integers in bytes or texts with a binary suffix: ``64MiB``, ``64M`` and 67108864 are the
same. ``MB`` is refused, because half of its readers mean something else. Durations are plain
numbers in the unit that the key's name ends in.

This module knows no key, reads no file and no environment.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:iB)?|B)?", re.IGNORECASE)
SIZE_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}")
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


class ValueType(NamedTuple):
    """``name`` is what the documentation calls it; ``read`` raises ValueError."""

    name: str
    read: Callable[[object], object]


class Check(NamedTuple):
    """``text`` is the limit in the documentation; ``test`` raises ValueError."""

    text: str
    test: Callable[[object], None]


def size_text(count: int) -> str:
    """Bytes as a configuration takes them: the largest binary unit that divides them."""
    for suffix, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)


def read_text(value: object) -> str:
    """One line that is not empty."""
    if not isinstance(value, str):
        raise ValueError("is no text")
    if not value.strip():
        raise ValueError("is empty")
    if "\0" in value or "\n" in value:
        raise ValueError("contains a line break or a zero byte")
    return value


def read_count(value: object) -> int:
    """A whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
        return int(value)
    raise ValueError("is no whole number")


def read_number(value: object) -> float:
    """A finite number."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError("is no number") from None
    if not math.isfinite(number):
        raise ValueError("is no finite number")
    return number


def read_switch(value: object) -> bool:
    """On or off, as TOML writes it."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError("must be true or false")


def read_size(value: object) -> int:
    """Bytes, from a number or a text with a binary suffix."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is no size: write bytes as a number, or a text like 64MiB")
    size = float(match[1]) * SIZE_FACTOR[(match[2] or "").upper()]
    if not math.isfinite(size) or size != int(size):
        raise ValueError("is no whole number of bytes")
    return int(size)


def read_path(value: object) -> str:
    """Absolute, so that every process means the same folder wherever it stands."""
    return os.path.abspath(os.path.expanduser(read_text(value)))


def read_address(value: object) -> str:
    """HOST:PORT, as it was written."""
    text = read_text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not HOST.fullmatch(host):
        raise ValueError("is no HOST:PORT, like 127.0.0.1:7440 or [::1]:7440")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 <= int(port) <= 65535:
        raise ValueError(f"has the port {port!r}; a port is a number, 0 (any free one) to 65535")
    return text


def read_store_url(value: object) -> str:
    """The URL of a store; whether it can be used is for the store to say."""
    text = read_text(value)
    scheme, _, rest = text.partition("://")
    if "?" in rest or "#" in rest:
        raise ValueError("has a query or a fragment; write them as %3F and %23 in a file's name")
    if scheme == "file" and rest.startswith("/") and rest.strip("/"):
        return text
    if scheme == "s3" and BUCKET.fullmatch(rest.partition("/")[0]):
        return text
    raise ValueError("is no store: write s3://BUCKET/PREFIX or file:///ABSOLUTE/FOLDER")


def read_endpoint_url(value: object) -> str:
    """An http or https URL with a host."""
    text = read_text(value)
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("is no URL of an S3 endpoint, like http://127.0.0.1:9000")
    return text


def one_of(*choices: str) -> ValueType:
    """A text out of ``choices``, in small letters."""

    def read(value: object) -> str:
        text = read_text(value).lower()
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text

    return ValueType(" or ".join((", ".join(choices[:-1]), choices[-1])), read)


def optional(kind: ValueType) -> ValueType:
    """An empty text stands for nothing, so that a later layer can take an earlier value back."""
    return ValueType(kind.name, lambda value: None if value == "" else kind.read(value))


def between(low: float, high: float, show: Callable[[int], str] = str) -> Check:
    """``low`` and ``high`` are allowed; ``show`` prints them."""

    def test(value: object) -> None:
        if isinstance(value, int | float) and not low <= value <= high:
            bound = f"at least {show(int(low))}" if value < low else f"at most {show(int(high))}"
            raise ValueError(f"is out of range: {bound} is allowed")

    return Check(f"{show(int(low))} to {show(int(high))}", test)


def above_zero(high: float) -> Check:
    """Greater than 0 and at most ``high``."""

    def test(value: object) -> None:
        if isinstance(value, int | float) and not 0 < value <= high:
            raise ValueError(f"is out of range: more than 0 and at most {high:g} is allowed")

    return Check(f"above 0, to {high:g}", test)


TEXT = ValueType("text", read_text)
COUNT = ValueType("whole number", read_count)
NUMBER = ValueType("number", read_number)
BYTES = ValueType("size", read_size)
SWITCH = ValueType("true or false", read_switch)
FOLDER = ValueType("folder", read_path)
ADDRESS = ValueType("HOST:PORT", read_address)
STORE_URL = ValueType("URL", read_store_url)
ENDPOINT_URL = ValueType("URL", read_endpoint_url)
