"""The status document: its shape is a contract, its numbers are the shared words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from daemon import memory
from daemon.api.figures.status import StatusBuilder
from daemon.config import load
from daemon.config.sensors import BY_NAME, SENSORS, Reading
from daemon.governor import board
from daemon.governor.governor import Governor
from daemon.governor.producers_gate import ClosedBy
from daemon.schemas.status import ShardStatus, SubscriptionScaling
from ledger.delivery.push_rates import LearnedRate
from shards import layout as at
from shards.boards.figures import words_of
from shards.boards.pushboard import PushBoard, PushOutcome, SenderWords
from shards.boards.rowboard import RowPhase, SubscriptionRow, subscription_board
from shards.layout import Layout
from shards.segment import Segment
from uploader.groups.puller import GroupTable

NOW_NS = 100_000_000_000
SHARDS = 4


class Daemon:
    """A segment as a running daemon would have it."""

    def __init__(self) -> None:
        self.config = load(None, {}, [])
        self.segment = Segment.create(Layout(SHARDS, 4096))
        self.words = self.segment.words
        self.groups = GroupTable(self.segment)
        self.groups.start()
        self.words[at.G_STARTED_NS] = NOW_NS - 12_900_000_000
        for shard in range(SHARDS):
            self.store(shard, at.S_READY, 1)
            self.store(shard, at.S_PID, 1000 + shard)

    def store(self, shard: int, word: int, value: int) -> None:
        self.words[self.segment.layout.shard(shard) + word] = value

    def status(self) -> StatusBuilder:
        return StatusBuilder(self.segment, self.config)

    def document(self) -> Any:
        return msgspec.to_builtins(self.status().document(NOW_NS))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A fresh one."""
    made = Daemon()
    yield made
    made.segment.close()


def test_every_promised_field_is_there(daemon: Daemon) -> None:
    document = daemon.document()
    assert set(document) >= {
        "version", "uptime_s", "ready", "store", "window_ms", "pressure", "memory_bound_bytes",
        "shards", "groups", "totals",
    }  # fmt: skip
    assert set(document["store"]) >= {
        "url", "puts", "put_bytes", "put_failures", "gets", "get_bytes", "lists",
    }  # fmt: skip
    assert set(document["pressure"]) >= {"level", "rung", "inputs"}
    assert set(document["totals"]) >= {
        "requests_acked", "records_acked", "bytes_acked", "rejected", "objects_committed",
        "orphans_adopted",
    }  # fmt: skip
    for shard in document["shards"]:
        assert set(shard) >= {
            "shard", "pid", "cpu", "group", "restarts", "heartbeat_age_ms", "ring_bytes",
            "ring_used_bytes", "requests_acked", "records_acked", "bytes_acked",
        }  # fmt: skip
    for group in document["groups"]:
        assert set(group) >= {
            "group", "shards", "turn", "backlog_bytes", "last_upload_age_ms",
            "last_change_age_ms", "splits", "merges",
        }  # fmt: skip
    assert document["uptime_s"] == 12
    assert document["store"]["url"] == daemon.config.store_url
    assert document["memory_bound_bytes"] == sum(memory.bounds(daemon.config).values())


def test_totals_and_store_are_sums_over_the_shards(daemon: Daemon) -> None:
    words = {
        "requests_acked": at.S_REQUESTS_ACKED, "records_acked": at.S_RECORDS_ACKED,
        "bytes_acked": at.S_BYTES_ACKED, "rejected": at.S_REJECTED,
        "objects_committed": at.S_OBJECTS_COMMITTED, "orphans_adopted": at.S_ORPHANS_ADOPTED,
        "puts": at.S_PUTS, "put_bytes": at.S_PUT_BYTES, "put_failures": at.S_PUT_FAILURES,
        "gets": at.S_GETS, "get_bytes": at.S_GET_BYTES, "lists": at.S_LISTS,
    }  # fmt: skip
    for number, word in enumerate(words.values()):
        for shard in range(SHARDS):
            daemon.store(shard, word, 10**number * (shard + 1))
    document = daemon.document()
    sums = document["totals"] | document["store"]
    assert [sums[name] for name in words] == [10 * 10**number for number in range(len(words))]
    assert [shard["records_acked"] for shard in document["shards"]] == [10, 20, 30, 40]


