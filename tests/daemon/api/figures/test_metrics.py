"""The page of metrics: Prometheus' conventions, both formats, and the words that it is made of."""

from __future__ import annotations

import asyncio
import functools
import re
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from daemon.alarms.alarms import NAMES
from daemon.api.figures import metrics
from daemon.api.figures.kafka_figures import kafka_series
from daemon.api.figures.metric_kinds import OTHERS, Scrape, declared
from daemon.api.figures.metric_table import METRICS
from daemon.api.figures.push_figures import push_series
from daemon.api.figures.router_figures import router_series
from daemon.api.figures.status import StatusBuilder
from daemon.api.figures.subscription_figures import SERIES_MAX, series
from daemon.api.streaming import Text
from daemon.config import Override, load
from daemon.config.sensors import SENSORS, Reading
from daemon.governor import board
from daemon.governor.governor import Governor
from daemon.governor.ladder import RUNGS
from daemon.intake.refused import RefusalReason
from daemon.schemas.names import TOPIC_NAME
from daemon.tls.certificate import Certificate, Files
from delivery.dispatch import SLICE_NS
from delivery.scheduler.bands import BANDS
from ledger.delivery.push_rates import LearnedRate
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.boards.figures import Family, figure
from shards.boards.namecounts import TOKENS, TOPICS, write_name
from shards.boards.pushboard import PushBoard, PushOutcome, SenderWords
from shards.boards.pushgrants import SlotGrants
from shards.boards.pushtotals import totals
from shards.boards.rowboard import (
    KafkaGroupRow,
    RowPhase,
    SubscriptionRow,
    kafka_group_board,
    subscription_board,
)
from shards.latency import LatencyHistogram, Stage
from shards.layout import Layout
from shards.segment import Segment
from tests.e2e.secured import Authority
from uploader.groups.puller import GroupTable

NOW_NS = 100_000_000_000
SHARDS = 4
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
PROMETHEUS = (  # what Prometheus 3 sends
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@functools.cache
def certificate() -> Certificate:
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        return Certificate(Files(authority.certificate, authority.key, None))


class Daemon:
    """A segment as a running daemon would have it, and its page."""

    def __init__(self, shards: int = SHARDS) -> None:
        self.segment = Segment.create(Layout(shards, 4096))
        self.words = self.segment.words
        self.groups = GroupTable(self.segment)
        self.groups.start()
        self.words[at.G_BUDGET_USD] = double(1_500.0)
        config = load(None, {}, [Override("kafka_listen", "127.0.0.1:9092", "test")])
        self.builder = StatusBuilder(self.segment, config, certificate())

    def store(self, shard: int, word: int, value: int) -> None:
        self.words[self.segment.layout.shard(shard) + word] = value

    def scrape(self) -> Scrape:
        stages = self.builder.stages()
        return Scrape(
            self.builder.document(NOW_NS, stages), stages, self.builder.topics(),
            self.builder.tokens(),
            series(self.builder.subscriptions()),
            push_series(totals(self.segment), self.builder.subscriptions()),
            router_series(self.builder.routers()),
            kafka_series(
                self.builder.kafka_groups(), self.builder.unplaced_kafka_groups()[1]
            ),
        )  # fmt: skip

    def text(self, accept: str = "") -> Text:
        return asyncio.run(metrics.page(self.scrape(), accept, lambda: NOW_NS))

    def page(self, accept: str = "") -> str:
        return self.text(accept).body.decode()

    def value(self, name: str, **labels: str) -> float:
        return parsed(self.page())[name, frozenset(labels.items())]

    def values(self, name: str, label: str, of: Iterable[str]) -> list[float]:
        """The values of one page."""
        samples = parsed(self.page())
        return [samples[name, frozenset({(label, each)})] for each in of]


def double(value: float) -> int:
    """The bits of a double, as they are in a word."""
    (bits,) = struct.unpack("=Q", struct.pack("=d", value))
    return int(bits)


def parsed(page: str) -> Samples:
    parse: Any = parser.text_string_to_metric_families
    families = parse(page)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.segment.close()


def test_names_follow_prometheus_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"headgate(_[a-z]+)+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_info") == (metric.kind == "info"), metric.name
        assert not re.search(r"_(ms|ns|us|minutes|kb|mb|kib|mib|percent)(_|$)", metric.name)
        assert metric.says and not metric.says.endswith("."), metric.name
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels), metric.name


