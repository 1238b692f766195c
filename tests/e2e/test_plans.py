"""``/v0/plans``: what bulk readers are told, and what is kept for them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from compaction.source.plan import LEASE_MS
from compaction.source.planner import LedgerPlanner
from compaction.source.schemas import PlanRequest, PlanStore
from ledger.lake import readleases
from ledger.lake.types import ReadLease
from shards import locks
from shards.clock import wall_ms
from shards.locks import LockFile
from tests.compaction.by_hand import compact, opened
from tests.e2e.daemon import Daemon, running
from tests.e2e.schema import check, resolve


def produced(daemon: Daemon, topic: str, requests: int, partitions: int = 2) -> None:
    """Each request is three records for each partition, and an object by itself."""
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": partitions})
    for number in range(requests):
        for partition in range(partitions):
            answer = daemon.produce(topic, number, number, number, partition=partition)
            assert answer.status == 200


def plan(daemon: Daemon, **asked: Any) -> Any:
    """A plan that is given and has the documented form."""
    answer = daemon.json("POST", "/v0/plans", asked)
    assert answer.status == 200, answer.body
    document = daemon.get("/openapi.json").json
    check(answer.json, resolve({"$ref": "#/components/schemas/Plan"}, document), document)
    return answer.json


def offsets(page: Any) -> dict[tuple[str, int], list[int]]:
    """The offsets that a reader of this page reads, in its order."""
    parts = {(p["topic"], p["partition"]): p for p in page["partitions"]}
    found: dict[tuple[str, int], list[int]] = {key: [] for key in parts}
    for file in page["files"]:
        for one in file["ranges"]:
            key = (file["topic"], one["partition"])
            found[key] += [
                offset
                for offset in range(one["first_offset"], one["last_offset"] + 1)
                if parts[key]["from"] <= offset < parts[key]["to"]
                and offset <= parts[key]["compacted_seq"]
            ]
    for each in page["objects"]:
        for extent in each["extents"]:
            key = (extent["topic"], extent["partition"])
            found[key] += [
                offset
                for offset in range(extent["first_offset"], extent["last_offset"] + 1)
                if parts[key]["from"] <= offset < parts[key]["to"]
                and offset > parts[key]["compacted_seq"]
            ]
    return found


def leases(daemon: Daemon) -> dict[str, ReadLease]:
    with opened(daemon.data) as ledger:
        return {lease.lease: lease for lease in ledger.read(readleases.live, wall_ms())}


def test_a_plan_names_every_record_once_and_where_the_store_is(daemon: Daemon) -> None:
    produced(daemon, "whole", 4)
    found = plan(daemon, topics=["whole"])
    assert offsets(found) == {("whole", 0): list(range(1, 13)), ("whole", 1): list(range(1, 13))}
    assert found["store"]["url"] == f"file://{daemon.data}/store"
    assert found["next"] is None
    assert all(each["key"].startswith("l0/") for each in found["objects"])


def test_a_plan_of_what_is_half_compacted_names_files_and_objects(daemon: Daemon) -> None:
    produced(daemon, "mixed", 5)
    compact(daemon.data, "run-mixed", ["mixed"], objects_max=5)
    found = plan(daemon, topics=["mixed"])
    assert found["files"] and found["objects"]
    expected = {("mixed", 0): list(range(1, 16)), ("mixed", 1): list(range(1, 16))}
    assert offsets(found) == expected
    ahead = {"mixed": {"0": 5, "1": 15}}
    found = plan(daemon, topics=["mixed"], **{"from": ahead}, to={"mixed": {"0": 8}})
    assert offsets(found) == {("mixed", 0): [5, 6, 7], ("mixed", 1): [15]}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_together_are_the_plan(daemon: Daemon, limit: int) -> None:
    topics = [f"paged-{limit}", f"pages-{limit}"]
    for topic in topics:
        produced(daemon, topic, 4)
    compact(daemon.data, f"run-{limit}", topics, objects_max=6)
    page = plan(daemon, topics=topics, limit=limit)
    lease = page["plan"]
    found: dict[tuple[str, int], list[int]] = {}
    pages = 0
    while True:
        pages += 1
        assert page["plan"] == lease
        for key, some in offsets(page).items():
            found.setdefault(key, []).extend(some)
        # More than asked only where that many files begin at one offset.
        assert sum(len(each["extents"]) for each in page["objects"]) <= limit
        if page["next"] is None:
            break
        page = plan(daemon, **{**page["next"], "limit": limit})
    assert pages > 1
    every = list(range(1, 13))
    assert found == {(topic, partition): every for topic in topics for partition in (0, 1)}


def test_what_comes_while_pages_are_fetched_is_not_in_them(daemon: Daemon) -> None:
    produced(daemon, "moving", 3, partitions=1)
    page = plan(daemon, topics=["moving"], limit=1)
    produced(daemon, "moving", 2, partitions=1)
    seen = offsets(page)["moving", 0]
    while page["next"] is not None:
        page = plan(daemon, **page["next"])
        seen += offsets(page)["moving", 0]
    assert seen == list(range(1, 10))


def test_a_plan_is_held_renewed_and_ended(daemon: Daemon) -> None:
    produced(daemon, "held", 1)
    before = wall_ms()
    found = plan(daemon, topics=["held"])
    lease = leases(daemon)[found["plan"]]
    assert found["expires_ms"] >= before + LEASE_MS
    assert lease.expires_ms - lease.created_ms == LEASE_MS
    assert "held" in lease.what
    renewed = daemon.json("PUT", f"/v0/plans/{found['plan']}")
    assert renewed.status == 200
    assert renewed.json["expires_ms"] >= found["expires_ms"]
    assert leases(daemon)[found["plan"]].expires_ms >= lease.expires_ms
    assert daemon.ask("DELETE", f"/v0/plans/{found['plan']}").status == 200
    assert found["plan"] not in leases(daemon)
    for method in ("PUT", "DELETE"):
        refused = daemon.ask(method, f"/v0/plans/{found['plan']}")
        assert (refused.status, refused.code) == (404, "plan_expired")
        assert "POST /v0/plans" in refused.json["error"]["message"]


def test_a_plan_that_has_expired_cannot_go_on(daemon: Daemon) -> None:
    produced(daemon, "late", 1)
    with opened(daemon.data) as ledger:
        ledger.write(readleases.take, "expired", "a test", 1, 2)
    refused = daemon.json("POST", "/v0/plans", {"topics": ["late"], "plan": "expired"})
    assert (refused.status, refused.code) == (404, "plan_expired")


def test_a_refused_plan_leaves_no_lease(daemon: Daemon) -> None:
    produced(daemon, "refused", 1)
    before = set(leases(daemon))
    wrong = {"topics": ["refused"], "from": {"refused": {"0": 99}}}
    assert daemon.json("POST", "/v0/plans", wrong).status == 400
    assert set(leases(daemon)) == before


@pytest.mark.slow
def test_the_thousand_and_first_plan_is_told_to_come_again(tmp_path: Path) -> None:
    with running(tmp_path / "data") as daemon:
        produced(daemon, "many", 1)
        with opened(daemon.data) as ledger:
            now_ms = wall_ms()
            for number in range(1_000):
                ledger.write(readleases.take, f"lease-{number}", "a test", now_ms, now_ms + 600_000)
        refused = daemon.json("POST", "/v0/plans", {"topics": ["many"]})
        assert (refused.status, refused.code) == (429, "too_many_plans")
        assert int(refused.headers["retry-after"]) >= 1
        document = daemon.get("/openapi.json").json
        check(refused.json, {"$ref": "#/components/schemas/ErrorAnswer"}, document)


def test_evicted_offsets_are_holes_that_say_why(daemon: Daemon) -> None:
    produced(daemon, "trimmed", 4)
    trim = {"partition": 0, "before_seq": 6}
    assert daemon.json("POST", "/v0/topics/trimmed/trim", trim).status == 200
    found = plan(daemon, topics=["trimmed"])
    assert found["holes"] == []
    assert offsets(found)["trimmed", 0] == list(range(6, 13))
    found = plan(daemon, topics=["trimmed"], **{"from": {"trimmed": {"0": 3}}})
    (hole,) = found["holes"]
    assert (hole["partition"], hole["first_offset"], hole["last_offset"]) == (0, 3, 5)
    assert hole["reason"] == "trim"
    assert offsets(found)["trimmed", 0] == list(range(6, 13))


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({}, 400, None),
        ({"topics": []}, 400, "topics"),
        ({"topics": ["asked", "asked"]}, 400, "topics"),
        ({"topics": ["none"]}, 404, None),
        ({"topics": ["-"]}, 400, None),
        ({"topics": ["asked"], "from": {"other": {"0": 1}}}, 400, "from"),
        ({"topics": ["asked"], "to": {"other": {"0": 1}}}, 400, "to"),
        ({"topics": ["asked"], "from": {"asked": {"2": 1}}}, 400, "from.asked.2"),
        ({"topics": ["asked"], "from": {"asked": {"0": 0}}}, 400, "from.asked.0"),
        ({"topics": ["asked"], "from": {"asked": {"0": 8}}}, 400, "from.asked.0"),
        ({"topics": ["asked"], "to": {"asked": {"0": 8}}}, 400, "to.asked.0"),
        (
            {"topics": ["asked"], "from": {"asked": {"0": 3}}, "to": {"asked": {"0": 2}}},
            400, "from.asked.0",
        ),
        ({"topics": ["asked"], "from": {"asked": {"zero": 1}}}, 400, None),
        ({"topics": ["asked"], "limit": 0}, 400, "limit"),
        ({"topics": ["asked"], "limit": 10_001}, 400, "limit"),
        ({"topics": ["asked"], "offsets": {}}, 400, None),
        ({"topics": [f"t{n}" for n in range(1_001)]}, 400, "topics"),
    ],
)  # fmt: skip
def test_a_bad_question_is_refused_with_the_field(
    daemon: Daemon, asked: dict[str, Any], status: int, field: str | None
) -> None:
    daemon.json("PUT", "/v0/topics/asked", {"partitions": 2})
    head = daemon.get("/v0/topics/asked").json["partitions"][0]["head_seq"]
    if head == 0:
        produced(daemon, "asked", 2)
    answer = daemon.json("POST", "/v0/plans", asked)
    assert answer.status == status, answer.body
    if field is not None:
        assert answer.json["error"]["detail"]["field"] == field


def test_too_many_partitions_are_refused_with_the_way_out(daemon: Daemon) -> None:
    topics = [f"wide-{number}" for number in range(11)]
    for topic in topics:
        daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 1_000})
    refused = daemon.json("POST", "/v0/plans", {"topics": topics})
    assert (refused.status, refused.code) == (400, "invalid")
    assert "fewer topics" in refused.json["error"]["message"]


def test_records_without_offsets_are_in_the_voids(daemon: Daemon) -> None:
    body = {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "same", "partition": 0}
    daemon.json("PUT", "/v0/topics/voids", {"partitions": 1})
    for _ in range(2):
        assert daemon.json("POST", "/v0/topics/voids", body).status == 200
    assert daemon.produce("voids", 3).status == 200
    found = plan(daemon, topics=["voids"])
    assert offsets(found)["voids", 0] == [1, 2, 3]


@pytest.mark.slow
def test_a_plan_of_a_data_directory_is_made_by_its_daemon_and_without_one_by_whoever_holds_it(
    data: Path,
) -> None:
    planner = LedgerPlanner(str(data), PlanStore(f"file://{data}/store"))
    with running(data) as daemon:
        assert daemon.produce("orders", 1, 2).status == 200
        via_daemon = planner.page(PlanRequest(["orders"]))
        assert via_daemon.store == planner.store and planner.renew(via_daemon.plan)
        held = (data / "ledger" / "ledger.db").stat().st_ino
        assert not [f for f in psutil.Process().open_files() if f.path.startswith(str(data))]
    alone = planner.page(PlanRequest(["orders"]))
    assert (
        alone.objects == via_daemon.objects
        and (data / "ledger" / "ledger.db").stat().st_ino == held
    )
    assert planner.renew(via_daemon.plan), "the lease outlives the daemon"
    planner.end(via_daemon.plan)
    with closing(LockFile(data / "lock")) as lock_file:
        assert lock_file.holder(locks.DIRECTORY) is None
        assert lock_file.try_lock(locks.DIRECTORY)
    with running(data):
        assert planner.state("orders").partitions[0].head_seq == 2