def test_a_figure_that_is_a_word_of_a_shard_is_read_from_it(
    daemon: Daemon,
) -> None:
    words = words_of(ShardStatus)
    for number, word in enumerate(words.values()):
        daemon.store(2, word, 1_000 + number)
    document = daemon.document()
    assert [document["shards"][2][name] for name in words] == [1_000 + n for n in range(len(words))]
    assert not any(document["shards"][1][name] for name in words)
    assert document["totals"]["records_acked"] == document["shards"][2]["records_acked"]


def test_gates_say_which_are_closed_why_since_when_and_how_often(daemon: Daemon) -> None:
    gates = {"producers": (at.G_GATE,), "routers": tuple(
        daemon.segment.layout.shard(shard) + at.S_GATE for shard in range(SHARDS)
    )}  # fmt: skip

    def close(gate: int, why: int, ago_ms: int) -> None:
        board.store_gate(daemon.words, gate, why, NOW_NS - ago_ms * 1_000_000)

    is_open: dict[str, Any] = {"paused_shards": 0, "paused_ms": None, "pauses": 0, "reasons": []}
    assert daemon.document()["gates"] == [{"gate": gate} | is_open for gate in gates]
    memory, disk = SENSORS.index(BY_NAME["memory"]) + 1, SENSORS.index(BY_NAME["disk"]) + 1
    close(gates["producers"][0], ClosedBy.STORE_FAILING, 9_000)
    close(gates["producers"][0], ClosedBy.STORE_FAILING | ClosedBy.MEMORY, 1_000)
    close(gates["routers"][1], disk, 700)
    for _ in range(2):
        close(gates["routers"][3], 0, 500)
        close(gates["routers"][3], memory, 300)
    assert daemon.document()["gates"] == [
        {
            "gate": "producers", "paused_shards": SHARDS, "paused_ms": 9_000, "pauses": 1,
            "reasons": ["store_failing", "memory"],
        },
        {
            "gate": "routers", "paused_shards": 2, "paused_ms": 700, "pauses": 3,
            "reasons": ["memory", "disk"],
        },
    ]  # fmt: skip


def test_watchers_that_have_lagged_are_summed_over_the_shards(daemon: Daemon) -> None:
    for shard in range(SHARDS):
        daemon.store(shard, at.S_LAGGED, shard)
        daemon.store(shard, at.S_LAGS, 10 * shard)
    delivery = daemon.document()["delivery"]
    assert (delivery["lagged_watchers"], delivery["lags"]) == (6, 60)


def test_a_shards_row_says_how_it_is(daemon: Daemon) -> None:
    daemon.store(2, at.S_HEAD, 5000)
    daemon.store(2, at.S_COMMITTED, 3000)
    daemon.store(2, at.S_HEARTBEAT_NS, NOW_NS - 250_000_000)
    daemon.store(2, at.S_CPU, 7)
    daemon.store(2, at.S_RESTARTS, 3)
    daemon.store(2, at.S_CONNECTIONS, 40)
    daemon.store(2, at.S_STREAMS, 50)
    daemon.store(3, at.S_PID, 0)
    shards = daemon.document()["shards"]
    assert [shard["shard"] for shard in shards] == [0, 1, 2, 3]
    assert [shard["pid"] for shard in shards] == [1000, 1001, 1002, None]
    row = shards[2]
    assert (row["ring_used_bytes"], row["ring_bytes"]) == (2000, 4096)
    assert (row["heartbeat_age_ms"], row["cpu"], row["restarts"]) == (250, 7, 3)
    assert (row["connections"], row["streams"]) == (40, 50)
    assert shards[1]["heartbeat_age_ms"] is None


