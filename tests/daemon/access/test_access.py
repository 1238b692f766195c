"""Rights of requests: found by their token, and over with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.access import access as module
from daemon.access.access import Access
from daemon.access.audit import AuditLog
from daemon.access.rights import EVERYTHING, Rights
from daemon.access.token_file import Scope, TokenFile, TokenFileError
from daemon.schemas.errors import ApiError
from delivery.filters import compiled
from ledger.types import TokenName

NOW_MS = 1_790_000_000_000


class World:
    """A file of tokens with those who use it, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS
        self.path = folder / "tokens.json"
        self.file = TokenFile(self.path, lambda: self.now_ms)
        _, self.token = self.file.issue("shop", [Scope.PRODUCE], ["orders*", "stock"])
        monkeypatch.setattr(module, "LOOK_NS", 0)
        self.audit_path = folder / "audit.log"
        self.audit = AuditLog(str(self.audit_path), "shard 0", 1, [0], 0)
        self.access = Access(self.path, lambda: self.now_ms, audit=self.audit)

    def noted(self, event: str) -> list[Any]:
        """The lines of the audit log of an event."""
        lines = [json.loads(line) for line in self.audit_path.read_bytes().splitlines()]
        return [line for line in lines if line["event"] == event]

    def refused(self, headers: dict[str, str]) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.access.of(headers)
        return caught.value


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.audit.close()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_token_gives_its_rights_in_either_header(world: World) -> None:
    for headers in (
        bearer(world.token),
        {"authorization": f"bearer  {world.token} "},
        {"x-api-key": world.token},
    ):
        rights = world.access.of(headers)
        assert rights.scopes == {Scope.PRODUCE}
        assert rights.covers("orders-eu") and rights.covers("stock")
        assert not rights.covers("stocks") and not rights.covers("xorders")
        rights.check_scope(Scope.READ, Scope.PRODUCE)
        with pytest.raises(ApiError, match=r"scope read or admin, and token 'shop' has produce"):
            rights.check_scope(Scope.READ, Scope.ADMIN)
        with pytest.raises(ApiError, match="do not include 'invoices'") as caught:
            rights.check_topics("stock", "invoices")
        assert caught.value.status == 403
        with pytest.raises(ApiError, match=r"this concerns all topics, and token .* for all"):
            rights.check_all_topics()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Basic aGc6eA=="},
        {"authorization": "Bearer hg_0000000000000000_" + "0" * 64},
        {"x-api-key": "secret"},
    ],
)
def test_nobody_else_is_let_in(world: World, headers: dict[str, str]) -> None:
    error = world.refused(headers)
    assert (error.status, error.code) == (401, "unauthenticated")
    assert "headgate tokens create" in error.message


def test_a_wrong_secret_of_a_known_token_is_refused(world: World) -> None:
    wrong = world.token[:-1] + ("0" if world.token[-1] != "0" else "1")
    assert world.refused(bearer(wrong)).status == 401


def test_two_tokens_in_one_request_are_refused(world: World) -> None:
    error = world.refused({**bearer(world.token), "x-api-key": world.token})
    assert (error.status, error.code) == (400, "two_tokens")


def test_without_a_file_everybody_may_do_everything() -> None:
    access = Access(None)
    assert access.of({}) is access.of(bearer("x")) is EVERYTHING
    assert not access.look()
    EVERYTHING.check_all_topics()
    EVERYTHING.check_scope(Scope.ADMIN)


def test_a_revocation_ends_rights_that_are_in_use_and_no_others(world: World) -> None:
    _, other = world.file.issue("other", [Scope.READ])
    assert not world.access.look(), "a new token ends nothing"
    ended, kept = world.access.of(bearer(world.token)), world.access.of(bearer(other))
    world.file.revoke("shop")
    assert world.access.look()
    assert (ended.live, kept.live) == (False, True)
    assert world.access.of(bearer(other)) is kept
    assert world.refused(bearer(world.token)).status == 401
    with pytest.raises(ApiError, match="was revoked, or it has expired") as caught:
        ended.check_live()
    assert caught.value.status == 401
    assert not world.access.look()


