"""Where a topic of Kafka is, and with which settings its cluster is reached.

``kafka://BROKER[,BROKER]/TOPIC`` names it. Everything else, and every secret, is in a file of
properties, as Kafka's own tools and librdkafka take them: ``NAME=VALUE`` lines. Properties that
decide where the import is and what it sees are refused in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SCHEME = "kafka://"
# Values that the import depends on; and the brokers, which the source names.
FIXED: dict[str, str | int | bool] = {
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
_OF_THE_SOURCE = ("bootstrap.servers", "metadata.broker.list")
_OF_JAVA = ("sasl.jaas.config", "ssl.truststore.", "security.providers")
PROPERTIES_BYTES_MAX = 1 << 20


class BadAddress(ValueError):
    """A URL or a file of properties that cannot be used. ``hint``: what to do."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


class KafkaAddress(NamedTuple):
    """A topic in a cluster."""

    brokers: str
    topic: str
    properties: dict[str, str]

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.brokers}/{self.topic}"


def parse_url(url: str, properties: dict[str, str]) -> KafkaAddress:
    """``kafka://BROKER[,BROKER]/TOPIC``. Raises BadAddress."""
    brokers, slash, topic = url.removeprefix(SCHEME).partition("/")
    if "@" in brokers:
        raise BadAddress(
            "a source names no user and no password: the list of processes shows them",
            "put sasl.username and sasl.password into a file, and name it with --kafka-config",
        )
    if not slash or not topic or "/" in topic or not all(brokers.split(",")):
        raise BadAddress(f"{url!r} is not kafka://BROKER[,BROKER]/TOPIC")
    return KafkaAddress(brokers, topic, properties)


def read_properties(path: Path) -> dict[str, str]:
    """A file of properties. Raises BadAddress, whose text has no value of it."""
    try:
        with path.open("rb") as file:
            text = file.read(PROPERTIES_BYTES_MAX + 1).decode()
    except OSError as error:
        raise BadAddress(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadAddress(f"{path} is not UTF-8") from error
    if len(text) > PROPERTIES_BYTES_MAX:
        raise BadAddress(f"{path} has more than {PROPERTIES_BYTES_MAX:,} bytes")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        name, equals, value = (each.strip() for each in line.partition("="))
        if not equals or not name:
            raise BadAddress(f"line {number} of {path} is not NAME=VALUE")
        if name in _OF_THE_SOURCE:
            raise BadAddress(f"line {number} of {path} sets {name}: the source names the brokers")
        if name in FIXED:
            raise BadAddress(
                f"line {number} of {path} sets {name}, which is {str(FIXED[name]).lower()} in an"
                " import"
            )
        if name.startswith(_OF_JAVA):
            raise BadAddress(
                f"line {number} of {path} sets {name}, which only Java's clients know",
                "librdkafka's names are sasl.username, sasl.password and ssl.ca.location",
            )
        found[name] = value
    return found
