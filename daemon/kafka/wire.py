"""Kafka's wire format: the primitives of requests and answers, and the heads of answers.

A *flexible* version has lengths as varints, one more than they are, and tagged fields at the end of
each structure. ``WireReader`` and ``WireWriter`` know which form they have, so a message is one
function for all its versions (``messages.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")
TAGS_MAX = 64  # of a request; clients send one or two
ITEMS_MAX = 10_000  # topics and partitions of a request


class ServedVersions(NamedTuple):
    """The oldest and the newest version that are served of a request, and from which on they are
    flexible. ``told_from``: the oldest one that clients are told of, if it is another."""

    oldest: int
    newest: int
    flexible_from: int
    told_from: int | None = None


NEVER_FLEXIBLE = 1 << 15


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

    def structs(self, each: Callable[[WireReader], T]) -> list[T] | None:
        """An array of structures, or null. ``each`` reads the fields of one, without its tags."""

        def tagged(reader: WireReader) -> T:
            found = each(reader)
            reader.tags()
            return found

        return self.array(tagged)

    def topics(self, each: Callable[[WireReader], T]) -> list[tuple[str, list[T]]] | None:
        """Topics by their names, or null. ``each`` reads what is asked of a partition."""
        return self.structs(lambda reader: (reader.name(), reader.structs(each) or []))

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

    def structs(self, elements: Iterable[T], each: Callable[[T], None]) -> None:
        """An array of structures. ``each`` writes the fields of one, without its tags."""

        def tagged(element: T) -> None:
            each(element)
            self.tags()

        self.array(elements, tagged)

    def topics(self, topics: Iterable[tuple[str, Iterable[T]]], each: Callable[[T], None]) -> None:
        """Topics by their names. ``each`` writes what is said of a partition."""

        def topic(named: tuple[str, Iterable[T]]) -> None:
            self.string(named[0])
            self.structs(named[1], each)

        self.structs(topics, topic)

    def tags(self) -> None:
        """No tagged fields."""
        if self._flexible:
            self.data.append(0)

    def end(self) -> bytearray:
        """The whole answer."""
        self.tags()
        return self.data


class KafkaRequest(NamedTuple):
    """A request whose head was read; ``body`` is at its first field. Its answer says that the
    client is to be silent for ``throttle_ms``, and names shards at the ``host`` at which it has
    reached this one."""

    key: int
    version: int
    correlation: int
    body: WireReader
    client_id: str | None = None
    throttle_ms: int = 0
    host: str = ""

    def head(self, throttle_ms: int = 0, host: str = "") -> KafkaRequest:
        """What its answer needs of it."""
        body = WireReader(b"", flexible=self.body.flexible)
        return KafkaRequest(
            self.key, self.version, self.correlation, body, self.client_id, throttle_ms, host
        )

    def answer(self) -> WireWriter:
        """An answer with its head."""
        writer = WireWriter(flexible=self.body.flexible)
        writer.int32(self.correlation)
        writer.tags()
        return writer

    def throttled(self, from_version: int = 0) -> WireWriter:
        """An answer that begins with how long its client is to be silent, from a version on."""
        writer = self.answer()
        if self.version >= from_version:
            writer.int32(self.throttle_ms)
        return writer


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
