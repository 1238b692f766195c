"""Real senders of other formats: Elasticsearch's client, and OpenTelemetry's exporter."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch, helpers
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

from tests.e2e.daemon import Daemon


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
