"""What is secret of a push subscription is kept in its file, changed over HTTP, and never shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from delivery.push.secrets import PushSecrets, SecretsFileError
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from tests.daemon.api.handlers.subscribing import SubscribingNode, subscribing
from tests.signing import secret_of

URL = "https://example.com/hook"
OLD, NEW = secret_of(b"o" * 24), secret_of(b"n" * 32)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubscribingNode]:
    with subscribing(tmp_path_factory.mktemp("ledger")) as node:
        yield node


@pytest.fixture
def node(shared: SubscribingNode) -> Iterator[SubscribingNode]:
    """A node without subscriptions, and without secrets."""
    yield shared
    for each in shared.ask("GET", "").json["subscriptions"]:
        assert shared.ask("DELETE", f"/{each['subscription']}").status == 200
    assert entries(shared) == {}, "nothing is left that no subscription needs"


def entries(node: SubscribingNode) -> dict[str, Any]:
    """The entries of the file by their ids."""
    path = node.secrets.path
    return dict(msgspec.json.decode(path.read_bytes())["entries"]) if path.exists() else {}


def put(node: SubscribingNode, **push: Any) -> dict[str, Any]:
    """The push settings that are shown after a change."""
    answer = node.ask("PUT", "/s", {"push": push})
    assert answer.status in (200, 201), answer.body
    assert_hidden(node, answer.body)
    shown: dict[str, Any] = answer.json["config"]["push"]
    return shown


def settings(node: SubscribingNode) -> PushSettings:
    """The push settings in the ledger."""
    found = node.ledger.read(subscriptions.find, 1, "s")
    assert found is not None and found.config.push is not None
    return found.config.push


def kept(node: SubscribingNode) -> PushSecrets:
    """What the subscription's sender finds; there is nothing else in the file."""
    secrets_id = settings(node).secrets_id
    assert list(entries(node)) == ([] if secrets_id is None else [secrets_id])
    if secrets_id is None:
        return PushSecrets()
    found = node.secrets.load(secrets_id)
    assert found is not None
    return found


def assert_hidden(node: SubscribingNode, text: bytes) -> None:
    """No id, secret or value is in a text."""
    secret = [OLD, NEW, "Bearer", "secrets_id", *entries(node)]
    assert not [each for each in secret if each.encode() in text]


def test_secrets_and_values_are_kept_in_their_file_and_shown_by_number_and_name(
    node: SubscribingNode,
) -> None:
    shown = put(
        node, endpoint=URL, secrets=[OLD], headers={"X-Team": "a b", "Authorization": "Bearer 1"}
    )
    assert (shown["headers"], shown["signed"], shown["secrets_count"]) == (
        ["authorization", "x-team"], True, 1,
    )  # fmt: skip
    assert kept(node) == PushSecrets((OLD,), {"authorization": "Bearer 1", "x-team": "a b"})
    assert_hidden(node, node.ask("GET", "").body)
    assert_hidden(node, node.ask("GET", "/v0/subscriptions").body)
    assert "secrets_id" not in node.ask("GET", "/v0/subscriptions").body.decode()
    ledger = node.secrets.path.parent
    for file in ledger.glob("ledger.db*"):
        assert not [each for each in (OLD, "Bearer") if each.encode() in file.read_bytes()]


def test_headers_change_one_by_one_and_null_removes_one(node: SubscribingNode) -> None:
    put(node, endpoint=URL, headers={"a": "1", "b": "2"}, secrets=[OLD])
    shown = put(node, headers={"B": "3", "c": "4"})
    assert (shown["headers"], shown["secrets_count"]) == (["a", "b", "c"], 1)
    assert kept(node) == PushSecrets((OLD,), {"a": "1", "b": "3", "c": "4"})
    assert put(node, headers={"A": None, "never": None})["headers"] == ["b", "c"]
    assert kept(node) == PushSecrets((OLD,), {"b": "3", "c": "4"})
    shown = put(node, headers={"b": None, "c": None}, secrets=[])
    assert (shown["headers"], shown["signed"]) == ([], False)
    assert kept(node) == PushSecrets()


