"""Copies a growing file of JSON lines to a topic, each line once, whatever is killed and when.

    python exactly_once.py TOPIC FILE [URL [LINES_A_REQUEST]]

Its place in the file is a cursor of the daemon, which moves in the same commit that stores the
lines. So there is nothing to keep here: start it again, here or elsewhere, and it continues. Two of
them on one file disturb each other, but store nothing twice. The standard library is all it needs.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

TIMEOUT_S = 60
RETRY_S = 0.5


def ask(method: str, url: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and body of an answer; asks again while the daemon is away or wants to wait."""
    body = json.dumps(document).encode()
    while True:
        request = Request(url, body, {"Content-Type": "application/json"}, method=method)
        pause_s = RETRY_S
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            if error.code not in (429, 503, 504):  # 504: as without an answer
                return error.code, json.load(error)
            pause_s = float(error.headers.get("Retry-After", RETRY_S))
        except (OSError, http.client.HTTPException):
            pass  # The outcome is unknown. If it was stored, the cursor will say so.
        time.sleep(pause_s)


def lines_after(file: Path, position: int) -> Iterator[bytes]:
    """The whole lines of the file after that many."""
    with file.open("rb") as lines:
        yield from (line for line in islice(lines, position, None) if line.endswith(b"\n"))


def main(topic: str, file: str, base: str = "http://127.0.0.1:7440", most: str = "1000") -> None:
    """Copies what is there, and prints how many lines that are in all."""
    name = Path(file).name  # the cursor's; it must be the same at each start
    _, cursor = ask("PUT", f"{base}/v0/cursors/{quote(name)}", {})
    position = sum(each["seq"] for each in cursor["positions"])  # only partition 0 is used
    while batch := list(islice(lines_after(Path(file), position), int(most))):
        status, answer = ask(
            "POST",
            f"{base}/v0/topics/{quote(topic)}",
            {
                "records": [{"data": json.loads(line)} for line in batch],
                "advance": {"cursor": name, "expected": position, "next": position + len(batch)},
            },
        )
        if status == 200:
            position += len(batch)
        elif answer["error"]["code"] == "cursor_moved":
            # An answer of ours was lost, or another program was faster: the lines are stored.
            position = answer["error"]["detail"]["position"]
        else:
            raise SystemExit(f"{status}: {answer['error']['message']}")
    print(f"{position} lines")


if __name__ == "__main__":
    main(*sys.argv[1:])
