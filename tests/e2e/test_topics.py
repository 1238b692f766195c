"""Topics over HTTP: create, change, read, list, delete, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running
from tests.e2e.wire import Wire, request, wire_of_each_shard

DEFAULTS = {
    "partitions": 1, "columns": {}, "priority": None, "auto_priority": True, "lossy": False,
    "cap_records": None, "cap_bytes": None, "ttl_ms": None, "discard": "old",
    "dedupe": "none", "retain_for_subscriptions": None, "hook": None, "kafka_value": "bytes",
    "kafka_cleanup_policy": "delete",
}  # fmt: skip
EMPTY = {
    "head_seq": 0, "earliest_seq": 1, "next_seq": 1, "count": 0, "bytes": 0,
    "compacted_seq": 0, "lost_seq": 0, "lost_reason": "",
}  # fmt: skip


def topic_names(daemon: Daemon, prefix: str) -> list[str]:
    """All topics with this prefix, from one large page."""
    page = daemon.get("/v0/topics?limit=1000").json
    assert page["next_cursor"] is None
    return [t["topic"] for t in page["topics"] if t["topic"].startswith(prefix)]


def test_a_topic_is_created_once_and_then_unchanged(shared_daemon: Daemon) -> None:
    created = shared_daemon.json("PUT", "/v0/topics/made", {"partitions": 2})

    assert created.status == 201
    assert created.json["topic"] == "made"
    assert created.json["config"] == {**DEFAULTS, "partitions": 2}
    assert created.json["partitions"] == [{"partition": p, **EMPTY} for p in (0, 1)]
    assert created.json["effective_priority"] == 0
    again = shared_daemon.json("PUT", "/v0/topics/made", {"partitions": 2})
    assert (again.status, again.json) == (200, created.json)
    assert shared_daemon.get("/v0/topics/made").json == created.json


def test_a_topic_that_takes_dead_letters_is_deleted_only_by_force(shared_daemon: Daemon) -> None:
    for topic in ("mourned", "mourners"):
        assert shared_daemon.json("PUT", f"/v0/topics/{topic}", {}).status == 201
    path = "/v0/topics/mourners/subscriptions/s"
    assert shared_daemon.json("PUT", path, {"dead_letter_topic": "mourned"}).status == 201
    refused = shared_daemon.ask("DELETE", "/v0/topics/mourned")
    assert (refused.status, refused.code) == (409, "dead_letter_topic")
    assert refused.json["error"]["detail"] == {
        "topic": "mourned", "subscriptions": ["s of mourners"],
    }  # fmt: skip
    assert shared_daemon.ask("DELETE", "/v0/topics/mourned?force=true").status == 200


def test_settings_that_are_not_given_are_kept(shared_daemon: Daemon) -> None:
    assert shared_daemon.json("PUT", "/v0/topics/stays", {"partitions": 3}).status == 201

    for document in (None, {}, {"lossy": False}):
        answer = shared_daemon.json("PUT", "/v0/topics/stays", document)
        assert (answer.status, answer.json["config"]["partitions"]) == (200, 3)


def test_partitions_grow_and_never_shrink(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/grows", {"partitions": 2})
    shared_daemon.produce("grows", 1, partition=1)

    grown = shared_daemon.json("PUT", "/v0/topics/grows", {"partitions": 4})
    assert grown.status == 200
    assert [p["head_seq"] for p in grown.json["partitions"]] == [0, 1, 0, 0]
    assert shared_daemon.produce("grows", 2, partition=3).json["first_seq"] == 1

    shrunk = shared_daemon.json("PUT", "/v0/topics/grows", {"partitions": 3})
    assert (shrunk.status, shrunk.code) == (400, "invalid")
    assert shrunk.json["error"]["detail"] == {"field": "partitions"}
    assert len(shared_daemon.get("/v0/topics/grows").json["partitions"]) == 4


def test_every_shard_knows_of_a_change_immediately(shared_daemon: Daemon) -> None:
    with wire_of_each_shard(shared_daemon, "everybody") as wires:
        for partitions in (2, 3):
            wires[0].json("PUT", "/v0/topics/everybody", {"partitions": partitions})
            for wire in wires:
                document = {"records": [{"data": 1}], "partition": partitions - 1}
                assert wire.json("POST", "/v0/topics/everybody", document).status == 200
        assert wires[0].json("DELETE", "/v0/topics/everybody", None).status == 200
        for wire in wires:
            assert wire.json("GET", "/v0/topics/everybody", None).code == "unknown_topic"


@pytest.mark.parametrize("partitions", [0, -1, 1001, 10**30, 1.5, "2", None, True])
def test_a_number_of_partitions_out_of_range_is_refused(
    shared_daemon: Daemon, partitions: object
) -> None:
    answer = shared_daemon.json("PUT", "/v0/topics/range", {"partitions": partitions})

    assert (answer.status, answer.code) == (400, "invalid")
    assert shared_daemon.get("/v0/topics/range").status == 404


@pytest.mark.parametrize(
    ("priority", "effective", "band"),
    [
        (1000, 1000, 4),
        (749, 749, 3),
        (0, 0, 1),
        (-1, -1, 0),
        (2**63 - 1, 1000, 4),
        (-(10**9), -1000, 0),
    ],
)
def test_a_priority_is_kept_as_given_and_counts_within_a_thousand(
    shared_daemon: Daemon, priority: int, effective: int, band: int
) -> None:
    url = f"/v0/topics/priority{priority}"
    made = shared_daemon.json("PUT", url, {"priority": priority, "lossy": True})

    assert made.status == 201
    assert (made.json["config"]["priority"], made.json["config"]["lossy"]) == (priority, True)
    assert (made.json["effective_priority"], made.json["band"]) == (effective, band)
    assert shared_daemon.json("PUT", url, {"priority": None}).json["effective_priority"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "5"), ("priority", 1.5), ("priority", True), ("priority", 10**30),
        ("priority", [1]), ("auto_priority", None), ("auto_priority", 1), ("lossy", "yes"),
    ],
)  # fmt: skip
def test_a_priority_or_a_switch_of_another_type_is_refused(
    shared_daemon: Daemon, field: str, value: object
) -> None:
    answer = shared_daemon.json("PUT", "/v0/topics/of-another-type", {field: value})

    assert (answer.status, answer.code) == (400, "invalid")
    assert field in answer.json["error"]["message"]
    assert shared_daemon.get("/v0/topics/of-another-type").status == 404


def test_a_topic_that_was_just_read_is_recent_unless_auto_priority_is_off(
    shared_daemon: Daemon,
) -> None:
    for name, auto in (("read-lately", True), ("read-plain", False)):
        shared_daemon.json("PUT", f"/v0/topics/{name}", {"auto_priority": auto})
        assert shared_daemon.json("POST", f"/v0/topics/{name}/diff", {}).status == 200
        state = shared_daemon.get(f"/v0/topics/{name}").json
        assert 0 < state["recency"] <= 500, "it falls from 500, by half in 30 s"
        expected = state["recency"] if auto else 0
        assert state["effective_priority"] == expected
        assert (state["age_ms"], state["watchers"]) == (0, 0)


def test_limits_and_columns_are_settings(shared_daemon: Daemon) -> None:
    topic = "/v0/topics/limited"
    given = {
        "cap_records": 10, "cap_bytes": 1 << 40, "ttl_ms": 1, "discard": "reject",
        "columns": {"user": "string", "_at": "timestamp", "n2": "long"},
    }  # fmt: skip
    assert shared_daemon.json("PUT", topic, given).json["config"] == {**DEFAULTS, **given}
    changed = shared_daemon.json("PUT", topic, {"cap_records": None, "discard": "old"})
    assert changed.json["config"] == {**DEFAULTS, **given, "cap_records": None, "discard": "old"}


@pytest.mark.parametrize("field", ["cap_records", "cap_bytes", "ttl_ms"])
@pytest.mark.parametrize("value", [0, -1, 1 << 63, 1.5, "10", True])
def test_a_limit_out_of_range_is_refused(shared_daemon: Daemon, field: str, value: object) -> None:
    answer = shared_daemon.json("PUT", "/v0/topics/limit-range", {field: value})
    assert (answer.status, answer.code) == (400, "invalid")
    assert shared_daemon.get("/v0/topics/limit-range").status == 404


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"": "long"}, "a column's name must"),
        ({"a b": "long"}, "a column's name must"),
        ({"1a": "long"}, "a column's name must"),
        ({"é": "long"}, "a column's name must"),
        ({"x" * 129: "long"}, "a column's name must"),
        ({"offset": "long"}, "already has a column"),
        ({"Data": "string"}, "already has a column"),
        ({"data_is_base64": "boolean"}, "already has a column"),
        ({"a": "long", "A": "long"}, "differ only in case"),
        ({f"c{number}": "long" for number in range(201)}, "at most 200"),
        ({"a": "float"}, "must be one of"),
    ],
)
def test_columns_that_a_table_cannot_have_are_refused(
    shared_daemon: Daemon, columns: dict[str, str], words: str
) -> None:
    answer = shared_daemon.json("PUT", "/v0/topics/columns-bad", {"columns": columns})
    assert (answer.status, answer.code) == (400, "invalid")
    assert words in answer.json["error"]["message"]
    assert shared_daemon.get("/v0/topics/columns-bad").status == 404


def test_a_column_is_added_and_removed_and_keeps_its_type(shared_daemon: Daemon) -> None:
    topic = "/v0/topics/columns"
    many = {f"c{number}": "long" for number in range(200)}
    assert shared_daemon.json("PUT", topic, {"columns": many}).status == 201
    assert shared_daemon.json("PUT", topic, {"columns": {"c1": "long"}}).status == 200
    added = shared_daemon.json("PUT", topic, {"columns": {"c1": "long", "x": "double"}})
    assert added.json["config"]["columns"] == {"c1": "long", "x": "double"}
    refused = shared_daemon.json("PUT", topic, {"columns": {"c1": "string"}})
    assert (refused.status, refused.code) == (400, "invalid")
    assert refused.json["error"]["detail"] == {"field": "columns", "column": "c1"}
    assert shared_daemon.get(topic).json["config"] == added.json["config"]


def test_a_topic_whose_table_another_has_is_refused_naming_it(shared_daemon: Daemon) -> None:
    made = shared_daemon.json("PUT", "/v0/topics/web-logs")
    assert (made.status, made.json["table"]) == (201, "web_logs")
    for name in ("web_logs", "Web-Logs"):
        by_hand = shared_daemon.json("PUT", f"/v0/topics/{name}")
        by_use = shared_daemon.produce(name, 1)
        for answer in (by_hand, by_use):
            assert (answer.status, answer.code) == (409, "table_name_taken")
            assert "with topic 'web-logs'" in answer.json["error"]["message"]
            assert answer.json["error"]["detail"] == {
                "topic": name, "table": name.replace("-", "_"), "other": "web-logs"
            }  # fmt: skip
        assert shared_daemon.get(f"/v0/topics/{name}").status == 404
    assert shared_daemon.json("PUT", "/v0/topics/web-logs").status == 200
    long = shared_daemon.json("PUT", f"/v0/topics/{'n' * 255}")
    assert long.status == 201 and len(long.json["table"]) == 128


# Trims


def test_a_trim_drops_the_oldest_records_and_is_never_taken_back(shared_daemon: Daemon) -> None:
    for _ in range(2):
        shared_daemon.produce("trimmed", 1, 2, 3)
    trim = "/v0/topics/trimmed/trim"
    answer = shared_daemon.json("POST", trim, {"before_seq": 5})
    assert answer.status == 200
    state = shared_daemon.get("/v0/topics/trimmed").json["partitions"][0]
    assert answer.json == {"topic": "trimmed", **state}
    assert (state["earliest_seq"], state["count"], state["head_seq"]) == (5, 2, 6)
    read = shared_daemon.diff("trimmed", from_seq=0)
    assert [record["seq"] for record in read["records"]] == [5, 6]
    assert (read["earliest_seq"], read["tombstone"]) == (5, None), "a trim is not a loss"
    for lower in (0, 1, 5):
        assert shared_daemon.json("POST", trim, {"before_seq": lower}).json == answer.json
    assert shared_daemon.json("POST", trim, {"before_seq": 7}).json["count"] == 0
    assert shared_daemon.read_all("trimmed") == []
    assert shared_daemon.produce("trimmed", 4).json["first_seq"] == 7


def test_a_trim_is_of_one_partition(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/trim-one", {"partitions": 2})
    for partition in (0, 1):
        shared_daemon.produce("trim-one", 1, 2, partition=partition)
    body = {"partition": 1, "before_seq": 2}
    assert shared_daemon.json("POST", "/v0/topics/trim-one/trim", body).status == 200
    states = shared_daemon.get("/v0/topics/trim-one").json["partitions"]
    assert [state["earliest_seq"] for state in states] == [1, 2]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b'{"before_seq": 3}', "application/json", 400, "invalid"),
        (b'{"before_seq": -1}', "application/json", 400, "invalid"),
        (b'{"before_seq": 1, "partition": 1}', "application/json", 400, "invalid"),
        (b'{"before_seq": 1, "partition": -1}', "application/json", 400, "invalid"),
        (b'{"before_seq": 99999999999999999999}', "application/json", 400, "invalid"),
        (b'{"before_seq": "1"}', "application/json", 400, "invalid"),
        (b'{"before": 1}', "application/json", 400, "invalid"),
        (b"{}", "application/json", 400, "invalid"),
        (b"", "application/json", 400, "invalid"),
        (b'{"before_seq": 1}', "text/plain", 415, "unsupported_media_type"),
    ],
)
def test_a_trim_that_is_wrong_is_refused(
    shared_daemon: Daemon, body: bytes, content_type: str, status: int, code: str
) -> None:
    if shared_daemon.get("/v0/topics/trim-wrong").status == 404:
        shared_daemon.produce("trim-wrong", 1)
    answer = shared_daemon.ask(
        "POST", "/v0/topics/trim-wrong/trim", body, content_type=content_type
    )
    assert (answer.status, answer.code) == (status, code)
    assert len(shared_daemon.read_all("trim-wrong")) == 1


def test_a_trim_of_an_unknown_topic_is_404(shared_daemon: Daemon) -> None:
    answer = shared_daemon.json("POST", "/v0/topics/trim-nothing/trim", {"before_seq": 1})
    assert (answer.status, answer.code) == (404, "unknown_topic")


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid"),
        (b"[]", "application/json", 400, "invalid"),
        (b'{"partition": 2}', "application/json", 400, "invalid"),
        (b'{"columns": {"a": "float"}}', "application/json", 400, "invalid"),
        (b'{"discard": "new"}', "application/json", 400, "invalid"),
        (b'{"lossy": "\xff"}', "application/json", 400, "invalid"),
        (b"[" * 10_000, "application/json", 400, "invalid"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"{}", "", 415, "unsupported_media_type"),
        (b"{" + b" " * (1 << 20) + b"}", "application/json", 413, "too_large"),
    ],
)
def test_settings_that_are_wrong_are_refused(
    shared_daemon: Daemon, body: bytes, content_type: str, status: int, code: str
) -> None:
    headers = {"content_type": content_type} if content_type else {}
    answer = shared_daemon.ask("PUT", "/v0/topics/wrong", body, **headers)

    assert (answer.status, answer.code) == (status, code)
    assert shared_daemon.get("/v0/topics/wrong").status == 404


def test_topics_are_listed_by_name_a_page_at_a_time(shared_daemon: Daemon) -> None:
    names = [f"page.{letter}" for letter in "dbeca"]
    for name in names:
        shared_daemon.json("PUT", f"/v0/topics/{name}", {})
    shared_daemon.produce("page.c", 1, 2)

    seen: list[str] = []
    cursor: str | None = "page."
    while cursor is not None:
        page = shared_daemon.get(f"/v0/topics?limit=2&cursor={cursor}").json
        assert len(page["topics"]) <= 2
        for state in page["topics"]:
            alone = shared_daemon.get(f"/v0/topics/{state['topic']}").json
            assert state.keys() == alone.keys()
            passing = {"effective_priority", "recency", "age_ms", "band"}  # what time changes
            assert {k for k in state if state[k] != alone[k]} <= passing
            seen.append(state["topic"])
        cursor = page["next_cursor"]
    assert [name for name in seen if name.startswith("page.")] == sorted(names)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many", "", "1.0", "1_0", "%201"])
def test_a_page_size_out_of_range_is_refused(shared_daemon: Daemon, limit: str) -> None:
    answer = shared_daemon.get(f"/v0/topics?limit={limit}")

    assert (answer.status, answer.code) == (400, "invalid")
    assert answer.json["error"]["detail"] == {"field": "limit"}


def test_a_recreated_topic_is_another_one(shared_daemon: Daemon) -> None:
    shared_daemon.produce("again", "old 1", "old 2")
    assert len(shared_daemon.read_all("again")) == 2

    deleted = shared_daemon.json("DELETE", "/v0/topics/again")
    assert (deleted.status, deleted.json) == (200, {"topic": "again", "deleted": True})
    for answer in (
        shared_daemon.get("/v0/topics/again"),
        shared_daemon.json("POST", "/v0/topics/again/diff", {}),
        shared_daemon.json("DELETE", "/v0/topics/again"),
        shared_daemon.json("POST", "/v0/topics/again?create=false", {"records": [{"data": 1}]}),
    ):
        assert (answer.status, answer.code) == (404, "unknown_topic")
    assert topic_names(shared_daemon, "again") == []

    assert shared_daemon.produce("again", "new").json["first_seq"] == 1
    assert [(r["seq"], r["data"]) for r in shared_daemon.read_all("again")] == [(1, "new")]
    assert shared_daemon.get("/v0/topics/again").json["partitions"][0]["count"] == 1


@pytest.mark.slow
def test_the_old_records_of_a_recreated_topic_do_not_reappear_after_a_restart(data: Path) -> None:
    with running(data) as daemon:
        daemon.produce("again", *range(10), idempotency_key="k")
        daemon.json("DELETE", "/v0/topics/again")
        assert daemon.json("PUT", "/v0/topics/again", {}).status == 201
        # Keys belong to the topic that is gone, too.
        fresh = daemon.produce("again", "new", idempotency_key="k")
        assert (fresh.json["first_seq"], fresh.json["deduped"]) == (1, False)
    with running(data) as daemon:
        assert [(r["seq"], r["data"]) for r in daemon.read_all("again")] == [(1, "new")]
        assert daemon.produce("again", "newer").json["first_seq"] == 2


def test_what_is_not_committed_yet_goes_with_its_topic_and_takes_room(data: Path) -> None:
    """With a long window; where a commit is quicker than the DELETE all the same, once more."""
    settings = {"commit_window_min_ms": 1000, "commit_window_max_ms": 1000}
    with running(data, settings=settings) as daemon, Wire(daemon.port) as wire:
        for turn in range(20):
            topic = f"/v0/topics/went.{turn}"
            daemon.json("PUT", topic, {"partitions": 4})
            assert wire.ask(request("POST", topic, b"[1]")).status == 200  # the window begins
            keyed = b'{"records":[{"data":1,"key":"a"},{"data":2,"key":"b"},{"data":3,"key":"c"}]}'
            sent = [request("POST", topic, keyed)] * 2 + [request("POST", topic, b"[1]")] * 5
            wire.send(b"".join(sent))
            deleted = daemon.json("DELETE", topic)
            assert deleted.status == 200
            answers = [answer for _ in sent if (answer := wire.answer())]
            if answers[0].status != 200:
                break
        assert [(a.status, a.code) for a in answers] == [(404, "topic_deleted")] * 7
        assert daemon.status()["totals"]["requests_acked"] == turn + 1 + 7 * turn

        daemon.json("PUT", "/v0/topics/capped", {"cap_records": 7, "discard": "reject"})
        assert daemon.produce("capped", 0).status == 200
        sent = [request("POST", "/v0/topics/capped", b"[1,2]")] * 5
        wire.send(b"".join(sent))
        answers = [answer for _ in sent if (answer := wire.answer())]
        assert [answer.status for answer in answers] == [200, 200, 200, 422, 422]
        assert answers[-1].json["error"]["detail"]["held"] == 7
        assert daemon.get("/v0/topics/capped").json["partitions"][0]["count"] == 7


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255, "a..b", "a%2Eb"])
def test_good_names(shared_daemon: Daemon, name: str) -> None:
    answer = shared_daemon.json("PUT", f"/v0/topics/{name}", {})

    assert answer.status in (200, 201)
    assert answer.json["topic"] == name.replace("%2E", ".")


BAD_NAMES = [
    "", "-a", ".a", ".", "..", "%2e%2e", "_a", ":a", "a%20b", "a b", "a%2Fb", "%C3%A9", "x" * 256,
    "a%5Cb", "a\\b", "a%0Ab", "CON%0d%0aX:%20y", "a*", "a;b", "''--", "a%00", "%ff",
    "%F0%9F%98%80", "..%2F..%2Fetc%2Fpasswd", "a%",
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "suffix"),
    [("PUT", ""), ("POST", ""), ("GET", ""), ("DELETE", ""), ("POST", "/diff")],
)
def test_bad_names(shared_daemon: Daemon, method: str, suffix: str) -> None:
    for name in BAD_NAMES:
        with Wire(shared_daemon.port) as wire:
            answer = wire.ask(request(method, f"/v0/topics/{name}{suffix}", b"[1]"))
        assert answer.status == 400, name
        assert answer.code in ("invalid_topic", "bad_request"), name


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v0/topics", {"GET"}),
        ("PATCH", "/v0/topics/t", {"GET", "PUT", "POST", "DELETE"}),
        ("GET", "/v0/topics/t/diff", {"POST"}),
        ("GET", "/v0/topics/t/trim", {"POST"}),
        ("PUT", "/livez", {"GET"}),
        ("DELETE", "/v0/status", {"GET"}),
    ],
)
def test_a_method_that_a_path_does_not_know_is_405_with_allow(
    shared_daemon: Daemon, method: str, path: str, allow: set[str]
) -> None:
    answer = shared_daemon.ask(method, path)

    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allow


def test_an_unknown_path_is_404(shared_daemon: Daemon) -> None:
    for path in ("/v0", "/v1/topics", "/v0/topics/t/nothing", "/v0/topics/t/diff/x", "/x"):
        answer = shared_daemon.get(path)
        assert (answer.status, answer.code) == (404, "not_found"), path


def test_create_false_makes_no_topic(shared_daemon: Daemon) -> None:
    body = {"records": [{"data": 1}]}
    refused = shared_daemon.json("POST", "/v0/topics/unmade?create=false", body)
    assert (refused.status, refused.code) == (404, "unknown_topic")
    assert shared_daemon.get("/v0/topics/unmade").status == 404

    assert shared_daemon.json("POST", "/v0/topics/unmade?create=true", body).status == 200
    assert shared_daemon.json("POST", "/v0/topics/unmade?create=false", body).status == 200


def test_create_must_be_true_or_false(shared_daemon: Daemon) -> None:
    for topic in ("create-what", "create-what-known"):
        if topic.endswith("known"):
            shared_daemon.produce(topic, 1)
        answer = shared_daemon.json(
            "POST", f"/v0/topics/{topic}?create=maybe", {"records": [{"data": 1}]}
        )
        assert (answer.status, answer.code) == (400, "invalid")
        assert answer.json["error"]["detail"] == {"parameter": "create"}


def test_a_refused_body_creates_no_topic(shared_daemon: Daemon) -> None:
    documents: list[dict[str, object]] = [
        {"records": []},
        {"records": [{}]},
        {"records": [{"data": 1}], "partition": 7},
    ]
    for document in documents:
        answer = shared_daemon.json("POST", "/v0/topics/left", document)
        assert answer.status == 400
        assert shared_daemon.get("/v0/topics/left").status == 404, document
