"""What the S3 store makes of stores that fail, refuse, stall, or break their promises."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from crc32c import crc32c

from tests.uploader.stores.http_stores import Answer, Request, error, scripted_store
from tools.ports import kept_port
from uploader.stores.base import (
    Encryption,
    ObjectMissing,
    StoreBusy,
    StoreError,
    StoreRefused,
)
from uploader.stores.s3 import RACED_KEYS, RACERS, S3Store

KEPT = Answer(200, headers=(("ETag", '"etag"'),))
DELETED = Answer(200, b"<DeleteResult/>", (("Content-Type", "application/xml"),))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def opened(endpoint_url: str, **timeouts: float) -> S3Store:
    return S3Store("bucket", "prefix", endpoint_url=endpoint_url, **timeouts)  # type: ignore[arg-type]  # timeouts only


def put(store: S3Store, key: str = "l0/1", body: bytes = b"body") -> str:
    return store.put(key, body, crc32c(body))


class Answering:
    """A store whose server answers each PUT with ``answer``."""

    answer = KEPT

    def __init__(self, stack: ExitStack) -> None:
        self.server = stack.enter_context(scripted_store(self._answer))
        self.store = opened(self.server.endpoint_url)
        stack.callback(self.store.close)

    def _answer(self, request: Request) -> Answer:
        return self.answer if request.method == "PUT" else KEPT


@pytest.fixture(scope="module")
def answering() -> Iterator[Answering]:
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        environment.setenv("AWS_ACCESS_KEY_ID", "key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield Answering(stack)


def test_a_put_is_one_request_with_our_checksum_and_no_hash_of_its_body() -> None:
    with scripted_store(lambda _: KEPT) as server:
        store = opened(server.endpoint_url)
        assert put(store, "l0/1", b"123456789") == "l0/1"
        store.close()
    (request,) = server.requests
    assert (request.method, request.path) == ("PUT", "/bucket/prefix/l0/1")
    assert request.body == b"123456789"
    assert request.headers["if-none-match"] == "*"
    assert request.headers["x-amz-checksum-crc32c"] == "4waSgw=="
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    checksums = [name for name in request.headers if name.startswith("x-amz-checksum-")]
    assert checksums == ["x-amz-checksum-crc32c"]
    assert "content-md5" not in request.headers


@pytest.mark.parametrize(
    ("answer", "kind", "retryable", "outcome_unknown", "message"),
    [
        (error(503, "SlowDown"), StoreBusy, True, False, "SlowDown"),
        (error(503, "ServiceUnavailable"), StoreBusy, True, False, "503"),
        (error(429, "TooManyRequests"), StoreBusy, True, False, "429"),
        (error(400, "Throttling"), StoreBusy, True, False, "Throttling"),
        (error(500, "InternalError"), StoreError, True, True, "InternalError"),
        (Answer(502, b"<html>bad gateway</html>"), StoreError, True, True, "502"),
        (error(504, "GatewayTimeout"), StoreError, True, True, "504"),
        (error(400, "RequestTimeout"), StoreError, True, True, "RequestTimeout"),
        (error(409, "ConditionalRequestConflict"), StoreError, True, False, "409"),
        (error(403, "AccessDenied"), StoreRefused, False, False, "s3:PutObject"),
        (error(403, "InvalidAccessKeyId"), StoreRefused, False, False, "AWS_ACCESS_KEY_ID"),
        (error(403, "RequestTimeTooSkewed"), StoreRefused, False, False, "clock"),
        (error(400, "ExpiredToken"), StoreRefused, False, False, "forbidden"),
        (error(404, "NoSuchBucket"), StoreRefused, False, False, "no bucket 'bucket'"),
        (error(301, "PermanentRedirect"), StoreRefused, False, False, "s3_region"),
        (error(400, "InvalidArgument"), StoreError, False, False, "InvalidArgument: said so"),
        (error(501, "NotImplemented"), StoreError, True, True, "NotImplemented"),
    ],
)
def test_an_answer_to_a_put_becomes_the_right_error(
    answering: Answering, answer: Answer, kind: type[StoreError], retryable: bool,
    outcome_unknown: bool, message: str,
) -> None:  # fmt: skip
    answering.answer = answer
    server = answering.server
    server.requests.clear()
    with pytest.raises(kind, match=message) as caught:
        put(answering.store)
    assert type(caught.value) is kind
    assert (caught.value.retryable, caught.value.outcome_unknown) == (retryable, outcome_unknown)
    assert "s3://bucket/prefix" in str(caught.value)
    assert server.endpoint_url in str(caught.value)
    # One attempt: the caller decides on more.
    assert [request.method for request in server.requests].count("PUT") == 1


def test_a_get_that_fails_has_no_unknown_outcome() -> None:
    with scripted_store(lambda _: error(500, "InternalError")) as server:
        store = opened(server.endpoint_url)
        with pytest.raises(StoreError) as caught:
            store.get("l0/1")
        store.close()
    assert (caught.value.retryable, caught.value.outcome_unknown) == (True, False)


def test_a_stalled_put_times_out_with_an_unknown_outcome() -> None:
    with scripted_store(lambda _: None) as server:
        store = opened(server.endpoint_url, read_timeout_s=0.2)
        config: Any = store._client.meta.config
        assert config.read_timeout == 0.2, "and not the 20 s of a daemon"
        with pytest.raises(StoreError, match=r"[Tt]imeout") as caught:
            put(store)
        with pytest.raises(StoreError) as of_get:
            store.get("l0/1")
        store.close()
    assert (caught.value.retryable, caught.value.outcome_unknown) == (True, True)
    assert (of_get.value.retryable, of_get.value.outcome_unknown) == (True, False)


def test_an_incomplete_answer_is_an_error_and_not_a_short_object() -> None:
    cut = Answer(200, b"123", (("Content-Length", "10"),))
    with scripted_store(lambda _: cut) as server:
        store = opened(server.endpoint_url, read_timeout_s=0.5)
        with pytest.raises(StoreError) as caught:
            store.get("l0/1")
        store.close()
    assert caught.value.retryable


def test_a_put_to_a_closed_port_has_a_known_outcome() -> None:
    with kept_port() as port:
        store = opened(f"http://127.0.0.1:{port}")
        for call in (lambda: put(store), store.check, lambda: list(store.list(""))):
            with pytest.raises(StoreError, match="Could not connect") as caught:
                call()
            assert (caught.value.retryable, caught.value.outcome_unknown) == (True, False)
            assert f"http://127.0.0.1:{port}" in str(caught.value)
        store.close()


def test_a_store_that_does_not_honor_if_none_match_is_refused_by_name() -> None:
    objects: dict[str, bytes] = {}

    def careless(request: Request) -> Answer:
        if request.method == "PUT":
            objects[request.path] = request.body
            return KEPT
        if request.method == "POST":
            objects.clear()
            return DELETED
        return Answer(200)

    with scripted_store(careless) as server:
        store = opened(server.endpoint_url)
        with pytest.raises(StoreRefused, match="does not honor If-None-Match") as caught:
            store.check()
        store.close()
    assert "s3://bucket/prefix" in str(caught.value)
    assert server.endpoint_url in str(caught.value)
    assert [request.method for request in server.requests] == ["GET", "PUT", "PUT", "GET", "POST"]
    assert objects == {}


def test_a_store_that_looks_first_and_writes_then_is_refused_by_name() -> None:
    objects: dict[str, bytes] = {}
    together = threading.Barrier(RACED_KEYS * RACERS)

    def careless(request: Request) -> Answer:
        if request.method == "POST":
            objects.clear()
            return DELETED
        if request.method != "PUT":
            return Answer(200)
        if request.path in objects:
            return error(412, "PreconditionFailed")
        if "-" in request.path.rpartition("/")[2]:
            together.wait()  # until all have looked
        objects[request.path] = request.body
        return KEPT

    with scripted_store(careless) as server:
        store = opened(server.endpoint_url)
        with pytest.raises(StoreRefused, match="8 of 8 PUTs of one new key that began together"):
            store.check()
        store.close()
    assert objects == {}


def test_a_key_that_is_gone_when_it_is_compared_is_retried() -> None:
    answers = {"PUT": error(412, "PreconditionFailed"), "HEAD": Answer(404)}
    with scripted_store(lambda request: answers[request.method]) as server:
        store = opened(server.endpoint_url)
        with pytest.raises(StoreError, match="is gone now") as caught:
            put(store)
        store.close()
    assert caught.value.retryable
    assert not isinstance(caught.value, ObjectMissing)


def test_after_reconnecting_the_next_request_uses_another_connection() -> None:
    with scripted_store(lambda request: Answer(200, b"body")) as server:
        store = opened(server.endpoint_url)
        for _ in range(2):
            store.get("l0/1")
        store.reconnect()
        store.get("l0/1")
        store.close()
    first, second, third = (request.port for request in server.requests)
    assert first == second != third


def test_a_body_spoiled_by_one_connection_is_not_a_foreign_object() -> None:
    """A store without checksums: whose object it is says its body, which is read again first."""
    bodies = iter([b"bady", b"body"])
    answers = {
        "PUT": lambda: error(412, "PreconditionFailed"),
        "HEAD": lambda: Answer(200, b"body"),
        "GET": lambda: Answer(200, next(bodies)),
    }
    with scripted_store(lambda request: answers[request.method]()) as server:
        store = opened(server.endpoint_url)
        store.put("l0/1", b"body", crc32c(b"body"))
        store.close()
    assert [request.method for request in server.requests] == ["PUT", "HEAD", "GET", "GET"]


@pytest.mark.parametrize(
    ("code", "kind"), [("InternalError", StoreError), ("AccessDenied", StoreRefused)]
)
def test_objects_that_were_not_deleted_are_named(code: str, kind: type[StoreError]) -> None:
    partly = Answer(
        200,
        b"<DeleteResult><Error><Key>prefix/l0/2</Key><Code>%s</Code><Message>no</Message></Error>"
        b"</DeleteResult>" % code.encode(),
    )
    with scripted_store(lambda _: partly) as server:
        store = opened(server.endpoint_url)
        with pytest.raises(kind, match=f"1 of 3 objects were not deleted.* l0/2: {code}"):
            store.delete(["l0/1", "l0/2", "l0/3"])
        store.close()


def test_missing_credentials_are_refused_with_a_hint_where_they_come_from() -> None:
    program = """
from uploader.stores.base import StoreRefused
from uploader.stores import open_store
try:
    open_store("s3://bucket", endpoint_url="http://127.0.0.1:1").check()
except StoreRefused as refused:
    print(refused)
"""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert found.stderr == ""
    assert "Unable to locate credentials; set AWS_ACCESS_KEY_ID" in found.stdout


def test_every_request_that_makes_an_object_asks_for_encryption() -> None:
    begun = Answer(
        200,
        b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
        (("Content-Type", "application/xml"),),
    )
    with scripted_store(lambda request: begun if request.method == "POST" else KEPT) as server:
        encryption = Encryption("aws:kms", "a-key")
        store = S3Store("bucket", endpoint_url=server.endpoint_url, encryption=encryption)
        put(store)
        store.put_in_parts("ledger/image").put(b"part")
        store.close()
    makes = [request for request in server.requests if "partNumber" not in request.path]
    assert [request.method for request in makes] == ["PUT", "POST"]
    for request in makes:
        assert request.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "a-key"
