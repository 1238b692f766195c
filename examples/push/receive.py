"""Receives the records of push subscriptions and keeps each one once, with nothing but the standard
library.

    WEBHOOK_SECRETS='whsec_... whsec_...' python receive.py DATABASE [PORT]

It takes all three formats. It verifies signatures, with any of the secrets, and refuses what is not
signed; without secrets it takes everything. A record that comes again changes nothing, because its
id is kept in the transaction that keeps the record. DATABASE is a SQLite file, with a table
`events`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

CLOCK_TOLERANCE_S = 300  # what is signed longer ago may be a repetition by a stranger
BODY_BYTES_MAX = 16 << 20


class Refused(Exception):
    """What a request is answered with instead of 204."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def verify(headers: Mapping[str, str], body: bytes, secrets: list[str], now_s: float) -> None:
    """Raises Refused unless one of the secrets has signed these bytes lately."""
    webhook_id, seconds = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signed = f"{webhook_id}.{seconds}.".encode() + body
    given = headers.get("webhook-signature", "").split()
    if not seconds.isdecimal() or abs(now_s - int(seconds)) > CLOCK_TOLERANCE_S:
        raise Refused(401, f"webhook-timestamp {seconds!r} is not within {CLOCK_TOLERANCE_S} s")
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        expected = b"v1," + base64.b64encode(digest)
        if any(hmac.compare_digest(expected, each.encode()) for each in given):
            return
    raise Refused(401, "no signature fits")


def events_of(headers: Mapping[str, str], body: bytes) -> Iterator[dict[str, object]]:
    """The CloudEvents of a request, each as in the JSON format. Raises Refused."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/cloudevents-batch+json":
            yield from json.loads(body)
        elif kind == "application/cloudevents+json":
            yield json.loads(body)
        elif "ce-id" in headers:
            event: dict[str, object] = {
                name.lower().removeprefix("ce-"): unquote(value, errors="strict")
                for name, value in headers.items()
                if name.lower().startswith("ce-")
            }
            if kind == "application/json":
                event["data"] = json.loads(body)
            else:
                event["data_base64"] = base64.b64encode(body).decode()
            yield event
        else:
            raise Refused(400, f"a body of {kind!r} without ce-id is not an event")
    except ValueError as error:
        raise Refused(400, f"the body is not what its headers say: {error}") from error


def row_of(event: dict[str, object]) -> tuple[object, ...]:
    """What is kept of an event. Raises Refused."""
    try:
        if "data_base64" in event:
            data: str | bytes = base64.b64decode(str(event["data_base64"]))
        else:
            data = json.dumps(event["data"])
        return event["source"], event["id"], event.get("key"), event["seq"], data
    except (KeyError, TypeError) as error:
        raise Refused(400, f"an event is not one of Headgate: {error}") from error


def keep(database: str, events: list[dict[str, object]]) -> int:
    """Keeps those that are new, all or none; returns how many were."""
    rows = [row_of(event) for event in events]
    with sqlite3.connect(database, timeout=30) as connection:
        before = connection.total_changes
        connection.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)", rows)
        kept = connection.total_changes - before
    connection.close()
    return kept


class Receiver(ThreadingHTTPServer):
    """Where records are kept, and whose are taken."""

    def __init__(self, port: int, database: str, secrets: list[str]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.database = database
        self.secrets = secrets


class Handler(BaseHTTPRequestHandler):
    """One connection. 204 says that everything in the body is kept."""

    protocol_version = "HTTP/1.1"  # so that the connection is used again
    disable_nagle_algorithm = True
    server: Receiver

    def do_POST(self) -> None:
        """A record, or several."""
        try:
            size = int(self.headers.get("Content-Length", "-1"))
            if not 0 <= size <= BODY_BYTES_MAX:
                self.close_connection = True
                raise Refused(413, f"a body of {size} bytes, the limit is {BODY_BYTES_MAX}")
            body = self.rfile.read(size)
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.server.secrets:
                verify(headers, body, self.server.secrets, time.time())
            keep(self.server.database, list(events_of(headers, body)))
        except Refused as refused:
            self.answer(refused.status, str(refused))
        except sqlite3.Error as error:
            self.answer(503, str(error))  # it comes again
        else:
            self.answer(204)

    def answer(self, status: int, message: str = "") -> None:
        """Answers with a text."""
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(message.encode())))
        self.end_headers()
        self.wfile.write(message.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged for each request."""


def main() -> None:
    """Serves until Ctrl-C."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    database = sys.argv[1]
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS events"
        " (source TEXT, id TEXT, key TEXT, seq TEXT, data, PRIMARY KEY (source, id))"
    )
    connection.close()
    port = int(sys.argv[2]) if len(sys.argv) == 3 else 8080
    server = Receiver(port, database, os.environ.get("WEBHOOK_SECRETS", "").split())
    print(f"receiving on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
