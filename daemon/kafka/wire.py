"""Kafka's wire format: the primitives of requests and answers, and the heads of both.

A *flexible* version has lengths as varints, one more than they are, and tagged fields at the end of
each structure. ``WireReader`` and ``WireWriter`` know which form they have, so a message is one
function for all its versions (``messages.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")
TAGS_MAX = 64  # of a request; clients send one or two
ITEMS_MAX = 10_000  # topics and partitions of a request


class Key:
    """The requests that are answered."""

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
    API_VERSIONS: Final = 18
    INIT_PRODUCER_ID: Final = 22
    DELETE_GROUPS: Final = 42


class ServedVersions(NamedTuple):
    """The versions of a request: what is said, what is served, and from which on it is flexible.

    librdkafka before 2.11.1 sends gzip, snappy and lz4 uncompressed to a broker whose oldest
    Produce is not 0, so 0 is said.
    """

    said_from: int
    served_from: int
    to: int
    flexible_from: int


SERVED: dict[int, ServedVersions] = {
    Key.PRODUCE: ServedVersions(0, 3, 11, 9),
    Key.FETCH: ServedVersions(4, 4, 17, 12),
    Key.LIST_OFFSETS: ServedVersions(1, 1, 9, 6),
    Key.METADATA: ServedVersions(0, 0, 13, 9),
    Key.OFFSET_COMMIT: ServedVersions(2, 2, 9, 8),
    Key.OFFSET_FETCH: ServedVersions(1, 1, 9, 6),
    Key.FIND_COORDINATOR: ServedVersions(0, 0, 6, 3),
    Key.JOIN_GROUP: ServedVersions(0, 0, 9, 6),
    Key.HEARTBEAT: ServedVersions(0, 0, 4, 4),
    Key.LEAVE_GROUP: ServedVersions(0, 0, 5, 4),
    Key.SYNC_GROUP: ServedVersions(0, 0, 5, 4),
    Key.DESCRIBE_GROUPS: ServedVersions(0, 0, 6, 5),
    Key.LIST_GROUPS: ServedVersions(0, 0, 5, 3),
    Key.API_VERSIONS: ServedVersions(0, 0, 4, 3),
    Key.INIT_PRODUCER_ID: ServedVersions(0, 0, 5, 2),
    Key.DELETE_GROUPS: ServedVersions(0, 0, 2, 2),
}


class Malformed(ValueError):
    """Bytes that are not a request. Nothing tells which one the client meant, or where the next one
    begins, so the connection is closed."""


class TooLong(Malformed):
    """More topics and partitions than the reader takes."""


class WireReader:
    """Reads the fields of a request, in order. Raises Malformed."""

    def __init__(
        self, data: bytes, at: int = 0, *, flexible: bool = False, items_max: int = ITEMS_MAX
    ) -> None:
        self._data = data
        self._at = at
        self._items_left = items_max
        self._tags_left = TAGS_MAX
        self.flexible = flexible

    def _number(self, form: struct.Struct) -> int:
        try:
            (found,) = form.unpack_from(self._data, self._at)
        except struct.error as error:
            raise Malformed(f"the request ends at byte {len(self._data)}: {error}") from error
        self._at += form.size
        return int(found)

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def uvarint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self._number(_UINT8)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise Malformed(f"the length at byte {self._at} has more than 5 bytes")

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise Malformed(f"{size} bytes at {self._at} of a request of {len(self._data)}")
        found = self._data[self._at : end]
        self._at = end
        return found

    def string(self) -> str | None:
        """Text or null."""
        size = self.uvarint() - 1 if self.flexible else self.int16()
        return None if size < 0 else _text(self.take(size))

    def name(self) -> str:
        """Text that is not null."""
        found = self.string()
        if found is None:
            raise Malformed("a name is null")
        return found

    def blob(self) -> bytes | None:
        """Bytes or null."""
        size = self.uvarint() - 1 if self.flexible else self.int32()
        return None if size < 0 else self.take(size)

    def array(self, each: Callable[[WireReader], T]) -> list[T] | None:
        """An array of structures or numbers, or null."""
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count < 0:
            return None
        if count > len(self._data) - self._at:
            raise Malformed(f"{count} elements at byte {self._at} of {len(self._data)}")
        self._items_left -= count
        if self._items_left < 0:
            raise TooLong(
                f"a request has more than {ITEMS_MAX} topics and partitions: {count} at byte"
                f" {self._at}"
            )
        return [each(self) for _ in range(count)]

    def tags(self) -> None:
        """Passes over tagged fields: none of them means anything here."""
        if self.flexible:
            count = self.uvarint()
            self._tags_left -= count
            if self._tags_left < 0:
                raise Malformed(
                    f"{count} tagged fields at byte {self._at}; the limit for a request is"
                    f" {TAGS_MAX}"
                )
            for _ in range(count):
                self.uvarint()
                self.take(self.uvarint())


class WireWriter:
    """Writes the fields of an answer, in order."""

    def __init__(self, *, flexible: bool = False) -> None:
        self._flexible = flexible
        self.data = bytearray()

    def int8(self, number: int) -> None:
        self.data += _INT8.pack(number)

    def int16(self, number: int) -> None:
        self.data += _INT16.pack(number)

    def int32(self, number: int) -> None:
        self.data += _INT32.pack(number)

    def int64(self, number: int) -> None:
        self.data += _INT64.pack(number)

    def uvarint(self, number: int) -> None:
        while number > 0x7F:
            self.data.append(number & 0x7F | 0x80)
            number >>= 7
        self.data.append(number)

    def string(self, text: str | None) -> None:
        encoded = None if text is None else text.encode()
        size = -1 if encoded is None else len(encoded)
        if self._flexible:
            self.uvarint(size + 1)
        else:
            self.int16(size)
        self.data += encoded or b""

    def blob(self, data: bytes) -> None:
        """Bytes. Clients fail at null where records are, so there is none."""
        if self._flexible:
            self.uvarint(len(data) + 1)
        else:
            self.int32(len(data))
        self.data += data

    def array(self, elements: Iterable[T], each: Callable[[T], None]) -> None:
        elements = list(elements)
        if self._flexible:
            self.uvarint(len(elements) + 1)
        else:
            self.int32(len(elements))
        for element in elements:
            each(element)

    def tags(self) -> None:
        """No tagged fields."""
        if self._flexible:
            self.data.append(0)


class KafkaRequest(NamedTuple):
    """A request whose head was read; ``body`` is at its first field."""

    key: int
    version: int
    correlation: int
    body: WireReader
    client_id: str | None = None

    def is_served(self) -> bool:
        """Whether its version is one that is answered."""
        served = SERVED.get(self.key)
        return served is not None and served.served_from <= self.version <= served.to

    def head(self) -> KafkaRequest:
        """What its answer needs of it."""
        return self._replace(body=WireReader(b"", flexible=self.body.flexible))

    def answer(self) -> WireWriter:
        """An answer with its head. That of ApiVersions never has tags: who asks does not know yet
        which versions there are."""
        writer = WireWriter(flexible=self.body.flexible)
        writer.int32(self.correlation)
        if self.key != Key.API_VERSIONS:
            writer.tags()
        return writer


def read_request(frame: bytes, items_max: int = ITEMS_MAX) -> KafkaRequest:
    """The head of a request, without its length; its body has at most ``items_max``
    topics and partitions. Raises Malformed."""
    reader = WireReader(frame, items_max=items_max)
    key, version, correlation = reader.int16(), reader.int16(), reader.int32()
    served = SERVED.get(key)
    client_id = None
    if served is not None and served.served_from <= version <= served.to:
        client_id = reader.string()  # which is never compact
        reader.flexible = version >= served.flexible_from
        reader.tags()
    return KafkaRequest(key, version, correlation, reader, client_id)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"a text is not UTF-8: {error}") from error


_UINT8 = struct.Struct(">B")
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