class Counted(Struct):
    """Figures that a row has, and all of them together."""

    taken: Annotated[int, figure("what was taken", "headgate_taken_total")]
    age_ms: Annotated[int | None, figure("since when", "headgate_age_seconds", per=1e3)]


class Row(Counted):
    """One of them."""

    name: str
    by_end: Annotated[dict[str, int], figure("how", Family("headgate_ends_total", "s"), by="end")]


class Limit(Struct):
    """What only some have."""

    usd: Annotated[float, figure("a limit", "headgate_limit_usd")]


class Document(Counted):
    """All of them."""

    rows: Annotated[list[Row], figure(by="name")]
    limit: Annotated[Limit | None, figure(of="puts")]
    count: Annotated[int, figure("how many", "headgate_rows")]


def test_a_figure_of_a_row_has_its_labels_and_what_is_inherited_is_no_series_of_all() -> None:
    rows = [Row(3, 1_500, "a", {"well": 2, "badly": 1}), Row(4, None, "b", {})]
    document: Any = Document(7, 9, rows, None, 2)
    found = {metric.name: metric for metric in declared(Document)}
    samples = {name: [*metric.samples(document)] for name, metric in found.items()}
    assert samples == {
        "headgate_taken_total": [(("a",), 3), (("b",), 4)],
        "headgate_age_seconds": [(("a",), 1.5), (("b",), 0)],
        "headgate_ends_total": [(("a", "well"), 2), (("a", "badly"), 1)],
        "headgate_limit_usd": [],
        "headgate_rows": [((), 2)],
    }
    document.limit = Limit(50.0)
    assert [*found["headgate_limit_usd"].samples(document)] == [(("puts",), 50.0)]
    kinds = [found[name].kind for name in samples]
    assert kinds == ["counter", "gauge", "counter", "gauge", "gauge"]
    assert found["headgate_ends_total"].labels == ("name", "end")


def test_both_formats_have_the_same_samples_and_parse(daemon: Daemon) -> None:
    daemon.words[at.G_MEMORY_LEFT_BYTES] = 1  # without, it has no sample
    subscription_board(daemon.segment).write(0, 1, SubscriptionRow("orders", "billing"))
    daemon.store(1, at.S_RECORDS_ACKED, 7)
    parse: Any = openmetrics_parser.text_string_to_metric_families
    families = parse(daemon.page(OPEN_METRICS))
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    assert found == parsed(daemon.page())
    names = {name.removesuffix("_bucket") for name, _ in found}
    assert names >= {metric.name for metric in METRICS}