def test_an_expired_token_ends_by_itself(world: World) -> None:
    _, text = world.file.issue("brief", [Scope.READ], expires_in=timedelta(seconds=60))
    world.access.look()
    rights = world.access.of(bearer(text))
    world.now_ms += 59_999
    assert not world.access.look()
    rights.check_live()
    world.now_ms += 1
    assert "has expired" in world.refused(bearer(text)).message
    assert world.access.look()
    with pytest.raises(ApiError, match="it has expired"):
        rights.check_live()
    assert not world.access.look(), "told once"
    assert [line["who"] for line in world.noted("token_expired")] == ["brief"]


def test_a_token_that_expired_by_a_wrong_clock_is_in_force_again_when_the_clock_is_right(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    token, text = world.file.issue("brief", [Scope.READ], expires_in=timedelta(days=30))
    world.access.look()
    before = world.access.of(bearer(text))
    world.now_ms += 365 * 86_400_000
    assert world.access.look() and world.access.why_gone(TokenName(token.id, "brief"))
    world.now_ms = NOW_MS
    assert "has expired" in world.refused(bearer(text)).message, "until it is looked at again"
    assert not world.access.look()
    after = world.access.of(bearer(text))
    after.check_live()
    assert not (before.live or world.access.why_gone(TokenName(token.id, "brief")))
    assert "the clock was set back: 'brief' has not expired yet" in caplog.text
    assert [line["who"] for line in world.noted("token_in_force")] == ["brief"]
    assert not world.access.look(), "told once"


@pytest.mark.parametrize("spoil", ["torn", "gone", "others", "older"])
def test_a_file_that_cannot_be_used_leaves_the_tokens_in_force_and_is_logged_once(
    world: World, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.path.read_bytes()
    _, second = world.file.issue("second", [Scope.READ])
    world.access.look()
    rights = world.access.of(bearer(second))
    if spoil == "torn":
        world.path.write_bytes(before[:-9])
    elif spoil == "gone":
        world.path.unlink()
    elif spoil == "others":
        world.path.chmod(0o644)
    else:
        world.path.write_bytes(before)
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        assert not world.access.look() and not world.access.look()
    assert len(caplog.records) == 1
    assert "the tokens that were read before stay in force" in caplog.text
    remedy = {"gone": "is gone; put it back", "older": "revoked; put the newest one back"}
    assert remedy.get(spoil, "") in caplog.text
    (line,) = world.noted("tokens_unusable")
    assert line["problem"] and line["problem"] in caplog.text
    assert rights.live and world.access.of(bearer(second)) is rights


def test_a_file_that_cannot_be_used_at_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="there is no"):
        Access(tmp_path / "tokens.json")


def test_what_a_token_set_up_waits_while_it_is_not_in_force(world: World) -> None:
    _, text = world.file.issue("brief", [Scope.READ], expires_in=timedelta(seconds=60))
    world.access.look()
    shop = world.access.of(bearer(world.token)).token
    brief = world.access.of(bearer(text)).token
    assert shop is not None and brief is not None
    assert world.access.why_gone(shop) == world.access.why_gone(brief) == ""
    assert world.access.why_gone(None) == "", "what was set up without a token waits for none"
    version = world.access.version
    world.access.look()
    assert world.access.version == version
    world.now_ms += 60_000
    world.access.look()
    assert world.access.version > version
    assert world.access.why_gone(brief).startswith("token expired: 'brief'")
    version = world.access.version
    world.file.revoke("shop")
    world.access.look()
    assert world.access.version > version
    assert world.access.why_gone(shop).startswith("token revoked: 'shop'")
    assert Access(None).why_gone(shop) == ""


names = st.text("ab.-", min_size=1, max_size=6)
patterns = st.lists(st.text("ab.*?", min_size=1, max_size=6), min_size=1, max_size=5)


@given(patterns, names)
def test_patterns_cover_what_each_of_them_matches(topics: list[str], name: str) -> None:
    rights = Rights(None, [Scope.READ], topics)
    assert rights.covers(name) == any(compiled(pattern)(name) for pattern in topics)
