"""OTLP's logs over gRPC: OpenTelemetry's exporter, ``headgate otlp`` as a process, and a daemon."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

from commands.running.otlp_server import DETAILS, SERVICE, retry_details
from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_for_heartbeats, wait_until
from tests.e2e.wire import full_ring

EXPORT = f"/{SERVICE}/Export"


@contextmanager
def forwarding(daemon: Daemon, topic: str) -> Iterator[str]:
    """The address of ``headgate otlp``, which ends with code 0 when it is told to."""
    command = [sys.executable, "-m", "cli", "otlp", topic, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--url", daemon.url], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.match(r"OTLP over gRPC on (127\.0\.0\.1:\d+), for topic", line)
            assert found is not None, line + process.stderr.read()
            yield found[1]
            process.terminate()
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()


def request(text: str) -> ExportLogsServiceRequest:
    made = ExportLogsServiceRequest()
    made.resource_logs.add().scope_logs.add().log_records.add().body.string_value = text
    return made


def export(
    address: str, what: ExportLogsServiceRequest | bytes, token: str = ""
) -> tuple[str, str, dict[str, bytes]]:
    """The status, its text and what comes with it."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    data = what if isinstance(what, bytes) else what.SerializeToString()
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            EXPORT, response_deserializer=ExportLogsServiceResponse.FromString
        )
        try:
            call(data, timeout=HANG_S, metadata=metadata)
        except grpc.RpcError as error:
            more = dict(error.trailing_metadata() or ())
            return error.code().name, error.details() or "", more
    return "OK", "", {}


def test_opentelemetrys_exporter_appends_log_records(daemon: Daemon, topic: str) -> None:
    with forwarding(daemon, topic) as address:
        provider = LoggerProvider()
        exporter = OTLPLogExporter(
            f"http://{address}", insecure=True, compression=grpc.Compression.Gzip, timeout=HANG_S
        )
        provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        for number in range(3):
            provider.get_logger("app").emit(body={"n": number}, timestamp=1_790_000_000_000_000_000)
        provider.shutdown()
        assert [each["data"]["body"]["n"] for each in daemon.read_all(topic)] == [0, 1, 2]
        status, text, _ = export(address, b"\xff\xff")
        assert status == "INVALID_ARGUMENT" and "ExportLogsServiceRequest" in text
    assert len(daemon.read_all(topic)) == 3


def test_what_is_refused_for_now_is_unavailable_and_says_when_to_repeat(
    tmp_path: Path, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The exporter gives up after five seconds of refusals, which a slow machine may need.
    monkeypatch.setattr("opentelemetry.exporter.otlp.proto.grpc.exporter._MAX_RETRYS", 60)
    file = TokenFile(tmp_path / "tokens.json")
    _, token = file.issue("full", list(Scope))
    settings: dict[str, object] = {
        "ring_bytes": 65536, "object_bytes_target": 16384, "body_bytes_max": 16384,
        "auth_file": file.path,
    }  # fmt: skip
    with ExitStack() as stack:
        daemon = stack.enter_context(
            running(tmp_path / "data", settings=settings, token=token, listen=listen)
        )  # fmt: skip
        assert daemon.json("PUT", "/v0/topics/logs").status == 201
        address = stack.enter_context(forwarding(daemon, "logs"))
        assert export(address, request("x"))[0] == "UNAUTHENTICATED"
        assert export(address, request("1"), token) == ("OK", "", {})
        with full_ring(daemon, "logs", f"Authorization: Bearer {token}"):
            status, text, more = export(address, request("x"), token)
            assert status == "UNAVAILABLE"
            (delay,) = re.findall(rb"\x08(.)$", more[DETAILS])
            assert more[DETAILS] == retry_details(14, text, delay[0]) and delay[0] > 0
        with ThreadPoolExecutor(1) as threads:  # the exporter repeats it
            with full_ring(daemon, "logs", f"Authorization: Bearer {token}"):
                wait_for_heartbeats(daemon)  # what filled the ring is counted
                seen = rejected(daemon)
                sent = threads.submit(emit, address, token)
                wait_until(lambda: rejected(daemon) > seen, "the exporter to be refused")
            sent.result()
        found = [each["data"]["body"] for each in daemon.read_all("logs")]
        assert found == ["1", "again"]
        daemon.stop()
        status, text, more = export(address, request("x"), token)
        assert status == "UNAVAILABLE" and "no answer from" in text and DETAILS in more


def rejected(daemon: Daemon) -> int:
    return int(daemon.status()["totals"]["rejected"])


def emit(address: str, token: str) -> None:
    provider = LoggerProvider()
    exporter = OTLPLogExporter(
        f"http://{address}", insecure=True, headers=(("authorization", f"Bearer {token}"),),
        timeout=HANG_S,
    )  # fmt: skip
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider.get_logger("app").emit(body="again")
    provider.shutdown()


def test_a_retry_info_is_what_google_defines() -> None:
    found = status_pb2.Status.FromString(retry_details(14, "m", 300))
    assert (found.code, found.message) == (14, "m")
    retry = error_details_pb2.RetryInfo()
    assert found.details[0].Unpack(retry) and retry.retry_delay.seconds == 300