def test_groups_are_the_map_with_ages_and_backlog(daemon: Daemon) -> None:
    lower, upper = daemon.groups.map.split(daemon.groups.map.group_of(0))
    daemon.groups.store(upper.group, at.P_UPLOAD_TURN, 3)
    daemon.groups.store(lower.group, at.P_SPLITS, 1)
    daemon.groups.store(upper.group, at.P_LAST_CHANGE_NS, NOW_NS - 8_000_000)
    daemon.store(3, at.S_HEAD, 700)
    daemon.store(3, at.S_PULLED, 200)
    first, second = daemon.document()["groups"]
    assert (first["group"], first["shards"], first["turn"]) == (0, [0, 1], 0)
    assert (second["group"], second["shards"], second["turn"]) == (2, [2, 3], 3)
    assert (first["backlog_bytes"], second["backlog_bytes"]) == (0, 500)
    assert (first["splits"], second["splits"]) == (1, 0)
    assert (second["last_change_age_ms"], second["last_upload_age_ms"]) == (8, None)
    assert [shard["group"] for shard in daemon.document()["shards"]] == [0, 0, 2, 2]


def test_it_is_ready_when_all_shards_are_and_it_is_not_stopping(daemon: Daemon) -> None:
    assert daemon.document()["ready"] is True and daemon.document()["alarms"] == []
    daemon.store(1, at.S_READY, 0)
    assert daemon.status().obstacles(NOW_NS) == ["shards that do not serve yet: 1"]
    daemon.store(1, at.S_READY, 1)
    daemon.words[at.G_DRAINING] = 1
    assert daemon.document()["ready"] is False


def test_pressure_and_window_are_those_in_force(daemon: Daemon) -> None:
    raw = 0.25 + 0.75 * 0.55
    readings = [Reading(raw if s.name == "ring" else 0.0, 2) for s in SENSORS]
    governed = Governor({}).sample(readings, 0.5, 10, NOW_NS)
    board.store(daemon.words, governed, governed.window_ms)
    document = daemon.document()
    pressure = document["pressure"]
    assert document["window_ms"] == pytest.approx(0.5 + 9.5 / 4)
    assert (pressure["level"], pressure["hard_level"]) == pytest.approx((0.55, 0.55), abs=1e-6)
    assert (pressure["rung"], pressure["rungs"]) == ("widen", ["coalesce", "widen"])
    expected = {s.name: 0.55 if s.name == "ring" else 0 for s in SENSORS}
    assert pressure["inputs"] == pytest.approx(expected, abs=1e-6)
    ring = next(sensor for sensor in pressure["sensors"] if sensor["sensor"] == "ring")
    assert (ring["raw"], ring["shard"], ring["hard"], ring["unit"]) == (raw, 2, True, "share")


@pytest.mark.parametrize(("word", "left_bytes"), [(0, None), (1, 0), (5_001, 5_000)])
def test_the_memory_that_is_left_is_told_also_if_it_is_nothing(
    daemon: Daemon, word: int, left_bytes: int | None
) -> None:
    daemon.words[at.G_MEMORY_LEFT_BYTES] = word
    assert daemon.document()["pressure"]["memory_left_bytes"] == left_bytes


def test_the_scaling_signal_has_each_subscription_by_topic_and_name(daemon: Daemon) -> None:
    board_of_subscriptions = subscription_board(daemon.segment)
    names = [("orders", "billing"), ("orders", "audit"), ("events", "push")]
    for slot, (topic, name) in enumerate(names):
        row = SubscriptionRow(
            topic, name, lag=9_000, drainable_lag=4_000, in_flight=500, blocked_keys=2,
            consumers=slot, consumer_max=1_000,
        )  # fmt: skip
        board_of_subscriptions.write(slot, slot + 1, row)
    found = daemon.status().scaling(None).subscriptions
    assert [(each.topic, each.subscription) for each in found] == sorted(names)
    assert [each.value for each in found] == [50, 75, 100]
    assert found[1] == SubscriptionScaling(
        "orders", "audit", 75, 4_000, 9_000, 500, 2, 1, 1_000, held=""
    )


