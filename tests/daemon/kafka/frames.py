"""Requests of Kafka's protocol for whoever has no client that sends them, or no connection."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, Final, cast

from daemon.kafka.budget import Said
from daemon.kafka.connection import KafkaConnection
from daemon.kafka.rights import Allowed
from daemon.kafka.served import SERVED, KafkaParts
from daemon.kafka.wire import KafkaRequest
from uploader.l0.kafka import KafkaRecord, encode_batch


class Key:
    """Kafka's numbers of the requests that are served."""

    PRODUCE: Final = 0
    FETCH: Final = 1
    LIST_OFFSETS: Final = 2
    METADATA: Final = 3
    OFFSET_COMMIT: Final = 8
    OFFSET_FETCH: Final = 9
    FIND_COORDINATOR: Final = 10
    JOIN_GROUP: Final = 11
    HEARTBEAT: Final = 12
    LEAVE_GROUP: Final = 13
    SYNC_GROUP: Final = 14
    DESCRIBE_GROUPS: Final = 15
    LIST_GROUPS: Final = 16
    SASL_HANDSHAKE: Final = 17
    API_VERSIONS: Final = 18
    CREATE_TOPICS: Final = 19
    DELETE_TOPICS: Final = 20
    INIT_PRODUCER_ID: Final = 22
    DESCRIBE_CONFIGS: Final = 32
    SASL_AUTHENTICATE: Final = 36
    CREATE_PARTITIONS: Final = 37
    DELETE_GROUPS: Final = 42
    OFFSET_DELETE: Final = 47


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    return struct.pack(">h", len(value.encode())) + value.encode()


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def array(*each: bytes) -> bytes:
    return struct.pack(">i", len(each)) + b"".join(each)


def frame(key: int, *fields: bytes, version: int | None = None) -> bytes:
    """A request with its length, in the oldest version that is served, and the number 9."""
    number = SERVED[key].versions.oldest if version is None else version
    data = struct.pack(">hhi", key, number, 9) + text(None) + b"".join(fields)
    return blob(data)


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    return frame(Key.SASL_HANDSHAKE, text(mechanism), version=version)


def authenticate(said: bytes) -> bytes:
    return frame(Key.SASL_AUTHENTICATE, blob(said), version=1)


def plain(token: str, user: str = "anybody", whom: str = "") -> bytes:
    return f"{whom}\0{user}\0{token}".encode()


def naming(key: int, name: str) -> bytes:
    """A request that names a topic or a group, or both."""
    topic = text(name)
    place = struct.pack(">i", 0)
    batch = encode_batch(0, [(0, KafkaRecord(5, None, b"by Kafka"))])
    fields: dict[int, tuple[bytes, ...]] = {
        Key.PRODUCE: (text(None), struct.pack(">hi", -1, 9_000),
                      array(topic + array(place + blob(batch)))),
        Key.FETCH: (struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0),
                    array(topic + array(place + struct.pack(">qi", 0, 1 << 20)))),
        Key.LIST_OFFSETS: (place, array(topic + array(place + struct.pack(">q", -1)))),
        Key.METADATA: (array(topic),),
        Key.OFFSET_COMMIT: (topic, struct.pack(">i", -1), text(""), struct.pack(">q", -1),
                            array(topic + array(place + struct.pack(">q", 1) + text("")))),
        Key.OFFSET_FETCH: (topic, array(topic + array(place))),
        Key.FIND_COORDINATOR: (topic,),
        Key.JOIN_GROUP: (topic, struct.pack(">i", 9_000), text(""), text("consumer"),
                         array(text("range") + blob(b""))),
        Key.HEARTBEAT: (topic, struct.pack(">i", 1), text("m")),
        Key.LEAVE_GROUP: (topic, text("m")),
        Key.SYNC_GROUP: (topic, struct.pack(">i", 1), text("m"), array()),
        Key.DESCRIBE_GROUPS: (array(topic),),
        Key.LIST_GROUPS: (),
        Key.INIT_PRODUCER_ID: (text(None), struct.pack(">i", 9_000)),
        Key.DELETE_GROUPS: (array(topic),),
        Key.CREATE_TOPICS: (array(topic + struct.pack(">ih", 1, 1) + array() + array()),
                            struct.pack(">i", 9_000), b"\0"),
        Key.DELETE_TOPICS: (array(topic), struct.pack(">i", 9_000)),
        Key.CREATE_PARTITIONS: (array(topic + struct.pack(">ii", 2, -1)),
                                struct.pack(">i", 9_000), b"\0"),
        Key.DESCRIBE_CONFIGS: (array(b"\2" + topic + struct.pack(">i", -1)), b"\0"),
        Key.OFFSET_DELETE: (topic, array(topic + array(place))),
    }  # fmt: skip
    return frame(key, *fields[key])


async def answered(asked: KafkaRequest, allowed: Allowed, **parts: Any) -> Said:
    """What these parts of a shard say to a client that has reached it at ``here``."""
    row, connection = SERVED[asked.key], cast(KafkaConnection, None)
    there = cast(KafkaParts, SimpleNamespace(**parts))
    turn = await row.begin(there, connection, asked.head(0, "here"), row.read(asked), allowed)
    assert callable(turn)
    said = await turn()
    assert said is not None
    return said
