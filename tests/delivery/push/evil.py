"""A receiver as a process of its own that does what no receiver should: ``python -m`` it.

The path of a request says what to do; ``ROUTES`` has them. It prints one line of JSON, its ports,
and ends when its stdin does. For ``/seen`` it tells what it saw: requests by path, the most that
were under way, the bytes that it could get rid of.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

Handler = Callable[["Connection", str], Awaitable[bool]]

# Longer than any client stands still: one that found the connection closed would not time out.
DEAF_S = 3_600


class Seen:
    """What all connections saw together."""

    def __init__(self) -> None:
        self.paths: Counter[str] = Counter()
        self.under_way = 0
        self.most = 0
        self.sent_bytes = 0
        self.connections = 0

    def text(self) -> bytes:
        return json.dumps(
            {
                "paths": self.paths,
                "most": self.most,
                "sent_bytes": self.sent_bytes,
                "connections": self.connections,
            }
        ).encode()


class Connection:
    """One connection, with its number."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen
    ) -> None:
        self.reader, self.writer, self.seen = reader, writer, seen
        seen.connections += 1
        self.number = seen.connections
        self.head = b""
        self.body = b""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.seen.sent_bytes += len(data)

    async def answer(self, status: int, body: bytes = b"", *headers: str) -> bool:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
        lines.append(f"X-Connection: {self.number}")
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return True

    async def serve(self) -> None:
        while True:
            self.head = await self.reader.readuntil(b"\r\n\r\n")
            path = self.head.split(b" ", 2)[1].decode()
            name, _, rest = path.removeprefix("/").partition("/")
            if name not in ("early", "deaf"):
                self.body = await self.reader.readexactly(self._length())
            self.seen.paths[path] += 1
            self.seen.under_way += 1
            self.seen.most = max(self.seen.most, self.seen.under_way)
            try:
                if not await ROUTES[name](self, rest):
                    return
            finally:
                self.seen.under_way -= 1

    def _length(self) -> int:
        for line in self.head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return int(line.partition(b":")[2])
        return 0


async def _forever(connection: Connection, data: bytes, pause_s: float = 0.0) -> bool:
    while True:
        await connection.send(data)
        await asyncio.sleep(pause_s)


async def ok(connection: Connection, _: str) -> bool:
    return await connection.answer(200, b"ok")


async def echo(connection: Connection, _: str) -> bool:
    return await connection.answer(200, connection.head)


async def length(connection: Connection, _: str) -> bool:
    return await connection.answer(200, str(len(connection.body)).encode())


async def status(connection: Connection, rest: str) -> bool:
    number, _, value = rest.partition("/")
    return await connection.answer(int(number), b"", *([f"Retry-After: {value}"] if value else []))


async def slow(connection: Connection, rest: str) -> bool:
    await asyncio.sleep(int(rest) / 1_000)
    return await connection.answer(200)


async def redirect(connection: Connection, rest: str) -> bool:
    return await connection.answer(307, b"", f"Location: /{rest}", "Set-Cookie: a=b")


async def leaves(connection: Connection, _: str) -> bool:
    await connection.answer(200)
    return False


async def hang(connection: Connection, _: str) -> bool:
    await connection.reader.read()
    return False


async def drip(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    return await _forever(connection, b"x", 0.02)


async def dripping_head(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    return await _forever(connection, b"x", 0.02)


async def gigabyte(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    return await _forever(connection, bytes(1 << 16))


async def endless(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    return await _forever(connection, b"1\r\nx\r\n" * 1_000)


async def bomb(connection: Connection, _: str) -> bool:
    return await connection.answer(200, gzip.compress(bytes(10 << 20)), "Content-Encoding: gzip")


async def half(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")
    return False


async def half_head(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    return False


async def half_chunk(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    return False


async def bad_chunk(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n")
    return False


async def until_closed(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    return False


async def nothing(_: Connection, __: str) -> bool:
    return False


async def many_headers(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\n")
    return await _forever(connection, b"X-Line: 1\r\n")


async def long_header(connection: Connection, _: str) -> bool:
    await connection.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    return await _forever(connection, b"x" * 1_024)


async def twice(connection: Connection, _: str) -> bool:
    """Answers, and a moment later again, though nobody asked."""
    await connection.answer(200, b"first")
    await asyncio.sleep(0.01)
    return await connection.answer(200, b"second")


async def deaf(_: Connection, __: str) -> bool:
    await asyncio.sleep(DEAF_S)
    return False


async def garbage(connection: Connection, _: str) -> bool:
    await connection.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n")
    return False


async def continues(connection: Connection, _: str) -> bool:
    return await _forever(connection, b"HTTP/1.1 100 Continue\r\n\r\n")


async def upgrades(connection: Connection, _: str) -> bool:
    await connection.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
    )
    return await _forever(connection, b"x" * 1_024)


async def early(connection: Connection, _: str) -> bool:
    """Answers, and reads no body, as ``deaf`` does without an answer."""
    await connection.answer(413, b"", "Connection: close")
    await asyncio.sleep(DEAF_S)
    return False


async def seen(connection: Connection, _: str) -> bool:
    return await connection.answer(200, connection.seen.text())


ROUTES: dict[str, Handler] = {
    name.replace("_", "-"): value
    for name, value in list(globals().items())
    if asyncio.iscoroutinefunction(value) and not name.startswith("_")
}


async def main(certificates: list[str]) -> None:
    """Serves without TLS, and with each of the certificates, until stdin ends."""
    counted = Seen()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Connection(reader, writer, counted).serve()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # the client has gone
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    servers = [await asyncio.start_server(accept, "127.0.0.1", 0)]
    for file in certificates:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(file)
        servers.append(await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context))
    ports: list[Any] = [server.sockets[0].getsockname()[1] for server in servers]
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    # Connections that hang end with the process, and nothing is said about them.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
