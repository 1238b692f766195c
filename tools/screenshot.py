"""``make screenshot``: the picture of the page in the README, of a real daemon under a small load.

The daemon has four shards and its store is a MinIO, so that its requests have a price. Producers
write to three topics for a minute, after which the bill knows what a month costs. A subscription
has a blocked key, and a router copies.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tools import demo, minio
from tools.browser import chromium
from tools.buckets import client

TOPICS = ("orders", "payments", "clicks")
LOAD_S = 75.0
WIDTH, HEIGHT = 1280, 1050


class Daemon:
    """Requests to it, one after the other."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """The answer's document. Raises DemoError if it is refused."""
        body = None if document is None else json.dumps(document)
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise demo.DemoError(f"{method} {path} was answered {answer.status}: {text.decode()}")
        return json.loads(text)


def produce(port: int, ends: threading.Event, topic: str, records: int) -> None:
    """A producer that waits for each answer, until ``ends``."""
    daemon = Daemon(port)
    batch = {"records": [{"key": f"k{n}", "data": {"text": "x" * 700}} for n in range(records)]}
    while not ends.is_set():
        daemon.ask("POST", f"/v0/topics/{topic}", batch)


def prepare(daemon: Daemon) -> None:
    """A subscription with a blocked key, and a router."""
    for topic in (*TOPICS, "archive"):
        daemon.ask("PUT", f"/v0/topics/{topic}", {"partitions": 1})
    jobs = "/v0/topics/jobs"
    daemon.ask("PUT", jobs, {"partitions": 1})
    daemon.ask("PUT", f"{jobs}/subscriptions/invoices", {"redeliveries_max": 0})
    daemon.ask("POST", jobs, {"records": [{"key": f"customer-{n}", "data": n} for n in range(40)]})
    sent: list[Any] = []
    while not sent:
        query = "consumer=w1&max=40&wait_ms=1000"
        sent = daemon.ask("GET", f"{jobs}/subscriptions/invoices/consume?{query}")["messages"]
    named = [{each: message[each] for each in ("partition", "seq", "epoch")} for message in sent]
    for verb, messages, more in (
        ("nack", named[:1], {"reason": "no address"}), ("ack", named[1:], {}),
    ):  # fmt: skip
        body = {"consumer": "w1", "messages": messages, **more}
        daemon.ask("POST", f"{jobs}/subscriptions/invoices/{verb}", body)
    daemon.ask("PUT", "/v0/routers/keep", {"source": "orders", "dest": "archive"})


def picture(port: int, path: Path) -> None:
    """Saves what the page shows after LOAD_S of load."""
    ends = threading.Event()
    producers = [
        threading.Thread(target=produce, args=(port, ends, topic, 20 * (number + 1)))
        for number, topic in enumerate(TOPICS)
        for _ in range(2)
    ]
    for each in producers:
        each.start()
    try:
        with chromium() as browser:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_timeout(LOAD_S * 1e3)
            page.screenshot(path=path)
    finally:
        ends.set()
        for each in producers:
            each.join()


def main() -> int:
    """Makes the picture at the path that the command names."""
    with tempfile.TemporaryDirectory(prefix="headgate-screenshot-") as name:
        folder = Path(name)
        (folder / "s3").mkdir()
        store_port = minio.free_port()
        store = minio.start(minio.find_or_build(), folder / "s3", store_port)
        try:
            endpoint_url = f"http://127.0.0.1:{store_port}"
            client(endpoint_url).create_bucket(Bucket="headgate")
            port = minio.free_port()
            daemon = demo.start(
                folder, port, "--shards", "4", "--store", "s3://headgate/demo",
                "--set", f"s3_endpoint_url={endpoint_url}", "--set", f"s3_region={minio.REGION}",
                environ={
                    "AWS_ACCESS_KEY_ID": minio.ACCESS_KEY,
                    "AWS_SECRET_ACCESS_KEY": minio.SECRET_KEY,
                },
            )  # fmt: skip
            try:
                demo.wait_until_ready(daemon, folder, port)
                prepare(Daemon(port))
                picture(port, Path(sys.argv[1]))
            finally:
                demo.stop(daemon, folder)
        finally:
            minio.stop(store)
    return 0


if __name__ == "__main__":
    sys.exit(main())
