"""The key of ``dedupe=body``: equal for what is the same request, another for everything else."""

from __future__ import annotations

from daemon.intake.formats import body_key
from daemon.schemas.api import IDEMPOTENCY_KEY_CHARACTERS_MAX

QUERY = {"key": "host", "partition": "1"}
BODY = b'[{"host": "a"}]'
KEY = body_key("application/json", QUERY, BODY)


def test_equal_requests_have_one_key_however_they_are_sent() -> None:
    sent_otherwise = {"partition": "1", "key": "host", "dedupe": "body", "create": "false",
                      "ack_timeout_ms": "500"}  # fmt: skip
    assert body_key("application/json", sent_otherwise, BODY) == KEY
    assert KEY.startswith("dedupe=body:")
    assert len(KEY) == len("dedupe=body:") + 32 <= IDEMPOTENCY_KEY_CHARACTERS_MAX


def test_another_body_content_type_or_query_is_another_request() -> None:
    others = {
        body_key("application/json", QUERY, BODY + b" "),
        body_key("application/x-ndjson", QUERY, BODY),
        body_key("application/json", {"key": "host"}, BODY),
        body_key("application/json", {"key": "host", "partition": "2"}, BODY),
        body_key("application/json", {"key": "hostpartition", "": "1"}, BODY),
        body_key("application/json", {}, BODY),
    }
    assert len(others) == 6 and KEY not in others


def test_a_body_that_begins_as_parameters_are_digested_is_another_request() -> None:
    as_digested = b"\0\0\0\x03key\0\0\0\x04host"
    content_type = "application/octet-stream"
    without = body_key(content_type, {}, as_digested + b"x")
    assert body_key(content_type, {"key": "host"}, b"x") != without