def test_the_first_groups_of_kafka_have_series_and_all_others_one(daemon: Daemon) -> None:
    rows = kafka_group_board(daemon.segment)
    for slot in (0, SERIES_MAX - 1, SERIES_MAX, SERIES_MAX + 1):
        row = KafkaGroupRow(topic="t", group=f"g{slot}", partitions=2, lag=1 + slot)
        rows.write(slot, 1 + slot, row)
    daemon.words[at.G_GROUPS_UNPLACED], daemon.words[at.G_GROUPS_UNPLACED_LAG] = 3, 5
    for shard, word in ((0, at.S_KAFKA_CONNECTIONS), (3, at.S_KAFKA_CONNECTIONS),
                        (1, at.S_KAFKA_GROUPS)):  # fmt: skip
        daemon.store(shard, word, 2)
    name, samples = "headgate_kafka_group_lag_records", parsed(daemon.page())
    assert {labels: value for (of, labels), value in samples.items() if of == name} == {
        frozenset({("topic", topic), ("group", group)}): value
        for topic, group, value in (
            ("t", "g0", 1), ("t", f"g{SERIES_MAX - 1}", SERIES_MAX),
            (OTHERS, OTHERS, 2 * SERIES_MAX + 3 + 5),
        )
    }  # fmt: skip
    assert samples["headgate_kafka_connections", frozenset()] == 4
    assert samples["headgate_kafka_groups", frozenset()] == 2
    told = daemon.builder.document(NOW_NS).kafka
    assert told is not None and (told.pairs, told.lag) == (7, 3 * SERIES_MAX + 4 + 5)
    assert [each.group for each in told.first][:2] == [f"g{SERIES_MAX + 1}", f"g{SERIES_MAX}"]
    some = daemon.builder.document(NOW_NS, kafka_groups=rows.rows()[:1]).kafka
    assert some is not None and (some.pairs, some.lag) == (1, 1), "who may see some sees no others"
    scaled = daemon.builder.scaling(None).kafka_groups
    assert [(each.group, each.lag, each.partitions) for each in scaled][:1] == [("g0", 1, 2)]
    assert len(scaled) == 4


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html,application/xml;q=0.9,*/*;q=0.8", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/json", "text/plain; version=0.0.4; charset=utf-8"),
        (OPEN_METRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (PROMETHEUS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (
            "text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.1",
            "text/plain; version=0.0.4; charset=utf-8",
        ),
    ],
)
def test_accept_chooses_the_format(daemon: Daemon, accept: str, content_type: str) -> None:
    text = daemon.text(accept)
    assert text.content_type == content_type
    assert text.body.endswith(b"# EOF\n") == content_type.startswith("application")
    assert text.body.count(b"# EOF") <= 1


def test_values_are_the_shared_words(daemon: Daemon) -> None:
    daemon.store(2, at.S_RECORDS_ACKED, 11)
    daemon.store(3, at.S_HEAD, 5_000)
    daemon.store(3, at.S_COMMITTED, 3_000)
    daemon.store(3, at.S_HEARTBEAT_NS, NOW_NS - 250_000_000)
    daemon.store(3, at.S_CPU_NS, 1_500_000_000)
    daemon.store(0, at.S_PUTS, 5)
    daemon.store(1, at.S_PUTS, 6)
    daemon.words[at.G_WINDOW_NS] = 2_500_000
    daemon.groups.store(3, at.P_SPLITS, 4)  # of a group that is not one any more
    assert daemon.value("headgate_acked_records_total", shard="2") == 11
    assert daemon.value("headgate_ring_used_bytes", shard="3") == 2_000
    assert daemon.value("headgate_shard_heartbeat_age_seconds", shard="3") == 0.25
    assert daemon.value("headgate_shard_cpu_seconds_total", shard="3") == 1.5
    assert daemon.value("headgate_store_requests_total", operation="put") == 11
    assert daemon.value("headgate_commit_window_seconds") == 0.0025
    assert daemon.value("headgate_group_changes_total", change="split") == 4
    assert daemon.value("headgate_groups") == 1


def test_each_kind_of_alarm_has_a_series_whether_it_is_raised_or_not(daemon: Daemon) -> None:
    AlarmBoard(daemon.segment, 0).raise_(AlarmKind.FOREIGN_OBJECT, "a key", NOW_NS)
    raised = daemon.values("headgate_alarm_active", "alarm", NAMES)
    assert raised == [name == "foreign_object" for name in NAMES]
    assert daemon.value("headgate_ready") == 0


def test_pressure_is_that_of_the_level_of_each_sensor_and_of_each_rung(daemon: Daemon) -> None:
    daemon.words[at.G_PRESSURE_PPM] = 550_000
    daemon.words[at.G_HARD_PPM] = 125_000
    daemon.words[at.G_RUNGS] = 0b11
    for index in range(len(SENSORS)):
        daemon.words[at.sensor(index) + at.SENSOR_PPM] = 10_000 * (index + 1)
    assert daemon.value("headgate_pressure_ratio") == 0.55
    assert daemon.value("headgate_hard_pressure_ratio") == 0.125
    found = daemon.values("headgate_sensor_pressure_ratio", "sensor", (s.name for s in SENSORS))
    assert found == [(index + 1) / 100 for index in range(len(SENSORS))]
    rungs = daemon.values("headgate_rung_active", "rung", (rung.name for rung in RUNGS))
    assert rungs == [1, 1, 0, 0]


def test_memory_of_which_nothing_is_known_is_not_told_as_none(daemon: Daemon) -> None:
    name = "headgate_memory_left_bytes"
    assert not any(metric == name for metric, _ in parsed(daemon.page()))
    for word, left_bytes in ((1, 0), (5_001, 5_000)):
        daemon.words[at.G_MEMORY_LEFT_BYTES] = word
        assert [each for (metric, _), each in parsed(daemon.page()).items() if metric == name] == [
            left_bytes
        ]


def test_each_time_that_a_rung_comes_into_force_is_counted(daemon: Daemon) -> None:
    governor = Governor({})
    readings = [Reading(sensor.full) for sensor in SENSORS]
    idle = [Reading(sensor.zero) for sensor in SENSORS]
    for step in range(400):
        asked = readings if step % 200 < 100 else idle
        board.store(daemon.words, governor.sample(asked, 0.5, 10, step * 100_000_000), 0.5)
    found = daemon.values("headgate_rung_entered_total", "rung", (rung.name for rung in RUNGS))
    assert found == [2, 2, 2, 2]


def test_entries_that_wait_are_shown_by_band_over_all_shards(daemon: Daemon) -> None:
    for shard in (0, 2):
        for band in range(BANDS):
            daemon.store(shard, at.S_BANDS + band, band + 1)
        daemon.store(shard, at.S_DEFERRED, 3)
    found = daemon.values("headgate_ready_entries", "band", (str(band) for band in range(BANDS)))
    assert found == [2, 4, 6, 8, 10]
    assert daemon.value("headgate_deferred_entries") == 6


def test_topics_with_a_slot_have_a_series_each_and_all_others_one(daemon: Daemon) -> None:
    write_name(TOPICS, daemon.segment, 0, "orders:eu")
    for shard in (0, 3):
        first = daemon.segment.layout.topic_counts(shard)
        daemon.words[first : first + 4] = memoryview(array("Q", [1, 10, 2, 20]))
    assert daemon.value("headgate_topic_acked_records_total", topic="_other") == 2
    assert daemon.value("headgate_topic_acked_bytes_total", topic="_other") == 20
    assert daemon.value("headgate_topic_acked_records_total", topic="orders:eu") == 4
    assert daemon.value("headgate_topic_acked_bytes_total", topic="orders:eu") == 40
    assert not TOPIC_NAME.fullmatch(OTHERS)


def test_tokens_with_a_slot_have_series_each_and_all_others_one(daemon: Daemon) -> None:
    write_name(TOKENS, daemon.segment, 0, "shop")
    for shard in (0, 3):
        first = daemon.segment.layout.token_counts(shard)
        daemon.words[first : first + 8] = memoryview(array("Q", [1, 10, 100, 2, 3, 30, 300, 4]))
    for name, other, own in (
        ("requests", 2, 6), ("received_bytes", 20, 60), ("sent_bytes", 200, 600),
        ("refused_requests", 4, 8),
    ):  # fmt: skip
        assert daemon.value(f"headgate_token_{name}_total", token="_other") == other
        assert daemon.value(f"headgate_token_{name}_total", token="shop") == own


def test_the_first_subscriptions_have_series_each_and_all_others_one(daemon: Daemon) -> None:
    board_ = subscription_board(daemon.segment)
    last = at.SUBSCRIPTION_SLOTS - 1
    for slot in (0, SERIES_MAX - 1, SERIES_MAX, last):
        row = SubscriptionRow(
            "orders", f"s{slot}", lag=10, drainable_lag=8, consumers=1, consumer_max=2,
            oldest_unacknowledged_ms=slot, delivered=7, dropped=3,
        )  # fmt: skip
        board_.write(slot, slot + 1, row)

    def value(name: str, subscription: str, **labels: str) -> float:
        topic = OTHERS if subscription == OTHERS else "orders"
        return daemon.value(
            f"headgate_subscription_{name}", topic=topic, subscription=subscription, **labels
        )

    assert daemon.value("headgate_subscriptions") == 4
    assert [value("lag_records", each) for each in ("s0", "s127", OTHERS)] == [10, 10, 20]
    assert value("scaling_ratio", "s0") == 0.75
    with pytest.raises(KeyError):
        value("scaling_ratio", OTHERS)
    assert value("oldest_unacknowledged_seconds", OTHERS) == last / 1e3, "not a sum"
    assert value("delivered_messages_total", "s0") == 7
    assert value("outcomes_total", OTHERS, outcome="dropped") == 6
    assert value("running", OTHERS) == 1
    board_.write(last, last + 1, SubscriptionRow("orders", "x", RowPhase.HELD, "why"))
    assert value("running", OTHERS) == 0 and value("running", "s0") == 1
    assert daemon.value("headgate_subscriptions_held") == 1


def test_the_journal_of_a_shard_is_shown_as_the_share_that_is_used(daemon: Daemon) -> None:
    daemon.store(2, at.S_JOURNAL_HEAD, 100_000 + (16 << 10))
    daemon.store(2, at.S_JOURNAL_TAIL, 100_000)
    daemon.store(2, at.S_JOURNAL_WAITS, 3)
    assert daemon.value("headgate_journal_used_ratio", shard="2") == 0.25
    assert daemon.value("headgate_journal_waits_total", shard="2") == 3


def test_a_stage_is_a_histogram_over_all_shards_in_seconds(daemon: Daemon) -> None:
    for shard, after_ns in ((0, 3_000), (1, 3_000), (2, 5_000_000), (3, 10**15)):
        LatencyHistogram(daemon.segment, shard, Stage.PUT).observe(after_ns)
    found = parsed(daemon.page())

    def bucket(le: str) -> float:
        return found["headgate_stage_seconds_bucket", frozenset({("stage", "put"), ("le", le)})]

    assert [bucket(le) for le in ("0.000002", "0.000004", "0.004096", "0.008192", "+Inf")] == [
        0, 2, 2, 3, 4,
    ]  # fmt: skip
    assert daemon.value("headgate_stage_seconds_count", stage="put") == 4
    assert daemon.value("headgate_stage_seconds_sum", stage="put") == pytest.approx(1e6 + 0.005006)
    stages = {
        dict(labels)["stage"] for name, labels in found if name == "headgate_stage_seconds_sum"
    }
    assert stages == {stage.name.lower() for stage in Stage}


def test_the_bill_counts_the_supervisors_requests_too(daemon: Daemon) -> None:
    daemon.store(0, at.S_PUTS, 1_000_000)
    daemon.words[at.G_OWN_PUTS] = 1_000_000
    daemon.words[at.G_PER_SHARD_PUTS] = 9_000_000
    daemon.words[at.G_USD_PER_MONTH] = double(12.5)
    bill = daemon.builder.document(NOW_NS).bill
    assert bill.per_shard.usd > bill.usd or not bill.usd  # the embedded store is free
    assert daemon.value("headgate_store_requests_total", operation="put") == 2_000_000
    assert daemon.value("headgate_store_cost_usd_total") == bill.usd
    assert daemon.value("headgate_store_cost_usd_per_month") == 12.5
    assert daemon.value("headgate_store_cost_usd_per_gib") == (bill.usd_per_gib or 0)
    found = daemon.value("headgate_alternative_puts_total", uploading="per_shard")
    assert found == 10_000_000
    assert daemon.value("headgate_put_budget_usd_per_month") == 1_500
    daemon.words[at.G_BUDGET_USD] = 0
    assert not any(name.startswith("headgate_put_budget") for name, _ in parsed(daemon.page()))


def test_refusals_are_counted_by_their_code(daemon: Daemon) -> None:
    for shard in range(SHARDS):
        daemon.store(shard, at.S_REFUSED + RefusalReason.THROTTLED, 2)
    daemon.store(1, at.S_REFUSED + RefusalReason.DISK_FULL, 5)
    codes = {reason.name.lower(): 0 for reason in RefusalReason} | {"throttled": 8, "disk_full": 5}
    found = {code: daemon.value("headgate_refused_requests_total", code=code) for code in codes}
    assert found == codes


async def test_a_page_of_many_shards_lets_the_loop_do_other_things(daemon: Daemon) -> None:
    times = iter(range(0, 10**12, SLICE_NS // 4))  # each look at the clock is a quarter of a slice
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    await metrics.page(daemon.scrape(), "", lambda: next(times))
    other.cancel()
    assert turns >= len(METRICS) // 5


def test_the_number_of_series_is_bounded_by_shards_and_constants() -> None:
    counts = []
    for shards in (1, 2, 4):
        made = Daemon(shards)
        counts.append(len(parsed(made.page())))
        made.segment.close()
    per_shard = sum(metric.labels == ("shard",) for metric in METRICS)
    assert [count - counts[0] for count in counts] == [0, per_shard, 3 * per_shard]


def pushing(daemon: Daemon, slot: int, name: str) -> SenderWords:
    """A sender of a push subscription that has what it is granted."""
    subscription_board(daemon.segment).write(slot, slot + 1, SubscriptionRow("orders", name))
    PushBoard(daemon.segment).offer(slot, slot + 1, 100, 1)
    words = SenderWords(daemon.segment, 1, slot)
    words.join(slot + 1)
    grants = SlotGrants(daemon.segment, slot, slot + 1)
    grants.look()
    grants.grant(1, 80)
    words.follow()
    words.tell(LearnedRate(0, 60.0, None), 1)
    return words


def test_a_push_subscription_has_rates_attempts_and_latencies(daemon: Daemon) -> None:
    words = pushing(daemon, 3, "billing")
    words.use(0.5)
    for outcome, took_ns in ((0, 3_000_000), (0, 300_000), (7, 10_000_000_000)):
        words.began()
        words.ended(PushOutcome(outcome), took_ns, records=1 - min(outcome, 1))
    words.began()
    found = parsed(daemon.page())

    def value(name: str, **labels: str) -> float:
        own = {"topic": "orders", "subscription": "billing", **labels}
        return found[f"headgate_push_{name}", frozenset(own.items())]

    rates = [value(f"{name}_attempts_per_second") for name in ("allowed", "granted", "rate")]
    assert rates == [100, 80, 60] and value("use_ratio") == 0.5
    assert (value("mode"), value("senders"), value("in_flight_attempts")) == (0, 1, 1)
    assert value("attempts_total", outcome="delivered") == 2
    assert value("attempts_total", outcome="timed_out") == 1
    assert value("attempt_seconds_total") == pytest.approx(10.0033)
    assert value("delivered_records_total") == 2
    assert found["headgate_push_seconds_count", frozenset()] == 3
    assert found["headgate_push_seconds_bucket", frozenset({("le", "0.0005")})] == 1
    assert found["headgate_push_seconds_bucket", frozenset({("le", "0.004")})] == 2
    assert (daemon.value("headgate_push_subscriptions"), value("mode")) == (1, 0)


def test_push_subscriptions_without_series_of_their_own_are_together(daemon: Daemon) -> None:
    for slot in (SERIES_MAX, SERIES_MAX + 1):
        pushing(daemon, slot, str(slot)).tell(LearnedRate(2, 0.01, None), 1)
    found = parsed(daemon.page())
    others = frozenset({"topic": OTHERS, "subscription": OTHERS}.items())
    assert found["headgate_push_granted_attempts_per_second", others] == 160
    assert found["headgate_push_mode", others] == 2
    assert daemon.value("headgate_push_subscriptions_slow") == 2


def test_the_number_of_series_of_subscriptions_is_bounded(daemon: Daemon) -> None:
    board_ = subscription_board(daemon.segment)
    without = len(series(daemon.builder.subscriptions()))
    for slot in range(at.SUBSCRIPTION_SLOTS):
        board_.write(slot, slot + 1, SubscriptionRow("orders", str(slot)))
    assert len(series(daemon.builder.subscriptions())) == without + SERIES_MAX
