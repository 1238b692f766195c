"""A reader that keeps up with a topic during writes, which must need no GET."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any, Self

from bench.processes import ServerError

WAIT_MS = 200
LIMIT = 1000


class TailReader:
    """Long-polls one partition from its current end in a thread, as a context manager."""

    def __init__(self, port: int, topic: str, from_seq: int) -> None:
        self._port = port
        self._path = f"/v0/topics/{topic}/diff"
        self._from_seq = from_seq
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tail-reader")
        self._failure: Exception | None = None
        self.records = 0
        self.lag_max = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._over.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise ServerError(f"the tail reader failed: {self._failure}") from self._failure

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            while not self._over.is_set():
                self._read_once(connection)
        except (OSError, http.client.HTTPException, ServerError, KeyError) as error:
            self._failure = error
        finally:
            connection.close()

    def _read_once(self, connection: http.client.HTTPConnection) -> None:
        asked = {"from_seq": self._from_seq, "limit": LIMIT, "wait_ms": WAIT_MS}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self._path, json.dumps(asked), headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise ServerError(f"diff was answered {answer.status}: {content[:300]!r}")
        page: dict[str, Any] = json.loads(content)
        self._from_seq = page["next_from_seq"]
        self.records += len(page["records"])
        self.lag_max = max(self.lag_max, page["lag"])
