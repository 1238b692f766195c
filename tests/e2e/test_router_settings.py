"""Routers over HTTP: created, changed, shown, listed, deleted; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.daemon import Answer, Daemon


def put(daemon: Daemon, name: str, **settings: Any) -> Answer:
    return daemon.json("PUT", f"/v0/routers/{name}", settings)


def add_topics(daemon: Daemon, *names: str, partitions: int = 1) -> None:
    for name in names:
        assert daemon.json("PUT", f"/v0/topics/{name}", {"partitions": partitions}).status < 300


def test_a_router_is_created_changed_shown_and_deleted(shared_daemon: Daemon) -> None:
    add_topics(shared_daemon, "rs.a", "rs.b", partitions=2)
    made = put(shared_daemon, "rs", source="rs.a", dest="rs.b", filter={"tag": "x*"}, paused=True)
    assert made.status == 201, made.body
    shown = shared_daemon.get("/v0/routers/rs")
    assert shown.json == made.json
    assert shown.json | {"router_id": 0, "source_id": 0, "dest_id": 0, "created_ms": 0} == {
        "router": "rs", "router_id": 0, "source": "rs.a", "dest": "rs.b",
        "filter": {"tag": "x*"}, "paused": True, "state": "paused", "reason": "",
        "positions": [{"partition": p, "position": 0, "head_seq": 0} for p in (0, 1)],
        "lag": 0, "copied": 0, "filtered": 0, "skipped": 0, "source_id": 0, "dest_id": 0,
        "created_ms": 0,
    }  # fmt: skip
    changed = put(shared_daemon, "rs", filter={"key": "k", "node": "n"})
    assert (changed.status, changed.json["filter"]) == (200, {"key": "k", "node": "n"})
    assert changed.json["paused"] is True
    again = put(shared_daemon, "rs", source="rs.a", dest="rs.b", filter=None)
    assert (again.status, again.json["filter"]) == (200, {})
    assert shared_daemon.ask("DELETE", "/v0/routers/rs").json == {"router": "rs", "deleted": True}
    gone = shared_daemon.get("/v0/routers/rs")
    assert (gone.status, gone.code) == (404, "unknown_router")
    assert shared_daemon.ask("DELETE", "/v0/routers/rs").status == 404


def test_routers_are_listed_by_name_a_page_at_a_time(shared_daemon: Daemon) -> None:
    add_topics(shared_daemon, "rl.a", "rl.b")
    for n in range(3):
        assert put(shared_daemon, f"rl{n}", source="rl.a", dest="rl.b", paused=True).status == 201
    names: list[str] = []
    after: str | None = "rl"
    while after is not None:
        page = shared_daemon.get(f"/v0/routers?after={after}&limit=2").json
        names += [each["router"] for each in page["routers"]]
        after = page["next_after"]
    assert names[:3] == ["rl0", "rl1", "rl2"]


def test_a_cycle_is_refused_with_its_path(shared_daemon: Daemon) -> None:
    add_topics(shared_daemon, "rc.a", "rc.b", "rc.c")
    assert put(shared_daemon, "rc1", source="rc.a", dest="rc.b", paused=True).status == 201
    assert put(shared_daemon, "rc2", source="rc.b", dest="rc.c").status == 201
    refused = put(shared_daemon, "rc3", source="rc.c", dest="rc.a")
    assert (refused.status, refused.code) == (409, "router_cycle")
    assert refused.json["error"]["detail"]["path"] == ["rc.c", "rc.a", "rc.b", "rc.c"]
    assert "rc.c -> rc.a -> rc.b -> rc.c" in refused.json["error"]["message"]
    assert shared_daemon.get("/v0/routers/rc3").status == 404


@pytest.mark.parametrize(
    ("settings", "status", "code", "words"),
    [
        ({"source": "rb.none"}, 404, "unknown_topic", "rb.none"),
        ({"dest": "rb.none"}, 404, "unknown_topic", "rb.none"),
        ({"from": 3}, 400, "invalid", "has 1 offsets, but its source has 2 partitions"),
        ({"from": [0, 7]}, 400, "invalid", "is 7 for partition 1"),
        ({"from": "later"}, 400, "invalid", "from"),
        ({"from": -1}, 400, "invalid", "from"),
        ({"filter": {"tag": "a\\"}}, 400, "invalid", "filter.tag is a pattern that ends with"),
        ({"filter": {"color": "a"}}, 400, "invalid", "color"),
        ({"filter": {"tag": "x" * 2000}}, 400, "invalid", "tag"),
        ({"color": "a"}, 400, "invalid", "color"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_and_nothing_is_created(
    shared_daemon: Daemon, settings: dict[str, Any], status: int, code: str, words: str
) -> None:
    add_topics(shared_daemon, "rb.a", "rb.b", partitions=2)
    refused = put(shared_daemon, "rb", **{"source": "rb.a", "dest": "rb.b"} | settings)
    assert (refused.status, refused.code) == (status, code), refused.body
    assert words in refused.json["error"]["message"]
    assert shared_daemon.get("/v0/routers/rb").status == 404


def test_what_a_new_router_lacks_is_named(shared_daemon: Daemon) -> None:
    refused = put(shared_daemon, "rn", paused=True)
    assert (refused.status, refused.code) == (404, "unknown_router")
    assert refused.json["error"]["detail"]["field"] == "source"
    bad = put(shared_daemon, "-r", source="a", dest="b")
    assert (bad.status, bad.code) == (400, "invalid_router")


def test_a_routers_topics_never_change(shared_daemon: Daemon) -> None:
    add_topics(shared_daemon, "rt.a", "rt.b", "rt.c")
    assert put(shared_daemon, "rt", source="rt.a", dest="rt.b", paused=True).status == 201
    refused = put(shared_daemon, "rt", source="rt.c")
    assert (refused.status, refused.code) == (409, "router_bound")
    shared_daemon.ask("DELETE", "/v0/topics/rt.b")
    shown = shared_daemon.get("/v0/routers/rt").json
    assert shown["state"] == "stopped"
    assert "its destination, the topic 'rt.b'" in shown["reason"]
    add_topics(shared_daemon, "rt.b")
    refused = put(shared_daemon, "rt", dest="rt.b")
    assert "the topic of this name is another one" in refused.json["error"]["message"]
