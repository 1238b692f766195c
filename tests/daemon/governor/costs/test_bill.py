"""The bill: what was asked of the store, what it costs, and what the budget makes of it. Uploaders
that share with nobody have the PUTs of groups of one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.alarms import alarms
from daemon.api.figures.status import bill_of
from daemon.config import Config, Override, load
from daemon.governor.costs.bill import RATE_S, Bill, LoneUploader, Usage
from daemon.governor.costs.billing import Billing, target_max_bytes
from daemon.memory import bounds
from daemon.schemas.bill import BillStatus
from shards import layout as at
from shards.alarms import AlarmBoard
from shards.layout import Layout
from shards.segment import Segment
from tests.daemon.governor.plant import Plant, S, at_random, evenly
from uploader.groups.puller import GroupTable
from uploader.stores.counted import Requests
from uploader.stores.prices import DEFAULT_PRICES, GIB, SECONDS_PER_MONTH

TICK_NS = 100_000_000
SHARDS = 2
STANDARD = DEFAULT_PRICES["standard"]


def config_of(**settings: object) -> Config:
    given = {"store_url": "s3://bucket", "shards": SHARDS, **settings}
    return load(None, {}, [Override(key, str(value)) for key, value in given.items()])


class Billed:
    """A segment, the supervisor's part that keeps the bill, and what shards do."""

    def __init__(self, segment: Segment, config: Config) -> None:
        self.segment, self.config, self.now_ns = segment, config, 5 * S
        self.own = Requests()
        self.words = segment.words
        self.words[at.G_WINDOW_NS] = int(config.commit_window_min_ms * 1e6)
        self.words[at.G_TARGET_BYTES] = config.object_bytes_target
        alarm_board = AlarmBoard(segment, SHARDS)
        self.billing = Billing(segment, config, self.own, alarm_board, self.now_ns)
        self.window_ms = 0.0

    def add(self, shard: int, word: int, amount: int) -> None:
        self.words[self.segment.layout.shard(shard) + word] += amount

    def tick(self, times: int = 1, *, puts: int = 0, put_bytes: int = 0) -> None:
        """Ticks; in each the shards make ``puts`` altogether."""
        for _ in range(times):
            self.now_ns += TICK_NS
            self.add(self.now_ns // TICK_NS % SHARDS, at.S_PUTS, puts)
            self.add(0, at.S_PUT_BYTES, put_bytes)
            self.window_ms = self.billing.tick(self.config.commit_window_min_ms, self.now_ns)
            self.words[at.G_WINDOW_NS] = int(self.window_ms * 1e6)

    def status(self) -> BillStatus:
        return bill_of(self.segment, self.config, self.now_ns)

    def alarms(self) -> list[str]:
        return [alarm.message for alarm in alarms.active(self.segment, self.config, self.now_ns)]


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(SHARDS, 4096))
    yield made
    made.close()


