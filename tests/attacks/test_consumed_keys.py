"""Keys that were chosen to hurt who consumes them."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

import cli
from daemon.access.token_file import Scope
from tests.attacks.conftest import BOTH_FORMS, Guard
from tests.e2e.daemon import running, wait_until
from tests.e2e.subscribing import Subscription

pytestmark = BOTH_FORMS


def test_a_message_whose_key_no_command_can_be_told_is_poison_and_others_go_on(
    tmp_path: Path, guard: Guard
) -> None:
    key = "a\0b"
    seen = tmp_path / "seen"
    with running(tmp_path / "data", **guard.options()) as daemon:
        assert daemon.json("PUT", "/v0/topics/orders", {}).status == 201
        made = Subscription(daemon, "orders", poison="drop", redeliveries_max=1, backoff_ms=[1, 1])
        owned, daemon.token = daemon.token, guard.stolen(Scope.PRODUCE)
        made.produce(key, "good")
        daemon.token = owned
        for _ in range(2):  # a worker and its successor
            result = CliRunner().invoke(cli.headgate, [
                "consume", "orders", "s", "--exec", f"echo $HEADGATE_KEY >> {seen}", "-n", "2",
                "--url", daemon.url,
            ], env={"HEADGATE_TOKEN": guard.stolen(Scope.CONSUME) or None})  # fmt: skip
            assert result.exit_code == 0, result.output
            made.produce("good")
        wait_until(lambda: made.state["dropped"] == 1, "the policy to drop it")
        assert made.state["lag"] == 1
    assert seen.read_text() == "good\ngood\n"
