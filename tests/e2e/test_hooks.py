"""Hooks: what others send is stored as it came, once, and read as any record."""

from __future__ import annotations

import base64
import gzip
import hmac
from typing import Any

import pytest

from delivery.push.secrets import FILE_NAME
from shards.clock import wall_ms
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


def test_one_body_under_a_used_key_or_name_is_another_record_if_it_is_stored_otherwise(
    daemon: Daemon, topic: str
) -> None:
    used = "?idempotency_key=k"
    assert hook(daemon, topic, b"a", "text/plain", used).json["deduped"] is False
    assert hook(daemon, topic, b"a", "text/plain", used).json["deduped"] is True
    for kind, more in (("text/html", ""), ("text/plain", "&tag=t"), ("text/plain", "&node=n")):
        assert hook(daemon, topic, b"a", kind, used + more).code == "idempotency_key_reused"
    for query in ("", "", "?tag=t"):
        hook(daemon, topic, b"{}", query=query, **GITHUB)
    assert [each.get("tag") for each in daemon.read_all(topic)] == [None, "push", "t"]


def test_equal_bodies_are_two_if_one_is_read_and_the_other_kept_as_it_came(
    daemon: Daemon, topic: str
) -> None:
    path = f"/v0/topics/{topic}?dedupe=body"
    answers = [
        daemon.ask("POST", each, b'{"n":1}', content_type="application/x-ndjson").json
        for each in (path, f"{path}&raw", f"/v0/hooks/{topic}?dedupe=body")
    ]
    assert [each["deduped"] for each in answers] == [False, False, True]
    assert len(daemon.read_all(topic)) == 2


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
        *(
            ({"scheme": "hmac", "secrets": ["secret-text"], "header": name}, f"got {name}")
            for name in ("Authorization", "X-Api-Key", "Host", "Transfer-Encoding")
        ),
    ],
    ids=range(12),
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


def test_raw_on_produce_stores_what_comes_as_a_hook_does(daemon: Daemon, topic: str) -> None:
    path = f"/v0/topics/{topic}"

    def post(query: str, body: bytes, kind: str = "application/json") -> Answer:
        return daemon.ask("POST", path + query, body, content_type=kind, **{"X-Shop": "1"})

    plain = b'{"id":7, "status":"placed"}'
    latin = "application/json; charset=iso-8859-1"
    assert [post("", plain).status, post("?raw=false", plain).status] == [400, 400]
    assert (post("", b'["\xe9"]', latin).status, post("?raw", b"").code) == (415, "invalid")
    assert post("?raw=maybe", plain).json["error"]["detail"] == {"parameter": "raw"}
    assert post("?raw&ts=1", plain).json["error"]["detail"] == {"field": "ts"}
    for query in ("?raw&header=X-Shop&key=id&tag=t&idempotency_key=k", "?key=id&raw=true"):
        assert post(query, plain).json["count"] == 1
    assert post("?raw&key=id&tag=t&idempotency_key=k", plain).json["deduped"]
    assert post("?raw&idempotency_key=k", b"other").code == "idempotency_key_reused"
    assert post("?raw", b'["\xe9"]', latin).json["count"] == 1
    assert post("?raw", b"<a/>", "application/xml").json["count"] == 1
    first, second, *rest = daemon.read_all(topic)
    assert (first["data"], first["key"], first["tag"]) == ({"id": 7, "status": "placed"}, "7", "t")
    assert first["meta"] == {"content-type": "application/json", "x-shop": "1"}
    assert (second["data"], second["meta"]) == (first["data"], {"content-type": "application/json"})
    assert [base64.b64decode(each["data_b64"]) for each in rest] == [b'["\xe9"]', b"<a/>"]


STANDARD_SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def signed_now(scheme: str, body: bytes, off_s: int = 0) -> dict[str, str]:
    """The headers of a signature that is made now."""
    time = str(wall_ms() // 1_000 + off_s)
    if scheme == "stripe":
        made = hmac.digest(b"whsec_text", f"{time}.".encode() + body, "sha256").hex()
        return {"Stripe-Signature": f"t={time},v1={made}"}
    digest = hmac.digest(b"k" * 32, f"msg_1.{time}.".encode() + body, "sha256")
    return {
        "webhook-id": "msg_1", "webhook-timestamp": time,
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }  # fmt: skip


EVENT = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}'
CE = {"ce-specversion": "1.0", "ce-id": "2", "ce-source": "evil", "ce-type": "t"}


@pytest.mark.parametrize("scheme", ["standard", "stripe"])
def test_a_signed_hook_that_was_overheard_is_not_stored_again_under_another_url_or_header(
    daemon: Daemon, topic: str, scheme: str
) -> None:
    secret = STANDARD_SECRET if scheme == "standard" else "whsec_text"
    asked = {"hook": {"scheme": scheme, "secrets": [secret]}}
    assert daemon.json("PUT", f"/v0/topics/{topic}", asked).status == 200
    structured = "application/cloudevents+json"
    headers = signed_now(scheme, EVENT)
    assert hook(daemon, topic, EVENT, structured, **headers).status == 200
    for kind, query, more in (
        (structured, "", {}),
        (structured, "?dedupe=none", {}),
        (structured, "?dedupe=none&tag=refund", {}),
        (structured, "?idempotency_key=another", {}),
        ("text/plain", "", {}),
        ("application/json", "?header=x&node=n", {"x": "y"}),
        ("application/json", "", CE),
    ):
        answer = hook(daemon, topic, EVENT, kind, query, **headers, **more)
        if answer.status == 200:
            assert answer.json["deduped"], (kind, query)
        else:
            assert answer.code == "idempotency_key_reused", answer.body
    assert len(daemon.read_all(topic)) == 1


def test_a_signed_id_with_another_body_is_refused_and_a_new_time_of_stripe_is_another_hook(
    daemon: Daemon, topic: str
) -> None:
    path = f"/v0/topics/{topic}"
    for scheme, secret in (("standard", STANDARD_SECRET), ("stripe", "whsec_text")):
        asked = {"hook": {"scheme": scheme, "secrets": [secret]}}
        assert daemon.json("PUT", path, asked).status == 200
        assert hook(daemon, topic, b"1", **signed_now(scheme, b"1")).status == 200
        again = hook(daemon, topic, b"1", **signed_now(scheme, b"1", -100))
        assert again.json["deduped"] is (scheme == "standard")
        other = hook(daemon, topic, b"2", **signed_now(scheme, b"2"))
        if scheme == "standard":
            assert other.code == "idempotency_key_reused"
        else:
            assert not other.json["deduped"]
    query = "?dedupe=body"  # attempts of stripe
    stored = [
        hook(daemon, topic, b"3", query=query, **signed_now("stripe", b"3", off_s))
        for off_s in (-9, -5)
    ]
    assert [each.json["deduped"] for each in stored] == [False, True]
