"""Producers that do not mind being refused, in a process of its own: ``Crowd`` in, ``Told`` out.

Each *client* has one connection and sends to its own partition, so the order of its records can be
checked. A refused body is not sent again; the next one has new records. Kinds of clients:

- *large*: bodies of 1 MiB, the next one right after each answer, whatever ``Retry-After`` says;
- *small*: 1 KiB bodies with a pause;
- *waiting*: as large, but with ``disable_backpressure=true``: they wait for their turn;
- *stalled*: a body but for its last byte and then nothing, as long as the daemon lets them; then
  again. They come first, so that they have what there is.

A record is ``{"id": [client, number, index], "pad": "..."}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import msgspec

from shards.clock import monotonic_ns

LARGE_RECORDS = 16
LARGE_RECORD_BYTES = 64 << 10
SMALL_RECORD_BYTES = 1000
SMALL_PAUSE_S = 0.02
REFUSED_PAUSE_S = 0.002
STALLED_PAUSE_S = 0.5
ANSWER_BYTES_MAX = 64 << 10
KINDS = ("stalled", "large", "small", "waiting")


class Crowd(msgspec.Struct, frozen=True):
    """How many clients of each kind, for how long."""

    seconds: float
    large: int = 0
    small: int = 0
    waiting: int = 0
    stalled: int = 0
    port: int = 0
    topic: str = ""

    def kinds(self) -> list[str]:
        """The kind of each client, by its number."""
        return [kind for kind in KINDS for _ in range(getattr(self, kind))]


class Acked(msgspec.Struct, frozen=True, array_like=True):
    """A body that was answered 200."""

    client: int
    number: int
    records: int
    first_seq: int


class Told(msgspec.Struct):
    """What the clients sent and were told. ``offered_bytes`` are all bodies that were sent to
    their end, refused ones too; ``unknown`` bodies had no answer."""

    seconds: float = 0.0
    offered_bytes: int = 0
    acked_bytes: int = 0
    acked: list[Acked] = []
    refused: list[tuple[int, int]] = []
    unknown: list[tuple[int, int]] = []
    statuses: dict[str, int] = {}
    wait_ms_max: float = 0.0
    wait_ms_max_large: float = 0.0


class _Answer(msgspec.Struct):
    first_seq: int = 0


class _Error(msgspec.Struct):
    code: str


class _Refusal(msgspec.Struct):
    error: _Error


_answers = msgspec.json.Decoder(_Answer)
_refusals = msgspec.json.Decoder(_Refusal)


def body_of(client: int, number: int, records: int, record_bytes: int) -> bytes:
    """A body whose records say where they belong."""
    return b"".join(_lines(client, number, records, record_bytes))


def _lines(client: int, number: int, records: int, record_bytes: int) -> Iterator[bytes]:
    for index in range(records):
        head = b'{"id":[%d,%d,%d],"pad":"' % (client, number, index)
        yield head + b"x" * (record_bytes - len(head) - 3) + b'"}\n'


class Client:
    """One connection at a time."""

    def __init__(self, crowd: Crowd, client: int, kind: str, told: Told, end_ns: int) -> None:
        self._client = client
        self._kind = kind
        self._told = told
        self._end_ns = end_ns
        self._port = crowd.port
        self._number = 0
        path = f"/v0/topics/{crowd.topic}?partition={client}"
        if kind == "waiting":
            path += "&disable_backpressure=true"
        self._head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        self._head += "Content-Type: application/x-ndjson\r\n"
        self._size = (1, SMALL_RECORD_BYTES) if kind == "small" else (
            LARGE_RECORDS, LARGE_RECORD_BYTES,
        )  # fmt: skip

    async def run(self) -> None:
        """Connects again and again until the end."""
        while monotonic_ns() < self._end_ns:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                if self._kind == "stalled":
                    await self._stall(reader, writer)
                else:
                    while monotonic_ns() < self._end_ns and await self._send(reader, writer):
                        pass
            except (OSError, EOFError):
                pass  # the last body's outcome is unknown
            finally:
                writer.close()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Sends a body and takes its answer. Returns whether the connection may take another."""
        self._number += 1
        told, body = self._told, body_of(self._client, self._number, *self._size)
        told.unknown.append((self._client, self._number))
        sent_ns = monotonic_ns()
        # It is listened to from the beginning: a daemon that refuses a body closes 5 s later, and
        # to a process that stood still for so long, drain says only that the connection is gone.
        answered = asyncio.ensure_future(_answer(reader))
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        with contextlib.suppress(OSError):
            await writer.drain()
        status, ends, content = await answered
        told.offered_bytes += len(body)
        if status != 504:  # which says that the outcome is unknown
            told.unknown.remove((self._client, self._number))
        wait_ms = (monotonic_ns() - sent_ns) / 1e6
        told.wait_ms_max = max(told.wait_ms_max, wait_ms)
        if status == 200:
            self._count("200")
            told.acked_bytes += len(body)
            first_seq = _answers.decode(content).first_seq
            told.acked.append(Acked(self._client, self._number, self._size[0], first_seq))
            if self._kind == "small":
                await asyncio.sleep(SMALL_PAUSE_S)
            return not ends
        self._count(f"{status} {_refusals.decode(content).error.code}")
        if status != 504:
            told.refused.append((self._client, self._number))
        await asyncio.sleep(REFUSED_PAUSE_S)
        return not ends

    async def _stall(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = body_of(self._client, 0, *self._size)
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body[:-1])
        left_s = (self._end_ns - monotonic_ns()) / 1e9
        try:
            await asyncio.wait_for(reader.read(), left_s)  # until the daemon closes it
        except TimeoutError:
            return
        await asyncio.sleep(STALLED_PAUSE_S)

    def _count(self, status: str) -> None:
        self._told.statuses[status] = self._told.statuses.get(status, 0) + 1


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool, bytes]:
    """Status, whether the connection ends, and body; also if the connection broke after it.

    Raises EOFError or OSError if it broke before."""
    found = b""
    while True:
        head, ended, content = found.partition(b"\r\n\r\n")
        head = head.lower()
        if ended:
            start = head.index(b"content-length:") + len(b"content-length:")
            if len(content) >= int(head[start:].split(b"\r\n", 1)[0]):
                return int(head[9:12]), b"connection: close" in head, content
        more = await reader.read(ANSWER_BYTES_MAX)
        if not more:
            raise EOFError
        found += more


async def _run(crowd: Crowd) -> Told:
    told = Told()
    began_ns = monotonic_ns()
    end_ns = began_ns + int(crowd.seconds * 1e9)
    kinds = enumerate(crowd.kinds())
    await asyncio.gather(*(Client(crowd, n, kind, told, end_ns).run() for n, kind in kinds))
    told.seconds = (monotonic_ns() - began_ns) / 1e9
    return told


def main() -> None:
    """Reads a Crowd from standard input, writes Told to standard output, both as msgpack."""
    crowd = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Crowd)
    told = asyncio.run(_run(crowd))
    sys.stdout.buffer.write(msgspec.msgpack.encode(told))


if __name__ == "__main__":
    main()
