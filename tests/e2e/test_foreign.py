"""Real senders of other formats: Elasticsearch's client, OpenTelemetry's exporter, and an HTTP
client that repeats with an event of the CloudEvents SDK."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import urllib3
from cloudevents.core.bindings.http import to_binary_event
from cloudevents.core.v1.event import CloudEvent
from elasticsearch import Elasticsearch, helpers
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import HANG_S, Answer, Daemon, ask, running, wait_for_heartbeats, wait_until
from tests.e2e.wire import full_ring

LINES = "application/x-ndjson"
RETRIES = 60  # a second apart
LOGS = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}'


class Guarded(NamedTuple):
    """A daemon with tokens and a small ring; it creates no topics for producers."""

    daemon: Daemon
    full: str
    limited: str

    def ask(self, path: str, body: bytes, content_type: str, token: str) -> Answer:
        fields = {"Content-Type": content_type}
        if token:
            fields["Authorization"] = f"Bearer {token}"
        return ask(self.daemon.port, "POST", path, body, fields)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    file = TokenFile(tmp_path_factory.mktemp("auth") / "tokens.json")
    _, full = file.issue("full", list(Scope))
    _, limited = file.issue("limited", [Scope.PRODUCE], ["mine"])
    settings = {
        "ring_bytes": 65536, "object_bytes_target": 16384, "body_bytes_max": 16384,
        "auto_create_topics": "false", "auth_file": file.path,
    }  # fmt: skip
    with running(tmp_path_factory.mktemp("data"), settings=settings, token=full) as daemon:
        for name in ("mine", "secrets"):
            assert daemon.json("PUT", f"/v0/topics/{name}").status == 201
        capped = {"cap_records": 1, "discard": "reject"}
        assert daemon.json("PUT", "/v0/topics/capped", capped).status == 201
        yield Guarded(daemon, full, limited)


def test_an_elasticsearch_client_appends_to_several_topics(daemon: Daemon) -> None:
    with Elasticsearch(f"{daemon.url}/v0/elastic", http_compress=True) as client:
        assert client.ping() and client.info()["version"]["number"]
        actions = [{"_index": f"es-{n % 2}", "_id": str(n), "n": n} for n in range(10)]
        assert helpers.bulk(client, actions) == (10, [])
    found = [(each["key"], each["data"]["n"]) for each in daemon.read_all("es-1")]
    assert found == [(str(n), n) for n in range(1, 10, 2)]


def test_what_a_topic_cannot_do_is_the_error_of_its_item_alone(daemon: Daemon) -> None:
    operations: list[Any] = [
        {"delete": {"_index": "es-items", "_id": "1"}},
        {"index": {"_index": "es-items"}}, {"a": 1},
        {"update": {"_index": "es-items", "_id": "1"}}, {"doc": {}},
        {"create": {"_index": ".bad"}}, {"b": 1},
    ]  # fmt: skip
    with Elasticsearch(f"{daemon.url}/v0/elastic") as client:
        answer = client.bulk(operations=operations)
    items = [next(iter(item.items())) for item in answer["items"]]
    assert answer["errors"]
    assert [(name, item["status"]) for name, item in items] == [
        ("delete", 400), ("index", 201), ("update", 400), ("create", 400),
    ]  # fmt: skip
    assert [each["data"] for each in daemon.read_all("es-items")] == [{"a": 1}]


def test_opentelemetrys_exporter_appends_log_records(daemon: Daemon) -> None:
    provider = LoggerProvider()
    exporter = OTLPLogExporter(f"{daemon.url}/v0/otlp/otel/v1/logs", compression=Compression.Gzip)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider.get_logger("app").emit(
        timestamp=1_790_000_000_123_456_789,
        body={"a": [1, None, b"x"]},
        severity_number=SeverityNumber.INFO,
        attributes={"ratio": 1.5},
    )
    provider.shutdown()
    (record,) = daemon.read_all("otel")
    data = record["data"]
    assert record["ts"] == 1_790_000_000_123
    assert data["timeUnixNano"] == "1790000000123456789" and data["severityNumber"] == 9
    assert data["body"] == {"a": [1, None, "eA=="]} and data["attributes"] == {"ratio": 1.5}
    assert data["scope"] == {"name": "app"}
    assert data["resource"]["attributes"]["telemetry.sdk.language"] == "python"


def test_a_body_that_is_no_otlp_is_refused_with_a_status(daemon: Daemon) -> None:
    kind = {"Content-Type": "application/x-protobuf"}
    answer = daemon.ask("POST", "/v0/otlp/otel-bad/v1/logs", b"\xff\xff", **kind)
    assert answer.status == 400 and b"ExportLogsServiceRequest" in answer.body
    assert answer.body[:1] == b"\x12"
    assert daemon.get("/v0/topics/otel-bad").status == 404


def bulk(*topics: str) -> bytes:
    return b"".join(b'{"index":{"_index":"%b"}}\n{"a":1}\n' % name.encode() for name in topics)


def statuses(answer: Any) -> list[int]:
    """Of the items."""
    return [item["status"] for each in answer["items"] for item in each.values()]


def test_tokens_hold_for_each_topic_of_a_foreign_request(guarded: Guarded) -> None:
    at, logs = "/v0/elastic/_bulk", "/v0/otlp/secrets/v1/logs"
    for token in ("", "hg_x"):
        assert guarded.ask(at, bulk("mine"), LINES, token).status == 401
        assert guarded.ask(logs, LOGS, "application/json", token).status == 401
    answer = guarded.ask(at, bulk("secrets", "mine", "nothing"), LINES, guarded.limited)
    assert answer.status == 200 and statuses(answer.json) == [403, 201, 403]
    errors = [each["index"].get("error") for each in answer.json["items"]]
    assert str(errors[0]).replace("secrets", "nothing") == str(errors[2]), "it tells nothing"
    assert guarded.ask(logs, LOGS, "application/json", guarded.limited).status == 403
    answer = guarded.ask("/v0/elastic/secrets/_bulk", bulk("mine"), LINES, guarded.limited)
    assert answer.status == 403
    assert guarded.daemon.read_all("secrets") == []


def test_topics_that_are_full_or_missing_refuse_what_is_for_them(guarded: Guarded) -> None:
    answer = guarded.ask("/v0/elastic/_bulk", bulk("capped", "nothing"), LINES, guarded.full)
    assert statuses(answer.json) == [201, 404]
    answer = guarded.ask("/v0/elastic/_bulk", bulk("capped"), LINES, guarded.full)
    assert statuses(answer.json) == [422]
    for topic, status in (("capped", 422), ("nothing", 404)):
        path = f"/v0/otlp/{topic}/v1/logs"
        answer = guarded.ask(path, LOGS, "application/json", guarded.full)
        assert answer.status == status and topic in answer.json["message"]
    assert len(guarded.daemon.read_all("capped")) == 1


def test_senders_repeat_what_is_refused_for_now_and_it_is_stored_once(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, bearer = guarded.daemon, f"Bearer {guarded.full}"
    # Each gives up after a few seconds of refusals, which a slow machine may need.
    monkeypatch.setattr("opentelemetry.exporter.otlp.common.http._MAX_RETRIES", RETRIES)
    before = len(daemon.read_all("mine"))

    def refused() -> int:
        return int(daemon.status()["totals"]["rejected"])

    def elastic() -> list[tuple[bool, Any]]:
        url = f"{daemon.url}/v0/elastic"
        headers = {"Authorization": bearer}
        with Elasticsearch(url, headers=headers, retry_on_status=()) as client:
            actions = [{"_index": "mine", "n": n} for n in range(10)]
            return list(helpers.streaming_bulk(client, actions, max_retries=9, initial_backoff=0.2))

    def otlp() -> None:
        provider = LoggerProvider()
        url = f"{daemon.url}/v0/otlp/mine/v1/logs"
        exporter = OTLPLogExporter(url, headers={"Authorization": bearer}, timeout=HANG_S)
        provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        provider.get_logger("app").emit(body="x")
        provider.shutdown()

    def event() -> int:
        about = {"id": "A-1", "source": "/shop", "type": "order.placed", "specversion": "1.0",
                 "datacontenttype": "application/json"}  # fmt: skip
        sent = to_binary_event(CloudEvent(about, {"event": 1}))
        again = urllib3.Retry(RETRIES, status_forcelist=(429, 503), allowed_methods=None)
        with urllib3.PoolManager(retries=again) as pool:
            headers = {**sent.headers, "Authorization": bearer}
            url = f"{daemon.url}/v0/hooks/mine"
            return pool.request("POST", url, body=sent.body, headers=headers).status

    with ThreadPoolExecutor(3) as threads:
        with full_ring(daemon, "mine", f"Authorization: {bearer}"):
            wait_for_heartbeats(daemon)  # what filled the ring is counted
            seen = refused()
            bulk, logs = threads.submit(elastic), threads.submit(otlp)
            events = threads.submit(event)
            wait_until(lambda: refused() >= seen + 3, "all to be refused")
            assert len(daemon.read_all("mine")) == before
        assert [ok for ok, _ in bulk.result()] == [True] * 10
        logs.result()
        assert events.result() == 200
    found = [each["data"] for each in daemon.read_all("mine")[before:]]
    assert sorted(each["n"] for each in found if "n" in each) == list(range(10))
    assert [each["body"] for each in found if "body" in each] == ["x"]
    assert [each["event"] for each in found if "event" in each] == [1]
