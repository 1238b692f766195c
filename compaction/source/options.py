"""Options of the Spark source, with the names that Spark's Kafka source has for them.

A bound is ``earliest``, ``latest``, or Kafka's JSON of offsets by topic and partition,
``{"topic": {"0": 23, "1": -2}}``, in which -2 means earliest and -1 latest. Partitions that are not
named begin at earliest and end at latest. Starting offsets are inclusive, ending offsets exclusive;
offsets begin at 1. Names of options are not case-sensitive, because Spark does not preserve case.

Pure: nothing is opened or asked here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from uploader.stores.open import StoreUrlError, open_store

EARLIEST, LATEST = -2, -1
MAX_BYTES_PER_PARTITION = 64 << 20
# A checkpoint has this key among its offsets (stream.py); it is ignored here.
_IDS = "#ids"

Mode = Literal["batch", "stream"]


class OptionError(ValueError):
    """An option that cannot be used. ``option`` is its name as users write it."""

    def __init__(self, option: str, value: str | None, problem: str) -> None:
        given = f"option {option!r}" if value is None else f"option {option!r} = {_short(value)!r}"
        super().__init__(f"{given} {problem}")
        self.option = option


class Bound(Struct, frozen=True):
    """Where to begin or end: named ``offsets``, and ``default`` for other partitions."""

    default: int
    offsets: dict[str, dict[int, int]] = {}
    timestamp_ms: int | None = None


class Options(Struct, frozen=True, kw_only=True):
    """The options of a read. Either ``url`` or ``data`` is set."""

    topics: tuple[str, ...]
    url: str | None = None
    token_file: str = ""
    data: str | None = None
    store: str | None = None
    lake: str | None = None
    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int = 1
    max_bytes_per_partition: int = MAX_BYTES_PER_PARTITION
    read_through: str = "store"


# All options, as users write them, and what they accept.
ACCEPTED: dict[str, str] = {
    "url": "a daemon's address, like http://127.0.0.1:7440",
    "tokenFile": "a file with a token for the daemon, on the driver and each executor, with `url`;"
    " by default the environment says (HEADGATE_TOKEN, HEADGATE_TOKEN_FILE)",
    "data": "a daemon's data directory on this machine",
    "store": "where the objects are, with `data`: file:///FOLDER or s3://BUCKET/PREFIX",
    "lake": "where the tables are, with `data`; by default `lake` in the store",
    "s3_endpoint_url": "the endpoint of another S3 than Amazon's, with `data`: http(s)://HOST:PORT",
    "s3_region": "the bucket's region, with `data`",
    "subscribe": "topics, separated by commas",
    "startingOffsets": 'earliest, latest (streams only), or {"topic": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest, or {"topic": {"0": 23, "1": -1}} (not for streams)',
    "startingTimestamp": "epoch milliseconds",
    "endingTimestamp": "epoch milliseconds (not for streams)",
    "failOnDataLoss": "true or false",
    "maxOffsetsPerTrigger": "a number of records above 0 (streams only)",
    "minPartitions": "a number above 0",
    "maxBytesPerPartition": "a number of bytes above 0",
    "readThrough": "store, or diff (with `url`)",
}
_NAMES = {name.lower(): name for name in ACCEPTED}
_KAFKA_ONLY = {
    "kafka.bootstrap.servers": "url",
    "assign": "subscribe",
    "subscribepattern": "subscribe",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "path": "data",
}

_offsets_decoder = msgspec.json.Decoder(dict[str, dict[str, int]])


def parse(given: Mapping[str, str], mode: Mode) -> Options:
    """The options of a read. Raises OptionError."""
    named: dict[str, str] = {}
    for key, value in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            raise OptionError(key, None, f"is not known{_suggestion(key)}")
        named[name] = value
    _check_place(named)
    topics = _topics(named)
    for name in ("startingOffsets", "endingOffsets"):
        other = name.replace("Offsets", "Timestamp")
        if name in named and other in named:
            raise OptionError(other, named[other], f"and {name!r} exclude each other")
    only = {"batch": ["maxOffsetsPerTrigger"], "stream": ["endingOffsets", "endingTimestamp"]}
    for name in only[mode]:
        if name in named:
            what = "streams" if mode == "batch" else "batch reads"
            raise OptionError(name, named[name], f"is for {what} only; remove it")
    return Options(
        topics=topics,
        url=named.get("url"),
        token_file=named.get("tokenFile", ""),
        data=named.get("data"),
        store=named.get("store"),
        lake=named.get("lake"),
        s3_endpoint_url=named.get("s3_endpoint_url"),
        s3_region=named.get("s3_region"),
        starting=_starting(named, topics, mode),
        ending=_ending(named, topics),
        fail_on_data_loss=_boolean(named, "failOnDataLoss", default=True),
        max_offsets_per_trigger=_number(named, "maxOffsetsPerTrigger", None),
        min_partitions=_number(named, "minPartitions", 1),
        max_bytes_per_partition=_number(named, "maxBytesPerPartition", MAX_BYTES_PER_PARTITION),
        read_through=named.get("readThrough", "store").lower(),
    )


def _check_place(named: Mapping[str, str]) -> None:
    if ("url" in named) == ("data" in named):
        given = "both are given" if "url" in named else "neither is given"
        raise OptionError(
            "url", named.get("url"),
            f"or 'data' says where the topics are, and {given}: give 'url',"
            f" {ACCEPTED['url']}, or 'data', {ACCEPTED['data']}",
        )  # fmt: skip
    if "url" in named:
        if not named["url"].startswith(("http://", "https://")):
            raise _refused(named, "url")
        for name in ("store", "lake", "s3_endpoint_url", "s3_region"):
            if name in named:
                raise OptionError(name, named[name], "comes from the daemon; remove it")
    if not named.get("data", "/"):
        raise _refused(named, "data")
    if "tokenFile" in named and not (named["tokenFile"] and "url" in named):
        raise _refused(named, "tokenFile")
    for name in ("store", "lake"):
        if name in named:
            try:
                open_store(named[name]).close()
            except StoreUrlError as error:
                raise OptionError(name, named[name], f"cannot be used: {error}") from error
    if not named.get("s3_endpoint_url", "http://").startswith(("http://", "https://")):
        raise _refused(named, "s3_endpoint_url")
    through = named.get("readThrough", "store").lower()
    if through not in ("store", "diff") or (through == "diff" and "url" not in named):
        raise _refused(named, "readThrough")


def _topics(named: Mapping[str, str]) -> tuple[str, ...]:
    text = named.get("subscribe", "")
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise OptionError("subscribe", named.get("subscribe"), f"must be {ACCEPTED['subscribe']}")
    return topics


def _starting(named: Mapping[str, str], topics: tuple[str, ...], mode: Mode) -> Bound:
    name = "startingOffsets"
    if "startingTimestamp" in named:
        return Bound(EARLIEST, timestamp_ms=_timestamp(named, "startingTimestamp"))
    text = named.get(name, "earliest" if mode == "batch" else "latest").strip()
    if text.lower() == "earliest":
        return Bound(EARLIEST)
    if text.lower() == "latest":
        if mode == "batch":
            raise OptionError(
                name, text, "leaves nothing to read in a batch; use earliest or offsets"
            )
        return Bound(LATEST)
    allowed = (EARLIEST,) if mode == "batch" else (EARLIEST, LATEST)
    return Bound(EARLIEST, _offsets(named, name, topics, allowed))


def _ending(named: Mapping[str, str], topics: tuple[str, ...]) -> Bound:
    name = "endingOffsets"
    if "endingTimestamp" in named:
        return Bound(LATEST, timestamp_ms=_timestamp(named, "endingTimestamp"))
    text = named.get(name, "latest").strip()
    if text.lower() == "latest":
        return Bound(LATEST)
    if text.lower() == "earliest":
        raise OptionError(name, text, "leaves nothing to read; use latest or offsets")
    return Bound(LATEST, _offsets(named, name, topics, (LATEST,)))


def _offsets(
    named: Mapping[str, str], name: str, topics: tuple[str, ...], special: tuple[int, ...]
) -> dict[str, dict[int, int]]:
    text = named[name]
    try:
        found = _offsets_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OptionError(name, text, f"must be {ACCEPTED[name]}: {error}") from error
    found.pop(_IDS, None)
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        if topic not in topics:
            raise OptionError(name, text, f"names the topic {topic!r}, which 'subscribe' does not")
        for partition, offset in partitions.items():
            if not (partition.isascii() and partition.isdigit()):
                raise OptionError(
                    name, text, f"names the partition {partition!r}, which is not a number"
                )
            if offset < 1 and offset not in special:
                words = {EARLIEST: "-2 (earliest)", LATEST: "-1 (latest)"}
                also = "".join(f", or {words[each]}" for each in special)
                raise OptionError(
                    name, text,
                    f"has offset {offset} for partition {partition} of {topic!r}; offsets begin"
                    f" at 1{also}",
                )  # fmt: skip
            offsets.setdefault(topic, {})[int(partition)] = offset
    return offsets


def _timestamp(named: Mapping[str, str], name: str) -> int:
    text = named[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise _refused(named, name)
    return int(text)


def _boolean(named: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = named.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise _refused(named, name)
    return text == "true"


def _number(named: Mapping[str, str], name: str, default: Any) -> Any:
    if name not in named:
        return default
    text = named[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 18) or int(text) < 1:
        raise _refused(named, name)
    return int(text)


def _refused(named: Mapping[str, str], name: str) -> OptionError:
    return OptionError(name, named[name], f"must be {ACCEPTED[name]}")


def _suggestion(key: str) -> str:
    instead = _KAFKA_ONLY.get(key.lower())
    if instead is not None:
        return f"; here it is {instead!r}: {ACCEPTED[instead]}"
    near = difflib.get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.6)
    if near:
        name = _NAMES[near[0]]
        return f"; did you mean {name!r}: {ACCEPTED[name]}?"
    return f"; the options are {', '.join(ACCEPTED)}"


def _short(value: str) -> str:
    return value if len(value) <= 200 else value[:200] + "..."
