"""Copies the records of a topic to a file, each one once, with nothing but the standard library.

    python follow.py TOPIC FILE [URL]

It runs until Ctrl-C, and begins with the first record of the topic. FILE.position says how far FILE
is: a position of the stream, and how many bytes FILE had then. Whatever comes after the last
position that was kept, because of a kill or a lost connection, is cut off and comes again.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlsplit

SILENCE_S = 40  # the daemon says something every 15 s
RETRY_S = 1.0


def follow(address: str, path: str, out: BinaryIO, kept: Path) -> None:
    """Copies until the connection ends."""
    position, size = json.loads(kept.read_text()) if kept.exists() else ("", 0)
    out.truncate(size)
    out.seek(size)
    headers = {"Accept": "application/x-ndjson"}
    if position:
        headers["Last-Event-ID"] = position
    connection = http.client.HTTPConnection(address, timeout=SILENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status == 503:
            raise OSError(answer.read().decode())  # it starts, stops or has no room: later
        if answer.status != 200:
            sys.exit(answer.read().decode())
        while line := answer.readline():
            told = json.loads(line)
            if "event" not in told:
                out.write(json.dumps(told.get("data", told.get("data_b64"))).encode() + b"\n")
            elif told["event"] == "position":
                out.flush()
                keep(kept, told["id"], out.tell())
            elif told["event"] in ("tombstone", "error"):
                print(told, file=sys.stderr)
    finally:
        connection.close()


def keep(file: Path, position: str, size: int) -> None:
    """Replaces the file in one step: it has the old or the new content, never a part."""
    new = file.with_name(file.name + ".new")
    new.write_text(json.dumps([position, size]))
    os.replace(new, file)


def main(topic: str, file: str, base: str = "http://127.0.0.1:7440") -> None:
    """Connects again and again."""
    path = f"/v0/topics/{quote(topic)}/watch?from_seq=0"
    with open(file, "ab") as out:
        while True:
            try:
                follow(urlsplit(base).netloc, path, out, Path(file + ".position"))
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                print(f"connecting again: {error!r}", file=sys.stderr)
            time.sleep(RETRY_S)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        pass
