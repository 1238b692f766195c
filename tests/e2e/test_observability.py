"""The dashboard and the alert rules name metrics and labels that a daemon has, and only those."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import strictyaml
from confluent_kafka import Consumer, TopicPartition
from prometheus_client import parser

from daemon.alarms.alarms import MEANINGS
from daemon.api.figures.metric_table import METRICS
from shards.latency import Stage
from tests.e2e.daemon import ROOT, Daemon, wait_until
from tests.e2e.kafka import bootstrap, kafka_daemon
from tests.e2e.secured import Authority
from tests.e2e.streams import WatchLine
from tests.promql import Selector, named_in

FOLDER = ROOT / "docs" / "observability"
DASHBOARD: Any = json.loads((FOLDER / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: Any = strictyaml.load((FOLDER / "alerts.yaml").read_text()).data["groups"][0]["rules"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
MONITORING = OPERATIONS.split("\n## Monitoring\n")[1].split("\n## ")[0]
SHARDS = 2
RECORDS = 81
ACKNOWLEDGED = 50
TARGET_LABELS = {"job", "instance"}  # that Prometheus adds
SUFFIXES = ("_bucket", "_count", "_sum")  # of a histogram


class Scraped(NamedTuple):
    """A metric of a real answer: its labels with the values of each, and its own values."""

    values: dict[str, set[str]]
    samples: list[float]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scraped]]:
    """What a daemon answers that has been written to, read, watched, subscribed to and given a
    budget and a certificate."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    settings = {
        "put_budget_usd_per_month": 1_000,
        "store_class": "standard",
        **authority.settings,
    }
    with kafka_daemon(tmp_path_factory.mktemp("data"), shards=SHARDS, settings=settings) as daemon:
        yield work(daemon, authority)


def work(daemon: Daemon, authority: Authority) -> dict[str, Scraped]:
    assert daemon.produce("t", 0).status == 200
    assert daemon.json("PUT", "/v0/topics/t/subscriptions/s", {}).status == 201
    with WatchLine(daemon, "/v0/topics/t/watch") as watching:
        for number in range(1, RECORDS):
            assert daemon.produce("t", number).status == 200
        watching.read_until(lambda: len(watching.records) == RECORDS - 1)
        daemon.read_all("t")
        consume(daemon)
        commit(daemon, authority)

        def counted() -> dict[str, Scraped] | None:
            latency = daemon.status()["latency"]
            found = scrape(daemon)
            sums = [
                sum(found[f"headgate_{name}"].samples)
                for name in ("topic_acked_records_total", "acked_records_total", "shard_ready",
                             "subscription_lag_records")
            ]  # fmt: skip
            counts = [latency[stage.name.lower()]["count"] for stage in Stage]
            is_all = sums == [RECORDS, RECORDS, SHARDS, RECORDS - ACKNOWLEDGED] and all(counts)
            return found if is_all and "headgate_kafka_group_lag_records" in found else None

        found = wait_until(counted, "each stage, topic and subscription to be counted")
        assert found is not None
        return found


def consume(daemon: Daemon) -> None:
    """A consumer of the subscription acknowledges some of the records."""
    path = "/v0/topics/t/subscriptions/s"
    left = ACKNOWLEDGED
    while left:  # a poll is answered with what there is
        polled = daemon.get(f"{path}/consume?consumer=c&max={left}&wait_ms=20000").json
        batch = {"consumer": "c", "batch": polled["epoch"]}
        acknowledged = daemon.json("POST", f"{path}/ack", batch)
        assert acknowledged.json["accepted"] == len(polled["messages"]) > 0, acknowledged.body
        left -= len(polled["messages"])