def test_a_rotation_has_two_secrets_for_a_while(node: SubscribingNode) -> None:
    put(node, endpoint=URL, secrets=[OLD], headers={"a": "1"})
    assert put(node, secrets=[NEW, OLD])["secrets_count"] == 2
    assert kept(node) == PushSecrets((NEW, OLD), {"a": "1"})
    assert put(node, secrets=[NEW])["secrets_count"] == 1
    assert kept(node).signing == (NEW,)
    ended = put(node, secrets=[])
    assert (ended["signed"], ended["secrets_count"], ended["headers"]) == (False, 0, ["a"])


def test_other_settings_leave_secrets_as_they_are(node: SubscribingNode) -> None:
    put(node, endpoint=URL, secrets=[OLD], headers={"a": "1"})
    before = settings(node).secrets_id
    put(node, rate_max=5, endpoint=URL + "/other")
    assert settings(node).secrets_id == before
    assert kept(node) == PushSecrets((OLD,), {"a": "1"})


@pytest.mark.parametrize(
    "elsewhere",
    ["https://example.com:8443/hook", "https://example.org/hook", "http://example.com/hook"],
)
def test_a_header_goes_to_another_server_only_if_its_value_is_given_again(
    node: SubscribingNode, elsewhere: str
) -> None:
    headers = {"authorization": "Bearer 1", "x-team": "a"}
    put(node, endpoint=URL, secrets=[OLD], headers=headers)
    changes: list[dict[str, Any]] = [
        {}, {"secrets": [NEW]}, {"headers": {"x-other": "b", "x-team": None}},
    ]  # fmt: skip
    for change in changes:
        answer = node.ask("PUT", "/s", {"push": {"endpoint": elsewhere, **change}})
        assert (answer.status, answer.code) == (400, "invalid")
        assert "authorization" in answer.json["error"]["message"]
        assert_hidden(node, answer.body)
    assert settings(node).endpoint == URL and kept(node) == PushSecrets((OLD,), headers)
    put(node, endpoint="https://EXAMPLE.com:443/another")
    put(node, endpoint=elsewhere, headers={"Authorization": "Bearer 2", "x-team": None})
    assert settings(node).endpoint == elsewhere
    assert kept(node) == PushSecrets((OLD,), {"authorization": "Bearer 2"})


def test_secrets_end_with_the_push_and_with_the_subscription(node: SubscribingNode) -> None:
    put(node, endpoint=URL, secrets=[OLD])
    assert node.ask("PUT", "/s", {"push": None}).status == 200
    assert entries(node) == {}
    assert put(node, endpoint=URL)["signed"] is False
    put(node, secrets=[OLD])
    assert len(entries(node)) == 1
    node.ask("DELETE", "/s")
    assert entries(node) == {}


