"""Reads one configured value: from TOML or text to a typed value.

A *value type* reads a value; a *check* limits it. Both raise ValueError with what the value must
be ("must be an integer"); ``loading`` adds key, value and origin.

Sizes are integers in bytes or text with a binary suffix: ``64MiB``, ``64M`` and 67108864 are the
same. ``MB`` is refused, because people disagree on its meaning. Durations are plain numbers in the
unit at the end of the key's name.

This module knows no keys and reads neither files nor the environment.
"""

from __future__ import annotations

import ipaddress
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
NAME = re.compile(rf"(?:\*\.)?(?:{HOST.pattern})|[0-9a-f:.]+")
ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://(?:{HOST.pattern})(?::[0-9]{{1,5}})?")


class ValueType(NamedTuple):
    """``name`` is for the documentation; ``read`` raises ValueError."""

    name: str
    read: Callable[[object], object]


class ValueCheck(NamedTuple):
    """``text`` is the limit for the documentation; ``test`` raises ValueError."""

    text: str
    test: Callable[[object], None]


def size_text(count: int) -> str:
    """Bytes as a configuration takes them, in the largest binary unit that divides them."""
    for suffix, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)


def read_text(value: object) -> str:
    """One line that is not empty."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value.strip():
        raise ValueError("must not be empty")
    if "\0" in value or "\n" in value:
        raise ValueError("must not contain a line break or a zero byte")
    return value


def read_count(value: object) -> int:
    """An integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
        return int(value)
    raise ValueError("must be an integer")


def read_number(value: object) -> float:
    """A finite number."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def read_switch(value: object) -> bool:
    """On or off, as TOML writes it."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError("must be true or false")


def read_size(value: object) -> int:
    """Bytes, from a number or text with a binary suffix."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a size (a number of bytes, or text like 64MiB)")
    size = float(match[1]) * SIZE_FACTOR[(match[2] or "").upper()]
    if not math.isfinite(size) or size != int(size):
        raise ValueError("must be an integer number of bytes")
    return int(size)


def read_path(value: object) -> str:
    """An absolute path, so that every process means the same folder or file."""
    return os.path.abspath(os.path.expanduser(read_text(value)))


def read_address(value: object) -> str:
    """HOST:PORT, as it was written."""
    text = read_text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not HOST.fullmatch(host):
        raise ValueError("must be HOST:PORT, like 127.0.0.1:7440 or [::1]:7440")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 <= int(port) <= 65535:
        raise ValueError("must have a port from 0 (any free one) to 65535")
    return text


def read_store_url(value: object) -> str:
    """The URL of a store. Whether the store works is not checked here."""
    text = read_text(value)
    scheme, _, rest = text.partition("://")
    if "?" in rest or "#" in rest:
        raise ValueError("must not have a query or a fragment (in a path, write %3F and %23)")
    if scheme == "file" and rest.startswith("/") and rest.strip("/"):
        return text
    if scheme == "s3" and BUCKET.fullmatch(rest.partition("/")[0]):
        return text
    raise ValueError("must be s3://BUCKET/PREFIX or file:///ABSOLUTE/FOLDER")


def read_endpoint_url(value: object) -> str:
    """An http or https URL with a host."""
    text = read_text(value)
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.username or parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(
            "must be the URL of an S3 endpoint, like http://127.0.0.1:9000, without"
            " credentials: boto3 finds them"
        )
    return text


def _listed(value: object, what: str) -> list[str]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError(f"must be a list of {what}, or text with commas between them")
    found = [each.strip() for each in given]
    return [] if found == [""] else found


def read_origins(value: object) -> tuple[str, ...]:
    """Origins of pages, from a list or from text with commas."""
    origins = [each.lower() for each in _listed(value, "origins")]
    for origin in origins:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise ValueError(
                "must have origins like https://example.org or http://localhost:8080 (no path, no"
                " slash at the end), or * for all"
            )
    return tuple(dict.fromkeys(origins))


def read_hosts(value: object) -> tuple[str, ...]:
    """Names of hosts, from a list or from text with commas."""
    hosts = [each.lower().removesuffix(".") for each in _listed(value, "host names")]
    for host in hosts:
        if host != "*" and not NAME.fullmatch(host):
            raise ValueError(
                "must have host names like headgate.example.org or *.example.org, or addresses (no"
                " port), or * for all"
            )
    return tuple(dict.fromkeys(host.strip("[]") for host in hosts))


def read_networks(value: object) -> tuple[str, ...]:
    """Addresses and networks, from a list or from text with commas."""
    networks = [each for each in _listed(value, "addresses and networks") if each]
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ValueError(
                f"must have addresses and networks like 10.0.0.0/8, and {error}"
            ) from None
    return tuple(dict.fromkeys(networks))


def one_of(*choices: str) -> ValueType:
    """One of ``choices``, in lower case."""
    name = " or ".join((", ".join(choices[:-1]), choices[-1]))

    def read(value: object) -> str:
        text = read_text(value).lower()
        if text not in choices:
            raise ValueError(f"must be {name}")
        return text

    return ValueType(name, read)


def optional(kind: ValueType) -> ValueType:
    """Empty text means no value, so that a later layer can remove the value of an earlier one."""
    return ValueType(kind.name, lambda value: None if value == "" else kind.read(value))


def between(low: float, high: float, show: Callable[[int], str] = str) -> ValueCheck:
    """``low`` and ``high`` are allowed; ``show`` prints them."""

    def test(value: object) -> None:
        if isinstance(value, int | float) and not low <= value <= high:
            bound = f"at least {show(int(low))}" if value < low else f"at most {show(int(high))}"
            raise ValueError(f"must be {bound}")

    return ValueCheck(f"{show(int(low))} to {show(int(high))}", test)


def above_zero(high: float) -> ValueCheck:
    """Greater than 0 and at most ``high``."""

    def test(value: object) -> None:
        if isinstance(value, int | float) and not 0 < value <= high:
            raise ValueError(f"must be above 0 and at most {high:g}")

    return ValueCheck(f"above 0, to {high:g}", test)


TEXT = ValueType("text", read_text)
COUNT = ValueType("integer", read_count)
NUMBER = ValueType("number", read_number)
BYTES = ValueType("size", read_size)
SWITCH = ValueType("true or false", read_switch)
FOLDER = ValueType("folder", read_path)
FILE = ValueType("file", read_path)
ADDRESS = ValueType("HOST:PORT", read_address)
STORE_URL = ValueType("URL", read_store_url)
ENDPOINT_URL = ValueType("URL", read_endpoint_url)
HOSTS = ValueType("list of host names", read_hosts)
NETWORKS = ValueType("list of networks", read_networks)
ORIGINS = ValueType("list of origins", read_origins)
