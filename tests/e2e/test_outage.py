"""An outage of the store, from outside: alarms, refusals, and what is stored afterwards."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, ROOT, Answer, Daemon, running, wait_until
from tests.e2e.processes import Line
from tests.e2e.proxy import Fault, StoreProxy, store_proxy
from tests.e2e.stores import on_s3
from tests.e2e.wire import Wire
from tests.minio import Bucket

REQUEST_BYTES = 96  # at least, of a request in its ring
PULLED, WAITING = 4, 20


def status_of(daemon: Daemon) -> tuple[int, str]:
    """Exit code and words of ``headgate status``."""
    command = [sys.executable, "-m", "cli", "status", "--url", daemon.url]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.returncode, found.stdout + found.stderr


@pytest.mark.slow
def test_status_readyz_and_the_log_report_an_outage_and_its_end(data: Path, bucket: Bucket) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(
            bucket, proxy.endpoint_url, commit_window_min_ms=1, store_down_not_ready_ms=4_000
        )
        with running(data, shards=2, **options) as daemon, Line(daemon) as line:
            line.produce("t", "before")
            wait_until(lambda: status_of(daemon)[0] == 0, "a status without alarms")
            proxy.decide = lambda _: Fault.SLOW_DOWN
            line.send("t", "during", ack_timeout_ms=600_000)
            assert "SlowDown" in daemon.alarm("store_failing")["message"]
            code, words = status_of(daemon)
            assert code == 4 and "store failing for" in words and "SlowDown" in words
            refused = wait_until(lambda: _refused(daemon), "the gate to be closed")
            assert refused == (503, "store_failing")
            wait_until(lambda: daemon.get("/readyz").status == 503, "not to be ready")
            assert "store failing for" in daemon.get("/readyz").json["error"]["message"]
            proxy.release()
            answer = line.answer()
            assert answer is not None and answer.json["first_seq"] == 2
            wait_until(lambda: daemon.get("/readyz").status == 200, "to be ready again")
            wait_until(lambda: daemon.produce("t", "after").status == 200, "the gate to open")
            wait_until(lambda: "store_failing is over after" in daemon.text, "the log to say so")
            wait_until(lambda: status_of(daemon)[0] == 0, "a status without alarms")
            stored = [record["data"] for record in daemon.diff("t")["records"]]
    assert stored == ["before", "during", "after"]
    told = [text for text in daemon.log if "store" in text and "fail" in text]
    # The first line is repeated if the outage lasts a minute.
    is_on = ["store failing for" in text for text in told]
    assert set(is_on) == {True, False} and is_on == sorted(is_on, reverse=True), told


@pytest.mark.slow
def test_a_store_that_hangs_is_failing_before_any_of_its_puts_has_timed_out(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=1, **options) as daemon, Line(daemon) as line:
            line.produce("t", "before")
            proxy.hold_object_puts()
            line.send("t", "during", ack_timeout_ms=600_000)
            assert "a PUT has no answer" in daemon.alarm("store_failing")["message"]
            assert proxy.held and not daemon.status()["store"]["put_failures"]
            assert wait_until(lambda: _refused(daemon), "the gate") == (503, "store_failing")
            proxy.release()
            answer = line.answer()
            assert answer is not None and answer.json["first_seq"] == 2
            wait_until(lambda: daemon.produce("t", "after").status == 200, "the gate to open")


def _crowded(daemon: Daemon, proxy: StoreProxy) -> list[Line]:
    """Connections of requests that are pulled, as many objects as may be under way, and of more
    that wait. The store takes nothing: if it has been found to fail before all were taken in, there
    are none, and what was taken in is deleted with its topic."""
    daemon.ask("DELETE", "/v0/topics/t?force=true")
    assert daemon.produce("t", "before").status == 200
    lines = [Line(daemon) for _ in range(PULLED + WAITING)]
    proxy.hold_object_puts()

    def is_failing() -> bool:
        return "store_failing" in str(daemon.status()["alarms"])

    for number, line in enumerate(lines[:PULLED]):
        line.send("t", f"pulled {number}", ack_timeout_ms=10_000)
        sent = number + 1
        wait_until(lambda: _pulled(daemon, sent) or is_failing(), "it to be pulled")  # noqa: B023
    for number, line in enumerate(lines[PULLED:]):
        ack_timeout_ms = 600_000 if number % 5 == 4 else 500
        line.send("t", f"waiting {number}", ack_timeout_ms=ack_timeout_ms)
    everything = (PULLED + WAITING) * REQUEST_BYTES
    wait_until(lambda: _used_bytes(daemon) >= everything or is_failing(), "all to be taken in")
    if not is_failing():  # then none of them was refused
        return lines
    proxy.release()
    for line in lines:
        line.close()
    wait_until(lambda: not daemon.status()["alarms"] and not _used_bytes(daemon), "the store")
    return []


@pytest.mark.slow
def test_at_its_deadline_a_request_is_withdrawn_or_its_outcome_is_unknown_and_503_is_never_stored(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(
            bucket, proxy.endpoint_url, commit_window_min_ms=1, uploads_in_flight_max=2
        )  # fmt: skip
        with running(data, shards=2, **options) as daemon, ExitStack() as stack:
            lines = wait_until(lambda: _crowded(daemon, proxy), "all to be taken in", 10 * HANG_S)
            for line in lines:
                stack.enter_context(line)
            pulled, waiting = lines[:PULLED], lines[PULLED:]
            for number, line in enumerate(waiting):
                if number % 5 != 4:
                    answer = line.answer()
                    assert answer is not None
                    assert (answer.status, answer.code) == (503, "ack_timeout")
                    assert answer.json["error"]["detail"]["ack_timeout_ms"] == 500
            for line in pulled:
                answer = line.answer()
                assert answer is not None
                assert (answer.status, answer.code) == (504, "outcome_unknown")
            proxy.release()
            wait_until(lambda: _goes_on(pulled[0]), "the gate to open")
            for line in waiting[4::5]:
                answer = line.answer()
                assert answer is not None and answer.status == 200
            wait_until(lambda: not _used_bytes(daemon), "the rings to be empty")
            stored = [record["data"] for record in daemon.diff("t", limit=1000)["records"]]
    wanted = [
        "before",
        "after",
        *(f"pulled {n}" for n in range(PULLED)),
        *(f"waiting {n}" for n in (4, 9, 14, 19)),
    ]
    assert sorted(stored) == sorted(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("by_topic", [False, True])
def test_five_retries_of_one_body_during_an_outage_are_stored_once(
    data: Path, bucket: Bucket, by_topic: bool
) -> None:
    path = "/v0/topics/t" + ("" if by_topic else "?dedupe=body")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = b'[{"event": 1}, {"event": 2}]'
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=2, **options) as daemon:
            daemon.json("PUT", "/v0/topics/t", {"dedupe": "body" if by_topic else "none"})
            proxy.decide = lambda _: Fault.SLOW_DOWN
            for number in range(3):  # an agent that gives up waiting, and comes again
                with Wire(daemon.port) as wire:
                    wire.send(request)
                    taken = (number + 1) * REQUEST_BYTES
                    wait_until(partial(_taken_in, daemon, taken), "it to be taken in")
            wait_until(lambda: _refused(daemon), "the gate to be closed")
            again = daemon.ask("POST", path, body, content_type="application/json")
            assert (again.status, again.code) == (503, "store_failing")
            proxy.release()
            last = wait_until(lambda: _stored(daemon, path, body), "the store to be back")
            assert last is not None
            assert (last.json["first_seq"], last.json["count"]) == (1, 2)
            wait_until(lambda: not _used_bytes(daemon), "the rings to be empty")
            stored = [record["data"] for record in daemon.diff("t")["records"]]
            other = daemon.ask("POST", path, body + b" ", content_type="application/json")
            assert other.json["deduped"] is False
    assert stored == [{"event": 1}, {"event": 2}]


def _goes_on(line: Line) -> bool:
    """Whether a request on this connection is stored; one that is refused is not."""
    line.send("t", "after")
    answer = line.answer()
    assert answer is not None
    assert answer.status == 200 or answer.code == "store_failing"
    return answer.status == 200


def _taken_in(daemon: Daemon, used_bytes: int) -> bool:
    return _used_bytes(daemon) >= used_bytes or _refused(daemon) is not None


def _stored(daemon: Daemon, path: str, body: bytes) -> Answer | None:
    answer = daemon.ask("POST", path, body, content_type="application/json")
    return answer if answer.status == 200 else None


def _used_bytes(daemon: Daemon) -> int:
    """What the rings hold that is not durable."""
    return sum(shard["ring_used_bytes"] for shard in daemon.status()["shards"])


def _pulled(daemon: Daemon, count: int) -> bool:
    """Whether this many requests are pulled and not stored."""
    status = daemon.status()  # the rings are looked at first, so a backlog of 0 is of the same
    used = sum(shard["ring_used_bytes"] for shard in status["shards"])
    backlog = sum(group["backlog_bytes"] for group in status["groups"])
    return used >= count * REQUEST_BYTES and not backlog


def _refused(daemon: Daemon) -> tuple[int, str] | None:
    """What a request is told at the gate; None for one that passes (and is wrong)."""
    answer = daemon.ask("POST", "/v0/topics/t", b"[]", content_type="application/json")
    return (answer.status, answer.code) if answer.status == 503 else None