def commit(daemon: Daemon, authority: Authority) -> None:
    """A consumer group of Kafka commits an offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(daemon), "group.id": "g", "security.protocol": "SSL",
            "ssl.ca.location": str(authority.file),
        }
    )  # fmt: skip
    with contextlib.closing(consumer):
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)


def scrape(daemon: Daemon) -> dict[str, Scraped]:
    answer = daemon.get("/metrics")
    assert answer.status == 200
    parse: Any = parser.text_string_to_metric_families
    found: dict[str, Scraped] = {}
    for family in parse(answer.body.decode()):
        for sample in family.samples:
            metric = found.setdefault(sample.name, Scraped({}, []))
            metric.samples.append(sample.value)
            for label, value in sample.labels.items():
                metric.values.setdefault(label, set()).add(value)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Where it is, and the expression with the dashboard's variables filled in."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], filled(target["expr"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["definition"] == variable["query"]["query"]
            yield variable["name"], filled(variable["definition"])
    for rule in RULES:
        yield rule["alert"], filled(rule["expr"])


def filled(text: str) -> str:
    return text.replace("$__rate_interval", "5m")


def problems(where: str, text: str, scraped: dict[str, Scraped]) -> Iterator[str]:
    """What an expression names that is not there."""
    named = named_in(text)
    known = set(TARGET_LABELS)
    for selector in named.selectors:
        if selector.metric in {"up", "job", "instance"}:  # the last two in label_values
            continue
        metric = scraped.get(selector.metric)
        if metric is None:
            yield f"{where}: no metric {selector.metric}"
            continue
        known |= metric.values.keys()
        yield from _wrong_conditions(where, selector, metric)
    yield from (f"{where}: no label {label}" for label in named.labels if label not in known)


def _wrong_conditions(where: str, selector: Selector, metric: Scraped) -> Iterator[str]:
    for label, operator, value in selector.matchers:
        if label in TARGET_LABELS:
            continue
        if label not in metric.values:
            yield f"{where}: {selector.metric} has no label {label}"
            continue
        values = value.split("|") if operator in {"=~", "!~"} else [value]
        yield from (
            f"{where}: {selector.metric} has no {label} {each}"
            for each in values
            if each not in metric.values[label]
        )


def test_whichever_shard_answers_tells_of_all_shards(scraped: dict[str, Scraped]) -> None:
    records = scraped["headgate_acked_records_total"]
    assert records.values == {"shard": {"0", "1"}} and sum(records.samples) == RECORDS
    assert sum(scraped["headgate_topic_acked_records_total"].samples) == RECORDS
    assert scraped["headgate_topic_acked_records_total"].values["topic"] == {"_other", "t"}
    assert sum(scraped["headgate_shard_ready"].samples) == 2
    lag = scraped["headgate_subscription_lag_records"]
    assert lag.values == {"topic": {"_other", "t"}, "subscription": {"_other", "s"}}
    assert sum(lag.samples) == RECORDS - ACKNOWLEDGED
    assert sum(scraped["headgate_stage_seconds_count"].samples) > RECORDS


def test_every_metric_and_label_that_is_named_exists(scraped: dict[str, Scraped]) -> None:
    named = [*expressions()]
    assert len(named) > 80
    found = [each for where, text in named for each in problems(where, text, scraped)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("headgate_acked_total", "no metric headgate_acked_total"),
        ('headgate_alarm_active{alarm="store_fails"}', "no alarm store_fails"),
        ('headgate_ready{shard="0"}', "headgate_ready has no label shard"),
        ("sum by (client) (headgate_ready)", "no label client"),
        ('headgate_stage_seconds_sum{stage=~"put|pushed"}', "no stage pushed"),
    ],
)
def test_a_name_that_does_not_exist_is_noticed(
    scraped: dict[str, Scraped], text: str, says: str
) -> None:
    assert [each for each in problems("x", text, scraped) if says in each]


def test_what_is_shown_and_what_alerts_uses_every_metric(scraped: dict[str, Scraped]) -> None:
    used = {selector.metric for _, text in expressions() for selector in named_in(text).selectors}
    plain = {metric.removesuffix(suffix) for metric in used for suffix in SUFFIXES} | used
    assert {metric.name for metric in METRICS} - plain == {"headgate_incarnation"}
    # And a daemon that has done some work has a value of each.
    have = {name.removesuffix(suffix) for name in scraped for suffix in SUFFIXES} | set(scraped)
    assert {metric.name for metric in METRICS} <= have


def test_labels_in_legends_and_texts_are_labels_of_the_expression(
    scraped: dict[str, Scraped],
) -> None:
    texts = [
        (target["expr"], re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for panel in PANELS
        for target in panel["targets"]
    ] + [
        (rule["expr"], re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        for rule in RULES
    ]
    for text, labels in texts:
        named = named_in(filled(text))
        by = set(named.labels)
        for selector in named.selectors:
            if not by and selector.metric in scraped:
                by |= scraped[selector.metric].values.keys()
        assert set(labels) <= by | (set() if "sum(" in text else TARGET_LABELS), text


def test_each_panel_and_query_uses_the_variable_of_the_data_source() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in PANELS:
        assert panel["datasource"] == source, panel["title"]
        assert all(target["datasource"] == source for target in panel["targets"])
        assert all("$instance" in target["expr"] for target in panel["targets"])
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows[:4] == ["Overview", "Producers", "Latency by stage", "Pressure and its effects"]
    cells = [
        (panel["gridPos"]["y"] + y, panel["gridPos"]["x"] + x)
        for panel in DASHBOARD["panels"]
        for y in range(panel["gridPos"]["h"])
        for x in range(panel["gridPos"]["w"])
    ]
    assert len(set(cells)) == len(cells), "no panel covers another"


def test_each_rule_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Headgate([A-Z][a-z]+)+", rule["alert"])
        assert re.fullmatch(r"[1-9][0-9]*[smh]", rule.get("for", "1m"))
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        notes = rule["annotations"]
        assert notes.keys() == {"watches", "summary", "description", "action"}
        assert all(len(text) > 20 for key, text in notes.items() if key != "watches"), rule["alert"]
        assert notes["description"].endswith(".") and notes["action"].endswith(".")


def test_the_rules_are_those_that_the_page_of_operations_asks_for() -> None:
    pattern = r"^\| (?:<a id=\S+></a>)?`([a-z_.\[\]]+)` \|"
    rows = set(re.findall(pattern, MONITORING, re.MULTILINE)) - {"alarms"}
    watched = {rule["annotations"]["watches"] for rule in RULES}
    assert watched == rows | {meaning.name for meaning in MEANINGS.values()}
