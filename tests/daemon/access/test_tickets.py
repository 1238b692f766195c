"""Tickets: for one target, one token, and a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.access.access import Access
from daemon.access.rights import EVERYTHING
from daemon.access.tickets import LIFETIME_MS
from daemon.access.token_file import Scope, TokenFile
from daemon.schemas.errors import ApiError

TARGET = ("v0", "topics", "orders", "watch")
QUERY = {"key": "a", "from_seq": "1"}
KEY = bytes(32)


class World:
    """A file with a token, the tokens of two shards, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_800_000_000_000
        self.file = TokenFile(folder / "tokens.json", lambda: self.now_ms)
        _, token = self.file.issue("page", [Scope.READ])
        self.shards = [Access(self.file.path, lambda: self.now_ms, KEY) for _ in range(2)]
        self.rights = self.shards[0].of({"x-api-key": token})
        self.ticket, self.expires_ms = self.shards[0].ticket(self.rights, TARGET, QUERY)

    def open(
        self, ticket: str | None = None, target: tuple[str, ...] = TARGET, **query: str
    ) -> str:
        """Whose rights the other shard finds."""
        asked = QUERY | query | {"ticket": self.ticket if ticket is None else ticket}
        return self.shards[1].of_ticket({}, target, asked).who


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_another_shard_finds_the_token_that_asked(world: World) -> None:
    assert world.open() == "token 'page'" == world.rights.who
    assert world.expires_ms == world.now_ms + LIFETIME_MS
    world.now_ms += LIFETIME_MS - 1
    assert world.open() == "token 'page'"


def test_a_ticket_is_over_after_its_time_and_with_its_token(world: World) -> None:
    world.now_ms += LIFETIME_MS
    with pytest.raises(ApiError, match="ask for another one") as caught:
        world.open()
    assert caught.value.status == 401
    world.now_ms -= 1
    rights = world.shards[1].of_ticket({}, TARGET, QUERY | {"ticket": world.ticket})
    world.file.revoke("page")
    for shard in world.shards:
        shard.look()
    assert not rights.live, "a stream that it opened ends"
    with pytest.raises(ApiError, match="revoked"):
        world.open()
    with pytest.raises(ApiError, match="was revoked"):
        world.shards[0].ticket(world.rights, TARGET, QUERY)


OTHER = ("v0", "topics", "secrets", "watch")


@pytest.mark.parametrize(
    ("target", "query"), [(OTHER, {}), (TARGET, {"key": "b"}), (TARGET, {"partition": "1"})]
)
def test_a_ticket_opens_nothing_else(
    world: World, target: tuple[str, ...], query: dict[str, str]
) -> None:
    with pytest.raises(ApiError) as caught:
        world.open(target=target, **query)
    assert (caught.value.status, caught.value.code) == (401, "unauthenticated")


def test_a_changed_ticket_opens_nothing(world: World) -> None:
    made = world.ticket
    flipped = [made[:at] + ("A" if made[at] != "A" else "B") + made[at + 1 :] for at in range(64)]
    for wrong in (made[:-4], "A" * 64, "", "a ticket, \xfc", *flipped):
        with pytest.raises(ApiError, match="the ticket is not for this"):
            world.open(wrong)


def test_the_key_of_another_daemon_signs_nothing_here(world: World) -> None:
    for other in (Access(world.file.path), Access(world.file.path, ticket_key=b"\x01" * 32)):
        with pytest.raises(ApiError, match="the ticket is not for this"):
            other.of_ticket({}, TARGET, QUERY | {"ticket": world.ticket})


def test_a_ticket_comes_alone(world: World) -> None:
    for name in ("authorization", "x-api-key"):
        with pytest.raises(ApiError, match="a ticket instead of it") as caught:
            world.shards[0].of_ticket({name: "x"}, TARGET, QUERY | {"ticket": world.ticket})
        assert caught.value.status == 400


def test_without_tokens_a_page_asks_in_the_same_way_and_the_socket_gets_none(
    world: World,
) -> None:
    free = Access(None)
    ticket, _ = free.ticket(EVERYTHING, TARGET, QUERY)
    assert free.of_ticket({}, TARGET, {"ticket": ticket}) is EVERYTHING
    with pytest.raises(ApiError, match="a ticket stands for a token"):
        world.shards[0].ticket(EVERYTHING, TARGET, QUERY)