def test_the_bill_has_the_requests_of_all_shards_and_the_supervisors_own(segment: Segment) -> None:
    billed = Billed(segment, config_of())
    billed.own.puts, billed.own.put_bytes, billed.own.lists = 7, 700, 2
    billed.own.gets, billed.own.get_bytes = 3, 30
    for shard in range(SHARDS):
        for word, amount in (
            (at.S_PUTS, 10), (at.S_PUT_BYTES, 1_000), (at.S_GETS, 100), (at.S_GET_BYTES, 5),
            (at.S_BYTES_ACKED, GIB // 4),
        ):  # fmt: skip
            billed.add(shard, word, amount)
    billed.tick()
    found = billed.status()
    assert (found.puts, found.put_bytes, found.gets, found.get_bytes, found.lists) == (
        27, 2_700, 203, 40, 2,
    )  # fmt: skip
    assert found.usd == pytest.approx(29 * 0.005 / 1_000 + 203 * 0.0004 / 1_000)
    assert found.usd_per_gib == pytest.approx(2 * found.usd)
    assert found.store_class == "standard" and found.budget is None


def test_dollars_a_month_follow_the_pace_of_the_last_minute(segment: Segment) -> None:
    billed = Billed(segment, config_of())
    billed.words[at.G_STARTED_NS] = billed.now_ns
    billed.add(0, at.S_BYTES_ACKED, 1 << 20)
    billed.tick(599, puts=1)
    found = billed.status()
    assert found.usd_per_month is None and found.usd_per_gib is None, "a guess would be far off"
    billed.add(0, at.S_BYTES_ACKED, 15 << 20)
    billed.tick(puts=1)
    assert billed.status().usd_per_gib is not None
    assert billed.status().put_rate == pytest.approx(10)
    assert billed.status().usd_per_month == pytest.approx(10 * SECONDS_PER_MONTH * 5e-6)
    billed.tick(int(10 * RATE_S) * 3)
    assert billed.status().put_rate < 0.5


def test_without_groups_the_same_requests_would_have_cost_more(segment: Segment) -> None:
    billed = Billed(segment, config_of())
    billed.own.puts = 3
    for _ in range(300):
        for shard in range(SHARDS):
            billed.add(shard, at.S_REQUEST_ID, 10)
            billed.add(shard, at.S_HEAD, 10_000)
        billed.tick()
    found = billed.status()
    # Windows of 200 ms, and 10 ms until the next request: 4.76 in a second and shard.
    assert found.single_stream.puts == pytest.approx(3 + 30 * 4.8, rel=0.05)
    assert found.per_shard.puts == pytest.approx(3 + 2 * 30 * 4.8, rel=0.05)
    assert found.per_shard.usd == pytest.approx(found.per_shard.puts * 5e-6)
    assert found.optimum_put_rate == pytest.approx(4.8 + 0.1, rel=0.05)
    assert found.per_shard.usd_per_month is None, "a guess would be far off"


def test_what_the_same_requests_would_cost_a_month_without_groups(segment: Segment) -> None:
    billed = Billed(segment, config_of())
    billed.words[at.G_STARTED_NS] = billed.now_ns
    for _ in range(600):
        for shard in range(SHARDS):
            billed.add(shard, at.S_REQUEST_ID, 10)
            billed.add(shard, at.S_HEAD, 10_000)
        billed.tick(puts=1)
    found, month_usd = billed.status(), SECONDS_PER_MONTH * 5e-6
    assert found.single_stream.usd_per_month == pytest.approx(4.8 * month_usd, rel=0.05)
    assert found.per_shard.usd_per_month == pytest.approx(2 * 4.8 * month_usd, rel=0.05)
    assert found.usd_per_month == pytest.approx(10 * month_usd, rel=0.05)


def test_no_way_to_upload_has_fewer_puts_than_the_one_stream_that_uploads(segment: Segment) -> None:
    """A client that waits for each answer needs a PUT for each request, whoever uploads it."""
    GroupTable(segment).start()
    billed = Billed(segment, config_of(commit_window_min_ms=100))
    billed.own.puts = 9
    for _ in range(30):  # 50 requests a second, each in an object of its own
        billed.add(0, at.S_REQUEST_ID, 5)
        billed.add(0, at.S_HEAD, 500)
        billed.tick(puts=5)
    found = billed.status()
    assert found.puts == found.single_stream.puts == found.per_shard.puts == 159


def test_a_single_bill_needs_no_shared_memory() -> None:
    bill = Bill(STANDARD, 1, 0)
    new, billed = bill.sample(Usage(puts=5), 1, [5], [500], 1_000_000, 1 << 20, S)
    assert new == Usage(puts=5) and billed.put_rate == 5
    new, _ = bill.sample(Usage(puts=6, lists=1), 1, [5], [500], 1_000_000, 1 << 20, 2 * S)
    assert new == Usage(puts=1, lists=1)


def test_a_budget_widens_the_window_and_never_narrows_what_pressure_asks_for(
    segment: Segment,
) -> None:
    config = config_of(put_budget_usd_per_month=12.96)  # one PUT a second
    billed = Billed(segment, config)
    billed.tick(10, puts=2)
    budget = billed.status().budget
    assert budget is not None and budget.holds and budget.usd_per_month == 12.96
    assert 200 < budget.window_ms == pytest.approx(billed.window_ms)
    assert billed.billing.tick(4_999.0, billed.now_ns) == 4_999.0


def test_requests_of_the_supervisor_and_lists_are_spending_too(segment: Segment) -> None:
    billed = Billed(segment, config_of(put_budget_usd_per_month=12.96))
    billed.own.puts = 10
    billed.own.lists = 10
    billed.tick()
    assert billed.window_ms == pytest.approx(200 * 2.718281828 ** ((20 - 0.1 - 2) / 16))


def test_an_exceeded_budget_raises_an_alarm_that_says_what_to_do(segment: Segment) -> None:
    billed = Billed(segment, config_of(put_budget_usd_per_month=12.96))
    billed.tick(100, puts=10)
    (message,) = billed.alarms()
    assert "PUT budget exceeded for" in message and "$1,296.00 a month" in message
    assert "the budget is $12.96" in message and "raise put_budget_usd_per_month" in message
    assert message.endswith("ring_bytes")  # nothing is cut off
    budget = billed.status().budget
    assert budget is not None and not budget.holds and budget.window_ms == 5_000
    assert billed.words[at.G_TARGET_BYTES] == budget.target_bytes == 8 << 20
    billed.tick(3_000)
    assert billed.alarms() == [] and billed.words[at.G_TARGET_BYTES] == 4 << 20


def test_a_budget_below_the_cost_of_the_owners_log_is_told_so(segment: Segment) -> None:
    billed = Billed(segment, config_of(put_budget_usd_per_month=0.05))
    billed.tick(100, puts=10)
    (message,) = billed.alarms()
    assert message.endswith(
        "the budget is $0.05; the owner's log alone needs up to $2.59: raise"
        " put_budget_usd_per_month"
    )


def test_the_alarm_follows_the_spending_once_a_minute(segment: Segment) -> None:
    billed = Billed(segment, config_of(put_budget_usd_per_month=12.96))
    billed.tick(599, puts=10)
    (first,) = billed.alarms()
    billed.tick(1_200, puts=20)
    (second,) = billed.alarms()
    assert "$1,296.00" in first and "$1,296.00" not in second


def test_a_budget_can_be_changed_and_taken_away(segment: Segment) -> None:
    billed = Billed(segment, config_of(put_budget_usd_per_month=12.96))
    billed.tick(100, puts=10)
    billed.billing.follow(config_of(put_budget_usd_per_month=12_960), billed.now_ns)
    billed.tick(10, puts=10)
    assert billed.alarms() == []
    billed.billing.follow(config_of(), billed.now_ns)
    billed.tick()
    assert billed.status().budget is None and billed.window_ms == 200


def test_a_budget_that_is_added_later_leaves_objects_as_the_memory_bound_has_them(
    segment: Segment,
) -> None:
    billed = Billed(segment, config_of())
    billed.billing.follow(config_of(put_budget_usd_per_month=12.96), billed.now_ns)
    billed.tick(100, puts=10)
    assert billed.words[at.G_TARGET_BYTES] == 4 << 20 and billed.alarms() != []


def test_the_memory_bound_knows_how_large_objects_may_grow() -> None:
    without, budget = config_of(), config_of(put_budget_usd_per_month=1)
    assert (target_max_bytes(without), target_max_bytes(budget)) == (4 << 20, 8 << 20)
    assert bounds(budget)["uploads"] == 2 * bounds(without)["uploads"]


MIB = 1 << 20


def stepped(
    gap_ns: Callable[[], int], seconds: int, size: int, window_ms: float, target: int
) -> int:
    """The PUTs of a lone uploader for requests of ``size`` bytes."""
    uploader, next_ns = LoneUploader(), gap_ns()
    for to_ns in range(TICK_NS, seconds * S + 1, TICK_NS):
        requests = 0
        while next_ns < to_ns:
            requests += 1
            next_ns += gap_ns()
        uploader.step(
            to_ns - TICK_NS, to_ns, requests, requests * size, int(window_ms * 1e6), target
        )
    return uploader.puts


@pytest.mark.parametrize(
    ("per_s", "size", "window_ms", "target"),
    [
        (1, 1_000, 200, 4 * MIB),  # each alone
        (5, 1_000, 200, 4 * MIB),
        (50, 1_000, 200, 4 * MIB),  # a window each
        (3, 1_000, 1_000, 4 * MIB),
        (400, 100_000, 200, 4 * MIB),  # an object each
        (400, 1_000, 0.5, 4 * MIB),  # windows of a hundredth of a tick
        (4_000, 1_000, 0.5, 4 * MIB),
        (100, 9_000_000, 200, 4 * MIB),  # each larger than an object
        (500, 9_000, 10, 65_536),
    ],
)
def test_the_puts_are_those_of_the_shipped_rule(
    per_s: float, size: int, window_ms: float, target: int
) -> None:
    plant = Plant(1, size, at_random(per_s, random.Random(3)))
    plant.window_ms, plant.target_bytes = window_ms, target
    plant.run_until(10 * S)
    found = stepped(at_random(per_s, random.Random(3)), 10, size, window_ms, target)
    assert found == pytest.approx(plant.puts, rel=0.1, abs=2)


def test_a_lone_request_is_uploaded_immediately_and_once() -> None:
    uploader = LoneUploader()
    uploader.step(0, TICK_NS, 1, 1_000, 200_000_000, MIB)
    assert uploader.puts == 1
    for number in range(1, 50):
        uploader.step(number * TICK_NS, (number + 1) * TICK_NS, 0, 0, 200_000_000, MIB)
    assert uploader.puts == 1


def test_what_waits_for_its_window_is_uploaded_in_a_later_tick() -> None:
    uploader = LoneUploader()
    uploader.step(0, TICK_NS, 2, 2_000, 200_000_000, MIB)
    assert uploader.puts == 1  # the first one; the second waits
    uploader.step(TICK_NS, 2 * TICK_NS, 0, 0, 200_000_000, MIB)
    assert uploader.puts == 1
    uploader.step(2 * TICK_NS, 3 * TICK_NS, 0, 0, 200_000_000, MIB)
    assert uploader.puts == 2


def test_shards_for_themselves_need_as_many_times_more_as_there_are_shards() -> None:
    alone = sum(stepped(evenly(50), 10, 1_000, 200, 4 * MIB) for _ in range(8))
    together = stepped(evenly(400), 10, 1_000, 200, 4 * MIB)
    assert alone == pytest.approx(8 * together, rel=0.1)


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 1 << 24)), max_size=30),
    st.integers(1, 2_000_000_000),
    st.integers(1, 1 << 24),
)
def test_no_request_and_no_object_has_two_puts_and_everything_is_uploaded(
    ticks: list[tuple[int, int]], window_ns: int, target: int
) -> None:
    uploader = LoneUploader()
    for number, (requests, size_bytes) in enumerate(ticks):
        before = uploader.puts
        uploader.step(
            number * TICK_NS, (number + 1) * TICK_NS, requests, size_bytes, window_ns, target
        )
        assert before <= uploader.puts <= before + requests + 1
    end_ns = len(ticks) * TICK_NS + window_ns
    uploader.step(len(ticks) * TICK_NS, end_ns, 0, 0, window_ns, target)
    after = uploader.puts
    assert bool(after) == any(requests for requests, _ in ticks)
    uploader.step(end_ns, end_ns + 10 * window_ns, 0, 0, window_ns, target)
    assert uploader.puts == after
