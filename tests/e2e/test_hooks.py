"""Hooks: what others send is stored as it came, once, and read as any record."""

from __future__ import annotations

import base64
import gzip
import hmac
from typing import Any

import pytest

from delivery.push.secrets import FILE_NAME
from tests.e2e.daemon import Answer, Daemon

GITHUB = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958"}


def hook(
    daemon: Daemon, topic: str, body: bytes, kind: str = "application/json", query: str = "",
    **headers: str,
) -> Answer:  # fmt: skip
    """A request of a client that knows nothing of Headgate."""
    fields = {"Content-Type": kind} if kind else {}
    return daemon.ask("POST", f"/v0/hooks/{topic}{query}", body, **fields, **headers)


def only(daemon: Daemon, topic: str) -> Any:
    """The one record of a topic."""
    (record,) = daemon.read_all(topic)
    return record


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"b":1, "a":1.00,"a":2}'),
        ("application/json; charset=UTF-8", '["é",\n  {"records": null}\n]'.encode()),
        ("application/vnd.github+json", b'"text"'),
    ],
    ids=["object", "array", "string"],
)
def test_json_stays_the_text_that_it_was(
    daemon: Daemon, topic: str, kind: str, body: bytes
) -> None:
    assert hook(daemon, topic, b" " + body + b"\r\n", kind).json["count"] == 1
    assert only(daemon, topic)["meta"] == {"content-type": kind}
    raw = daemon.json("POST", f"/v0/topics/{topic}/diff", {}).body
    assert b'"data":' + body in raw


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"payload=%7B%7D&a=1"),
        ("application/xml", b'<?xml version="1.0" encoding="ISO-8859-1"?><a>\xe9</a>'),
        ("application/octet-stream", bytes(range(256))),
        ("", b"without a type"),
        ("application/json", b'{"ends": '),
        ("application/json; charset=iso-8859-1", b'{"a":"\xc3\xa9"}'),
        ("application/json", b'{"a":"\xe9"}'),
        ("application/json", b"[" * 600 + b"]" * 600),
        ("application/x-ndjson", b'{"a":1}\n{"a":2}\n'),
    ],
    ids=["form", "xml", "bytes", "untyped", "cut", "latin1", "not-utf8", "deep", "lines"],
)
def test_anything_else_stays_the_bytes_that_it_was(
    daemon: Daemon, topic: str, kind: str, body: bytes
) -> None:
    assert hook(daemon, topic, body, kind).json["count"] == 1
    record = only(daemon, topic)
    assert base64.b64decode(record["data_b64"]) == body
    assert record["meta"] == ({"content-type": kind} if kind else {})


def test_named_headers_are_kept_and_secrets_of_the_sender_never(daemon: Daemon, topic: str) -> None:
    said = {**GITHUB, "X-Shop": "caf\xe9", "X-Other": "not named", "Cookie": "secret"}
    query = "?header=X-Shop&header=x-absent&node=shop-1&key=id"
    assert hook(daemon, topic, b'{"id":7}', query=query, **said).status == 200
    record = only(daemon, topic)
    assert (record["key"], record["tag"], record["node"]) == ("7", "push", "shop-1")
    assert record["meta"] == {
        "content-type": "application/json",
        "x-github-delivery": GITHUB["X-GitHub-Delivery"],
        "x-github-event": "push",
        "x-shop": "caf\xe9",
    }
    for name in ("Authorization", "x-api-key", "COOKIE"):
        answer = hook(daemon, topic, b"{}", query=f"?header={name}", **said)
        assert answer.status == 400 and "is not kept" in answer.json["error"]["message"]


def test_a_delivery_that_comes_again_is_stored_once_and_another_body_is_not_lost(
    daemon: Daemon, topic: str
) -> None:
    first = hook(daemon, topic, b'{"n":1}', **GITHUB)
    again = hook(daemon, topic, b'{"n":1}', **GITHUB)
    other = hook(daemon, topic, b'{"n":2}', **GITHUB)
    without = hook(daemon, topic, b'{"n":1}')
    assert [each.json["deduped"] for each in (first, again, other, without)] == [
        False, True, False, False,
    ]  # fmt: skip
    assert again.json["first_seq"] == first.json["first_seq"] == 1
    assert hook(daemon, topic, b'{"n":1}', query="?dedupe=none", **GITHUB).json["first_seq"] == 4
    assert [each["data"]["n"] for each in daemon.read_all(topic)] == [1, 2, 1, 1]


def test_a_compressed_body_is_stored_as_it_was_before(daemon: Daemon, topic: str) -> None:
    body = gzip.compress(b'{"a":1}')
    assert hook(daemon, topic, body, Content_Encoding="gzip").status == 200
    assert only(daemon, topic)["data"] == {"a": 1}


@pytest.mark.parametrize(
    ("query", "body", "says"),
    [
        ("", b"", "the body is empty"),
        ("?keys=id", b"{}", "no query parameter 'keys'"),
        ("?key=id", b'{"id":[]}', "must be a string or a number"),
        ("?partition=3", b"{}", "partitions 0 to 0"),
        (f"?tag={'x' * 1025}", b"{}", "tag must be"),
    ],
    ids=["empty", "unknown", "key", "partition", "tag"],
)
def test_what_cannot_be_stored_is_refused_with_a_reason(
    daemon: Daemon, topic: str, query: str, body: bytes, says: str
) -> None:
    answer = hook(daemon, topic, body, query=query)
    assert answer.status == 400 and says in answer.json["error"]["message"], answer.body
    assert not daemon.read_all(topic)