@pytest.mark.parametrize(
    ("phase", "reason", "held"),
    [
        (RowPhase.RUNNING, "", ""),
        (RowPhase.PAUSED, "", "paused"),
        (RowPhase.HELD, "the store does not answer", "the store does not answer"),
    ],
)
def test_a_subscription_that_cannot_deliver_says_why_and_asks_for_nobody(
    daemon: Daemon, phase: RowPhase, reason: str, held: str
) -> None:
    row = SubscriptionRow("orders", "billing", phase, reason, lag=9_000, consumer_max=1_000)
    subscription_board(daemon.segment).write(0, 1, row)
    (found,) = daemon.status().scaling(None).subscriptions
    assert (found.held, found.value, found.drainable_lag) == (held, 0, 0)


def test_push_subscriptions_are_added_up_and_those_that_fail_are_shown_first(
    daemon: Daemon,
) -> None:
    assert daemon.document()["push"]["count"] == 0
    for slot in range(25):
        row = SubscriptionRow("orders", f"s{slot}")
        subscription_board(daemon.segment).write(slot, slot + 1, row)
        PushBoard(daemon.segment).offer(slot, slot + 1, 10, 1)
        words = SenderWords(daemon.segment, 0, slot)
        words.join(slot + 1)
        words.tell(LearnedRate(1 if slot == 7 else 0, 5.0, None), 1)
        words.tell_next(0, NOW_NS + 2_000_000_000 if slot == 9 else 0)
        outcome = PushOutcome.TIMED_OUT if slot == 9 else PushOutcome.DELIVERED
        words.began()
        words.ended(outcome, 1_000_000, records=2)
    found = daemon.document()["push"]
    assert (found["count"], found["slow"], found["rate_max"], found["senders"]) == (25, 1, 250, 25)
    assert (found["attempts"], found["failures"], found["records"]) == (25, 1, 50)
    assert (found["p50_ms"], found["p99_ms"]) == (2.0, 2.0)
    first = found["first"]
    assert len(first) == 20
    assert [each["subscription"] for each in first[:3]] == ["s7", "s9", "s0"]
    assert [each["mode"] for each in first[:2]] == ["slow", "normal"]
    assert (first[1]["held_ms"], first[1]["outcomes"]) == (2_000, {"timed_out": 1})


def test_subscriptions_are_added_up_and_the_worst_are_shown_first(daemon: Daemon) -> None:
    board = subscription_board(daemon.segment)
    held = RowPhase.HELD
    rows = [SubscriptionRow("t", f"s{lag}", lag=lag, in_flight=1) for lag in range(30)]
    rows[3] = SubscriptionRow("t", "held", held, "the store does not answer", lag=3, in_flight=1)
    rows[4] = SubscriptionRow("t", "blocked", lag=4, blocked_keys=2, in_flight=1)
    rows[5] = SubscriptionRow(
        "t", "paused", RowPhase.PAUSED, lag=5, in_flight=1, oldest_unacknowledged_ms=70
    )
    assert daemon.document()["subscriptions"]["count"] == 0
    for slot, row in enumerate(rows):
        board.write(slot, slot + 100, row)
    found = daemon.document()["subscriptions"]
    assert (found["count"], found["held"], found["in_flight"]) == (30, 1, 30)
    assert (found["lag"], found["blocked_keys"]) == (sum(range(30)), 2)
    assert found["oldest_unacknowledged_ms"] == 70
    first = found["first"]
    assert [each["subscription"] for each in first[:4]] == ["held", "blocked", "s29", "s28"]
    assert len(first) == 20
    assert first[0] == first[0] | {
        "topic": "t", "state": "held", "reason": "the store does not answer", "lag": 3,
    }  # fmt: skip
