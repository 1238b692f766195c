"""What a token set up waits when the token goes, and nothing but a live token lets it go on."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import kill_shards
from tests.e2e.test_recovery import recovered
from tools.receiver.process import ReceiverProcess

pytestmark = pytest.mark.slow

PUSHED = "/v0/topics/t/subscriptions/pushed"


class World:
    """A topic whose records are copied by a router and pushed to a receiver."""

    def __init__(self, folder: Path, receiver: ReceiverProcess) -> None:
        self.receiver = receiver
        self.data = folder / "data"
        self.store = {"store": f"file://{folder}/store"}
        self.file = TokenFile(folder / "tokens.json")
        self.keeper = self.issue("keeper")
        self.options: dict[str, Any] = {
            "shards": 2, "token": self.keeper, **self.store,
            "settings": {
                "auth_file": self.file.path, "push_allow": "127.0.0.1", "standstill_after_ms": 1000,
            },
        }  # fmt: skip

    def issue(self, name: str, *scopes: Scope) -> str:
        return self.file.issue(name, scopes or list(Scope))[1]

    def set_up(self, daemon: Daemon, token: str) -> None:
        authorization = f"Bearer {token}"
        for path, body in (
            ("/v0/routers/r", b'{"source":"t","dest":"copies"}'),
            (PUSHED, b'{"push":{"endpoint":"%b"}}' % self.receiver.url("t").encode()),
        ):
            made = wait_until(
                partial(self.made, daemon, path, body, authorization),
                "each shard to know the token",
            )
            assert made in (200, 201)

    def made(self, daemon: Daemon, path: str, body: bytes, authorization: str) -> int:
        answer = daemon.ask(
            "PUT", path, body, content_type="application/json", Authorization=authorization
        )
        return answer.status if answer.status != 401 else 0

    def states(self, daemon: Daemon) -> list[tuple[str, str]]:
        one = daemon.get("/v0/routers/r").json
        (other,) = daemon.get("/v0/subscriptions").json["subscriptions"]
        return [(each["state"], each["reason"]) for each in (one, other)]

    def wait_held(self, daemon: Daemon, why: str) -> None:
        wait_until(
            lambda: all(
                state == "held" and reason.startswith(why) for state, reason in self.states(daemon)
            ),
            "both to wait",
        )
        # A shard that was killed may not have begun again yet; its rows still say what they said.
        wait_until(
            lambda: daemon.get(PUSHED).json["held"].startswith(why), "the sender to say it waits"
        )

    def stands(self, daemon: Daemon) -> set[str]:
        """What stands still because of a token."""
        return {
            each["kind"]
            for each in daemon.status()["standing"]
            if "token revoked: 'leaving'" in each["message"]
        }

    def delivered(self, daemon: Daemon) -> tuple[int, int]:
        return len(daemon.read_all("copies")), self.receiver.counts("t").events

    def wait_delivered(self, daemon: Daemon, count: int) -> None:
        wait_until(lambda: self.delivered(daemon) == (count, count), f"{count} of both")
        wait_until(
            lambda: {state for state, _ in self.states(daemon)} == {"running"}, "both to run"
        )


def test_it_waits_through_kills_and_recovery_until_a_live_token_sets_it_up_again(
    tmp_path: Path,
) -> None:
    with ReceiverProcess() as receiver:
        world = World(tmp_path, receiver)
        leaving = world.issue("leaving")
        with running(world.data, **world.options) as daemon:
            daemon.json("PUT", "/v0/topics/t")
            daemon.json("PUT", "/v0/topics/copies")
            world.set_up(daemon, leaving)
            daemon.produce("t", 1, 2)
            world.wait_delivered(daemon, 2)
            world.file.revoke("leaving")
            world.wait_held(daemon, "token revoked: 'leaving'")
            daemon.produce("t", 3)
            kill_shards(daemon, 0, 1)
            world.wait_held(daemon, "token revoked: 'leaving'")
            daemon.kill_everything()
        with running(world.data, **world.options) as daemon:
            changes = f"Bearer {world.issue('changes', Scope.MANAGE)}"
            world.wait_held(daemon, "token revoked")
            wait_until(
                lambda: world.made(daemon, PUSHED, b'{"redeliveries_max":6}', changes) == 200,
                "a token that may not push to change another setting",
            )
            world.wait_held(daemon, "token revoked")
            assert world.delivered(daemon) == (2, 2)
            daemon.kill_everything()
        shutil.rmtree(world.data)
        assert recovered(world.data, world.store, take_over=True).sound
        with running(world.data, **world.options) as daemon:
            world.wait_held(daemon, "token revoked: 'leaving'")
            daemon.produce("t", 4)
            assert world.delivered(daemon) == (2, 2)
            world.set_up(daemon, world.keeper)
            world.wait_delivered(daemon, 4)


def test_a_daemon_without_tokens_lets_it_go_on(tmp_path: Path) -> None:
    with ReceiverProcess() as receiver:
        world = World(tmp_path, receiver)
        with running(world.data, **world.options) as daemon:
            daemon.json("PUT", "/v0/topics/t")
            daemon.json("PUT", "/v0/topics/copies")
            world.set_up(daemon, world.issue("leaving"))
            world.file.revoke("leaving")
            world.wait_held(daemon, "token revoked")
            daemon.produce("t", 1)
            wait_until(lambda: world.stands(daemon) == {"router", "push"}, "an alarm for both")
            assert "token revoked: 'leaving'" in daemon.alarm("stands_still")["message"]
            assert world.delivered(daemon) == (0, 0)
        options = {**world.options, "token": "", "settings": {"push_allow": "127.0.0.1"}}
        with running(world.data, **options) as daemon:
            world.wait_delivered(daemon, 1)
