"""Hooks go the way of every produce request: refused when it is, and taken afterwards."""

from __future__ import annotations

from daemon.governor.producers_gate import ClosedBy
from shards import layout as at
from tests.daemon.intake.serving import BODY_BYTES_MAX, RING_BYTES, Intake


def post(body: bytes, query: str = "", *headers: str) -> bytes:
    """A hook."""
    lines = [
        f"POST /v0/hooks/t{query} HTTP/1.1", "Host: h", "Content-Type: application/json",
        f"Content-Length: {len(body)}", *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_a_closed_gate_refuses_a_hook_and_takes_it_when_it_comes_again(intake: Intake) -> None:
    delivery = post(b'{"a":1}', "", "X-GitHub-Delivery: 1")
    client = intake.connect()
    intake.shut(at.G_GATE, ClosedBy.STORE_FAILING)
    client.send(delivery)
    (answer,) = client.answers
    assert (answer.status, answer.code) == (503, "store_failing")
    assert int(answer.headers["retry-after"]) >= 1
    assert "nothing of this request was stored" in answer.json["error"]["message"]
    assert not intake.published
    intake.shut(at.G_GATE, 0)
    client.send(delivery)
    intake.commit()
    assert client.statuses == [503, 200]


def test_a_full_ring_refuses_a_hook_unless_it_waits(intake: Intake) -> None:
    filling, hook, patient = intake.connect(), intake.connect(), intake.connect()
    large = b'"' + b"x" * (BODY_BYTES_MAX // 2) + b'"'
    for _ in range(RING_BYTES // len(large)):
        filling.send(post(large))
    hook.send(post(large))
    assert [each.code for each in hook.answers] == ["throttled"]
    patient.send(post(large, "?disable_backpressure=true&ack_timeout_ms=9000"))
    assert intake.admission.queued == 1
    intake.commit()
    intake.commit()
    assert patient.statuses == [200]


def test_what_a_hook_says_in_headers_counts_for_what_it_is_promised(intake: Intake) -> None:
    """They are kept until the record is in the ring."""
    client = intake.connect()
    needed = []
    for header in ("short", "x" * 8_000):
        head = post(b"", "?header=x-long", f"x-long: {header}").replace(b"Length: 0", b"Length: 9")
        client.send(head)
        needed.append(intake.admission.promised_bytes)
        client.send(b'{"a":"b"}')
    assert needed[1] - needed[0] > 4 * 7_000
    intake.commit()
    assert client.statuses == [200, 200]
