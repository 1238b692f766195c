"""A pair whose owner is killed, stopped and cut off from the store in turn, under one producer."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import UNANSWERED, ask, wait_until
from tests.e2e.proxy import Fault, StoreProxy, store_proxy
from tests.e2e.standbys import Standby, started
from tests.minio import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.s3]


class Producer:
    """Sends numbers, each until it is acknowledged, to whoever takes them."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self.acknowledged = 0
        self.by = 0  # which daemon has acknowledged last
        self._ends = threading.Event()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Sends meanwhile."""
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()

    def _send(self) -> None:
        at, number = 0, 1
        while not self._ends.is_set():
            body = json.dumps({"records": [{"data": number}], "idempotency_key": f"n{number}"})
            with contextlib.suppress(*UNANSWERED):
                answer = ask(self._ports[at], "POST", "/v0/topics/t", body.encode(),
                             {"Content-Type": "application/json"}, timeout_s=3)  # fmt: skip
                if answer.status == 200:
                    self.acknowledged, self.by = number, at
                    number += 1
                    continue
            at = 1 - at
            self._ends.wait(0.02)

    def wait_more(self) -> None:
        """Waits for some acknowledgments."""
        until = self.acknowledged + 5
        wait_until(lambda: self.acknowledged >= until, "the producer to go on", 150)


def kill(owner: Standby, _: StoreProxy) -> Callable[[], None]:
    owner.kill_everything()
    return owner.start


def stop(owner: Standby, _: StoreProxy) -> Callable[[], None]:
    os.killpg(owner.process.pid, signal.SIGSTOP)
    return lambda: os.killpg(owner.process.pid, signal.SIGCONT)


def cut(_: Standby, link: StoreProxy) -> Callable[[], None]:
    link.decide = lambda _: Fault.RESET

    def mend() -> None:
        link.decide = lambda _: Fault.NONE

    return mend


def test_what_was_acknowledged_by_either_is_there_once_and_in_order(
    tmp_path: Path, bucket: Bucket
) -> None:
    faults = [kill, stop, cut]
    random.Random(24).shuffle(faults)
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(store_proxy(bucket.endpoint_url)) for _ in range(2)]
        pair = [
            Standby(tmp_path / str(number), bucket, link.endpoint_url)
            for number, link in enumerate(links)
        ]
        stack.enter_context(started(*pair))
        producer = Producer([each.port for each in pair])
        stack.enter_context(producer.sending())
        for fault in faults:
            producer.wait_more()
            owner = producer.by
            pair[1 - owner].wait_standby()
            mend = fault(pair[owner], links[owner])
            wait_until(lambda o=owner: producer.by != o, f"a take-over after {fault}", 150)  # type: ignore[misc]
            producer.wait_more()
            mend()
            pair[owner].wait_standby()
        producer.wait_more()
        owner = producer.by
        acknowledged = producer.acknowledged
        found = [each["data"] for each in pair[owner].read_all("t")]
        assert found == sorted(set(found)), "each once, and in order"
        assert set(found) >= set(range(1, acknowledged + 1))
