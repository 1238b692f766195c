"""Topics that are made by the thousand, each with a thousand partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daemon.access.token_file import Scope
from tests.attacks.conftest import BOTH_FORMS, Guard
from tests.e2e.daemon import Daemon, running

LIMIT = 2_500
pytestmark = BOTH_FORMS


@pytest.fixture(scope="module")
def daemon(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    options = guard.options(partitions_max=LIMIT, auto_create_topics="true")
    with running(tmp_path_factory.mktemp("data"), **options) as daemon:
        yield daemon


def test_all_topics_together_have_a_limit_of_partitions(daemon: Daemon, guard: Guard) -> None:
    owned, daemon.token = daemon.token, guard.stolen(Scope.MANAGE)
    answers = [
        daemon.json("PUT", f"/v0/topics/t{n}", {"partitions": 1_000}).status for n in range(4)
    ]
    assert answers == [201, 201, 422, 422]
    refused = daemon.json("PUT", "/v0/topics/t2", {"partitions": 501})
    assert (refused.status, refused.code) == (422, "partitions_full")
    assert refused.json["error"]["detail"] == {
        "limit": "partitions_max", "max": LIMIT, "held": 2_000, "asked": 501,
    }  # fmt: skip
    assert daemon.json("PUT", "/v0/topics/t2", {"partitions": 499}).status == 201
    daemon.token = owned
    assert daemon.produce("last", 1).status == 200
    full = daemon.produce("one-more", 1)
    assert (full.status, full.code) == (422, "partitions_full"), "also by a request to produce"
    daemon.token = guard.stolen(Scope.MANAGE)
    grown = daemon.json("PUT", "/v0/topics/t2", {"partitions": 500})
    assert (grown.status, grown.code) == (422, "partitions_full"), "also by an existing topic"
    assert daemon.json("PUT", "/v0/topics/t2", {"ttl_ms": 1_000_000}).status == 200
    assert daemon.get("/v0/topics/one-more").status == 404
    assert daemon.ask("DELETE", "/v0/topics/t0").status == 200
    assert daemon.json("PUT", "/v0/topics/t0", {"partitions": 1_000}).status == 201, "made again"
    assert daemon.json("PUT", "/v0/topics/t9", {"partitions": 1}).status == 422