def test_a_hook_creates_its_topic_unless_the_url_says_otherwise(daemon: Daemon) -> None:
    assert hook(daemon, "new.by.hook", b"{}", query="?create=false").status == 404
    assert hook(daemon, "new.by.hook", b"{}").status == 200
    assert hook(daemon, "new.by.hook", b"{}", query="?create=false").status == 200
    assert len(daemon.read_all("new.by.hook")) == 2
    assert daemon.get("/v0/hooks/new.by.hook").status == 405


def signed_by(key: str, body: bytes) -> dict[str, str]:
    """The header that GitHub sends."""
    return {"X-Hub-Signature-256": f"sha256={hmac.digest(key.encode(), body, 'sha256').hex()}"}


def test_a_topic_with_a_secret_stores_signed_hooks_only(daemon: Daemon, topic: str) -> None:
    secrets = ["the-first-secret", "the-second-secret"]
    path, body = f"/v0/topics/{topic}", b'{"n":1}'
    unsigned = hook(daemon, topic, body)
    assert unsigned.status == 200
    asked = {"hook": {"scheme": "github", "secrets": secrets}}
    told = daemon.json("PUT", path, asked).body + daemon.get(path).body
    assert b"secrets_id" in told and not any(each.encode() in told for each in secrets)

    assert hook(daemon, topic, body).code == "bad_signature"
    assert hook(daemon, topic, body, **signed_by("another", body)).status == 403
    assert hook(daemon, topic, b'{"n":2}', **signed_by(secrets[0], body)).status == 403
    for secret in secrets:
        assert hook(daemon, topic, body, **signed_by(secret, body)).status == 200
    small = gzip.compress(body)
    compressed = hook(daemon, topic, small, Content_Encoding="gzip", **signed_by(secrets[0], body))
    assert compressed.status == 200
    # It protects the route. Producers have their own rights.
    assert daemon.produce(topic, {"n": 0}).status == 200

    asked = {"hook": {"scheme": "github", "secrets": secrets[1:]}}
    kept_id = daemon.json("PUT", path, asked).json["config"]["hook"]["secrets_id"]
    kept = (daemon.data / FILE_NAME).read_text()
    assert secrets[0] not in kept and secrets[1] in kept and kept_id in kept
    assert hook(daemon, topic, body, **signed_by(secrets[0], body)).status == 403
    assert daemon.json("PUT", path, {"hook": None}).json["config"]["hook"] is None
    assert kept_id not in (daemon.data / FILE_NAME).read_text()
    assert hook(daemon, topic, body).status == 200
    assert [each["data"]["n"] for each in daemon.read_all(topic)] == [1, 1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"scheme": "github"}, "secrets"),
        ({"scheme": "github", "secrets": []}, "hook.secrets"),
        ({"scheme": "github", "secrets": ["secret-text\n"]}, "printable ASCII"),
        ({"scheme": "github", "secrets": [{"secret-text": 1}]}, "secrets"),
        ({"scheme": "standard", "secrets": ["secret-text"]}, "whsec_"),
        ({"scheme": "none", "secrets": ["secret-text"]}, "scheme"),
        ({"scheme": "github", "secrets": ["secret-text"], "secrets_id": "x"}, "secrets_id"),
        ({"scheme": "hmac", "secrets": ["secret-text"], "header": "a b"}, "header"),
    ],
    ids=["none", "empty", "blank", "type", "standard", "scheme", "id", "header"],
)
def test_settings_that_cannot_be_are_refused_without_showing_a_secret(
    daemon: Daemon, topic: str, asked: object, says: str
) -> None:
    answer = daemon.json("PUT", f"/v0/topics/{topic}", {"hook": asked})
    assert answer.status == 400 and says in answer.json["error"]["message"], answer.body
    assert b"secret-text" not in answer.body
    assert daemon.get(f"/v0/topics/{topic}").json["config"]["hook"] is None


def test_without_its_secrets_a_topic_takes_no_hook_until_they_are_back(
    daemon: Daemon, topic: str
) -> None:
    asked = {"hook": {"scheme": "github", "secrets": ["the-secret"]}}
    assert daemon.json("PUT", f"/v0/topics/{topic}", asked).status == 200
    file = daemon.data / FILE_NAME
    aside = file.with_suffix(".aside")
    file.rename(aside)
    try:
        # Topics change, so that each shard looks again.
        daemon.json("PUT", f"/v0/topics/{topic}", {"lossy": True})
        refused = hook(daemon, topic, b"{}", **signed_by("the-secret", b"{}"))
        assert (refused.status, refused.code) == (503, "secrets_unavailable")
        assert refused.headers["retry-after"] == "5"
    finally:
        aside.rename(file)
    assert hook(daemon, topic, b"{}", **signed_by("the-secret", b"{}")).status == 200
    assert len(daemon.read_all(topic)) == 1
