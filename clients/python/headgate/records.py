"""The values that callers give and get."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgate.errors import UnknownAnswer
from headgate.steps import encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of a topic. ``seq`` is its offset in the partition, ``ts`` epoch milliseconds;
    ``data`` is bytes if it was produced as bytes, otherwise any JSON value."""

    topic: str
    partition: int
    seq: int
    ts: int
    data: Any
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that a reader does not get, and why: ``cap``, ``ttl``, ``quarantined``, ``lost``,
    ``recovery``, ``lagged``, or ``recreated`` (they are of a deleted topic of this name)."""

    topic: str
    partition: int
    first_seq: int
    last_seq: int
    reason: str

    def __str__(self) -> str:
        return (
            f"records {self.first_seq} to {self.last_seq} of partition {self.partition} of"
            f" {self.topic} are gone: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Advance:
    """A cursor that moves in the commit of a produce, from ``expected`` to ``next``. If it is not
    there, nothing is stored (ConditionFailed)."""

    cursor: str
    expected: int
    next: int
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What a produce stored in one partition."""

    partition: int
    first_seq: int
    last_seq: int
    count: int


@dataclass(frozen=True, slots=True)
class Produced:
    """What a produce stored. ``deduped``: an earlier attempt had stored it."""

    topic: str
    count: int
    deduped: bool
    parts: tuple[Part, ...]

    @property
    def seq(self) -> int:
        """The offset of the last record. Raises ValueError if keys spread the records."""
        if len(self.parts) != 1:
            raise ValueError(f"the records are in {len(self.parts)} partitions: see .parts")
        return self.parts[0].last_seq


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to produce. The daemon chooses the partition by ``key``; ``ts`` is epoch
    milliseconds, by default the time of arrival."""

    data: Any
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    ts: int | None = None

    def encoded(self) -> bytes:
        """Its JSON in a request. Raises TypeError or ValueError for what JSON cannot say."""
        said: dict[str, Any] = {
            name: value
            for name in ("key", "tag", "node", "meta", "ts")
            if (value := getattr(self, name)) is not None
        }
        if isinstance(self.data, bytes | bytearray | memoryview):
            said["data_b64"] = base64.b64encode(self.data).decode()
        else:
            said["data"] = self.data
        return encoded(said)


def fields_of(said: dict[str, Any], topic: str, partition: int) -> dict[str, Any]:
    """The fields of a Record, as the daemon sent it. Raises UnknownAnswer."""
    try:
        coded = said.get("data_b64")
        return {
            "topic": said.get("topic", topic), "partition": said.get("partition", partition),
            "seq": said["seq"], "ts": said["ts"],
            "data": said.get("data") if coded is None else base64.b64decode(coded),
            "key": said.get("key"), "tag": said.get("tag"), "node": said.get("node"),
            "meta": said.get("meta"),
        }  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnknownAnswer("unknown_answer", f"not a record: {said!r:.200}") from error


def gap_of(said: dict[str, Any], topic: str, partition: int = 0) -> Gap:
    """The gap of a tombstone."""
    return Gap(
        said.get("topic", topic), said.get("partition", partition), said["gap_from"],
        said["gap_to"], said["reason"],
    )  # fmt: skip


def produced_of(said: dict[str, Any]) -> Produced:
    """The answer to a produce, of one partition or several."""
    parts: Iterable[dict[str, Any]] = said.get("partitions", [said])
    return Produced(
        said["topic"], said["count"], said["deduped"],
        tuple(Part(p["partition"], p["first_seq"], p["last_seq"], p["count"]) for p in parts),
    )  # fmt: skip
