"""Writes a file of JSON lines to a topic, each line once, with nothing but the standard library.

    python produce.py TOPIC FILE [URL]

Each batch carries an idempotency key, made of the file's name and the batch's place in it. If an
answer is lost, the program sends the batch again, and the daemon stores it once; so it does after
504, which says that the outcome is unknown. 429 and 503 mean that nothing of the batch was stored:
the program waits as long as the answer says, then retries.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

BATCH_RECORDS = 1000
TIMEOUT_S = 60
RETRY_S = 1.0
ATTEMPTS = 20


def send(url: str, body: bytes) -> dict[str, object]:
    """Sends one batch until it is durable. Raises HTTPError when it can never be stored."""
    request = Request(url, body, {"Content-Type": "application/x-ndjson"})
    attempts_left = ATTEMPTS
    while True:
        attempts_left -= 1
        pause_s = RETRY_S
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                return dict(json.load(answer))
        except HTTPError as error:
            if error.code not in (429, 503, 504) or not attempts_left:
                raise
            pause_s = float(error.headers.get("Retry-After", RETRY_S))
        except (OSError, http.client.HTTPException):
            # The outcome is unknown. The key makes it safe to send the batch again.
            if not attempts_left:
                raise
        time.sleep(pause_s)


def main(topic: str, file: str, base: str = "http://127.0.0.1:7440") -> None:
    """Sends the file batch by batch and prints the last offset."""
    lines = Path(file).read_bytes().splitlines(keepends=True)
    head = 0
    for start in range(0, len(lines), BATCH_RECORDS):
        batch = b"".join(lines[start : start + BATCH_RECORDS])
        key = urlencode({"idempotency_key": f"{Path(file).name}:{start}"})
        answer = send(f"{base}/v0/topics/{quote(topic)}?{key}", batch)
        head = max(head, int(str(answer["last_seq"])))
    print(f"{len(lines)} records, the last one has offset {head}")


if __name__ == "__main__":
    main(*sys.argv[1:])
