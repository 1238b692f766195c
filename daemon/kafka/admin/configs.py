"""Kafka's names for settings: which of a topic's are kept, what else is told, what is refused.

Pure. What a client has set must be in force. So a setting without a counterpart is refused when a
topic is created, unless it asks for what Headgate does anyway.

``cleanup.policy`` is kept because Connect and others set it to ``compact`` and check that it is
set. It is only reported back: nothing is compacted by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from daemon.config import Config
from daemon.kafka.admin.messages import ConfigSaid
from daemon.kafka.groups.expiry import UNUSED_MS
from daemon.kafka.groups.group import MEMBERS_MAX, SESSION_MAX_MS, SESSION_MIN_MS
from daemon.kafka.groups.offsets import METADATA_BYTES_MAX
from ledger.types import INTEGER_MAX, TopicConfig

# Kafka's numbers: where a value is from, and what it is.
OF_TOPIC: Final = 1
OF_BROKER: Final = 4
BY_DEFAULT: Final = 5
BOOLEAN, STRING, INT, LONG, LIST = 1, 2, 3, 5, 7

COMPACT = "compact"
_POLICIES = {
    frozenset(("delete",)): "delete",
    frozenset((COMPACT,)): COMPACT,
    frozenset((COMPACT, "delete")): "compact,delete",
}


class ConfigRefused(Exception):
    """A setting that cannot be as a client wants it."""


class _Kept(NamedTuple):
    """A setting of Kafka's that is one of ours: its kind, and how values are read and told."""

    field: str
    kind: int
    read: Callable[[str, str], Any]
    said: Callable[[Any], str]


def _limit(name: str, text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number == -1:
        return None
    if not 1 <= number <= INTEGER_MAX:
        raise ConfigRefused(
            f"{name} must be an integer from 1 to {INTEGER_MAX}, or -1 for no limit, got"
            f" {text[:40]!r}"
        )
    return number


def _said_limit(limit: int | None) -> str:
    return "-1" if limit is None else str(limit)


def _policy(name: str, text: str) -> str:
    found = _POLICIES.get(frozenset(each.strip() for each in text.split(",")))
    if found is None:
        raise ConfigRefused(f"{name} must be delete, compact, or both, got {text[:40]!r}")
    return found


_KEPT: Mapping[str, _Kept] = {
    "cleanup.policy": _Kept("kafka_cleanup_policy", LIST, _policy, str),
    "retention.ms": _Kept("ttl_ms", LONG, _limit, _said_limit),
    "retention.bytes": _Kept("cap_bytes", LONG, _limit, _said_limit),
}


class Configs:
    """The settings of a daemon's topics and brokers."""

    def __init__(self, config: Config) -> None:
        # By name: the value, and its kind.
        self._of_topics: dict[str, tuple[str, int]] = {
            "max.message.bytes": (str(batch_bytes_max(config)), INT),
            "message.timestamp.type": ("CreateTime", STRING),
            "min.insync.replicas": ("1", INT),
            "unclean.leader.election.enable": ("false", BOOLEAN),
        }
        self._of_brokers: dict[str, tuple[str, int]] = {
            "auto.create.topics.enable": (str(config.auto_create_topics).lower(), BOOLEAN),
            "default.replication.factor": ("1", INT),
            "delete.topic.enable": ("true", BOOLEAN),
            "group.max.session.timeout.ms": (str(SESSION_MAX_MS), INT),
            "group.max.size": (str(MEMBERS_MAX), INT),
            "group.min.session.timeout.ms": (str(SESSION_MIN_MS), INT),
            "log.cleanup.policy": ("delete", LIST),
            "log.retention.bytes": ("-1", LONG),
            "log.retention.ms": ("-1", LONG),
            "message.max.bytes": (str(batch_bytes_max(config)), INT),
            "min.insync.replicas": ("1", INT),
            "num.partitions": (str(config.kafka_partitions), INT),
            "offset.metadata.max.bytes": (str(METADATA_BYTES_MAX), INT),
            "offsets.retention.minutes": (str(UNUSED_MS // 60_000), INT),
        }

    def read(self, configs: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
        """Our settings for a topic that is to be created with these of Kafka's. Raises
        ConfigRefused."""
        given: dict[str, str] = {}
        for name, text in configs:
            if name in given:
                raise ConfigRefused(f"{name[:80]!r} is given twice; give it once")
            if text is None:
                raise ConfigRefused(f"{name[:80]!r} has no value; leave it out for its default")
            given[name] = text
        found: dict[str, Any] = {}
        for name, text in given.items():
            kept, fixed = _KEPT.get(name), self._of_topics.get(name)
            if kept is not None:
                found[kept.field] = kept.read(name, text)
            elif fixed is None:
                raise ConfigRefused(
                    f"topics have no setting {name[:80]!r} here; leave it out, those that there are"
                    f" are {', '.join(_KEPT)}"
                )
            elif text.lower() != fixed[0].lower():
                raise ConfigRefused(f"{name} is {fixed[0]} here, got {text[:40]!r}; leave it out")
        if found.get("kafka_cleanup_policy") == COMPACT and any(
            found.get(field) is not None for field in ("ttl_ms", "cap_bytes")
        ):
            raise ConfigRefused(
                "retention.ms and retention.bytes have no effect in Kafka with"
                " cleanup.policy=compact, and would remove records here: leave them out, or use"
                " compact,delete"
            )
        return found

    def of_topic(self, config: TopicConfig, names: Iterable[str] = ()) -> list[ConfigSaid]:
        """The settings of a topic with these names, or all."""
        default = TopicConfig()
        found = []
        for name, kept in _KEPT.items():
            value = getattr(config, kept.field)
            source = BY_DEFAULT if value == getattr(default, kept.field) else OF_TOPIC
            found.append(ConfigSaid(name, kept.said(value), False, source, kept.kind))
        found += _fixed(self._of_topics, BY_DEFAULT)
        return _named(found, names)

    def of_broker(self, names: Iterable[str] = ()) -> list[ConfigSaid]:
        """The settings of each broker with these names, or all."""
        return _named(_fixed(self._of_brokers, OF_BROKER), names)


def batch_bytes_max(config: Config) -> int:
    """The longest batch that is accepted: at most a quarter of a ring."""
    return min(config.body_bytes_max, config.ring_bytes // 4)


def _fixed(values: Mapping[str, tuple[str, int]], source: int) -> list[ConfigSaid]:
    return [ConfigSaid(name, value, True, source, kind) for name, (value, kind) in values.items()]


def _named(found: list[ConfigSaid], names: Iterable[str]) -> list[ConfigSaid]:
    wanted = set(names)
    return sorted(each for each in found if not wanted or each.name in wanted)