@pytest.mark.parametrize(
    ("push", "field", "says"),
    [
        ({"secrets": ["hunter2hunter2"]}, "push.secrets", "must be whsec_"),
        ({"secrets": ["whsec_hunter2hunter2"]}, "push.secrets", "is not base64"),
        ({"secrets": "whsec_hunter2hunter2"}, "push", "push.secrets must be an array"),
        ({"secrets": [77_777]}, "push", "push.secrets[0] must be a string"),
        ({"secrets": [OLD] * 5}, "push", "at most 4 elements"),
        ({"headers": {"a": 77_777}}, "push", "push.headers[...] must be a string or null"),
        ({"headers": "hunter2"}, "push", "push.headers must be an object"),
        ({"headers": {"a": "hunter2\r\nb: c"}}, "push", "value of the header a must be printable"),
        ({"headers": {"a": "hunter2" * 10_000}}, "push", "own headers have 70001 characters"),
        ({"headers": {"a b": "hunter2"}}, "push.headers", "must be a token"),
        ({"headers": {"x" * 800_000: "hunter2"}}, "push.headers", "must be a token"),
        ({"headers": {"Host": "hunter2"}}, "push.headers", "host is the daemon's own"),
        ({"headers": {"ce-id": "hunter2"}}, "push.headers", "ce-id is the daemon's own"),
        ({"headers": {"a": "hunter2", "A": "hunter2"}}, "push.headers", "a is given twice"),
        ({"headers": {f"h{n}": "v" for n in range(17)}}, "push", "the limit is 16"),
        ({"headers": {f"h{n}": "v" for n in range(33)}}, "push", "at most 32 fields"),
        ({"secrets": [OLD], "endpoint": "nonsense"}, "push.endpoint", "must be a URL"),
    ],
)
def test_secrets_that_cannot_be_are_refused_and_not_repeated(
    node: SubscribingNode, push: dict[str, Any], field: str, says: str
) -> None:
    answer = node.ask("PUT", "/s", {"push": {"endpoint": URL, **push}})
    assert (answer.status, answer.code) == (400, "invalid"), answer.body
    error = answer.json["error"]
    assert says in error["message"]
    assert error["detail"]["field"] == field
    assert len(answer.body) < 500
    assert b"hunter2" not in answer.body and b"77777" not in answer.body
    assert_hidden(node, answer.body)
    assert entries(node) == {}, "nothing stays of a change that was refused"


def test_secrets_without_a_receiver_are_refused(node: SubscribingNode) -> None:
    answer = node.ask("PUT", "/s", {"push": {"secrets": [OLD]}})
    assert answer.json["error"]["detail"]["field"] == "push.endpoint"


def test_values_that_were_lost_must_all_be_given_again(node: SubscribingNode) -> None:
    put(node, endpoint=URL, secrets=[OLD], headers={"a": "1", "b": "2"})
    node.secrets.path.unlink()
    refused = node.ask("PUT", "/s", {"push": {"headers": {"a": "3"}}})
    assert (refused.status, refused.code) == (409, "secret_missing")
    assert "signing secret and the values of b are not in" in refused.json["error"]["message"]
    put(node, headers={"a": "3", "b": None}, secrets=[NEW])
    assert kept(node) == PushSecrets((NEW,), {"a": "3"})


def test_a_file_that_cannot_be_written_changes_nothing(
    node: SubscribingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, endpoint=URL, secrets=[OLD])
    before = settings(node)

    def fails(_: PushSecrets) -> str:
        raise SecretsFileError("cannot write push-secrets.json: disk full")

    with monkeypatch.context() as patch:
        patch.setattr(node.secrets, "save", fails)
        answer = node.ask("PUT", "/s", {"push": {"secrets": [NEW]}})
    assert (answer.status, answer.code) == (503, "secrets_unavailable")
    assert settings(node) == before
    assert kept(node).signing == (OLD,)


def test_a_change_of_secrets_sees_what_another_one_has_made_meanwhile(
    node: SubscribingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, endpoint=URL, headers={"a": "1"})
    save = node.secrets.save
    others = iter(["2"])

    def meanwhile(secrets: PushSecrets) -> str:
        """Another shard commits between this one's file and its ledger."""
        for value in others:
            there = settings(node)
            other_id = save(PushSecrets((), {"a": "1", "b": value}))
            wanted = msgspec.structs.replace(there, headers=["a", "b"], secrets_id=other_id)
            node.ledger.write(subscriptions.alter, "t", "s", {"push": wanted})
            node.secrets.remove([there.secrets_id or ""])
        return save(secrets)

    monkeypatch.setattr(node.secrets, "save", meanwhile)
    assert put(node, headers={"c": "3"})["headers"] == ["a", "b", "c"]
    assert kept(node) == PushSecrets((), {"a": "1", "b": "2", "c": "3"})
