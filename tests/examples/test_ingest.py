"""examples/ingest: the programs are run; the agents' configurations are sent as the agents would.

Vector and Fluent Bit are not run here (``tests/e2e/agents.py`` says why). The tests parse their
files, read from them every setting that decides what goes over the wire, and send such a request.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import EVENTS, VECTOR_COMPRESSIONS, fluent_bit, lines_of, vector
from tests.e2e.daemon import ROOT, Daemon
from tests.e2e.wire import Wire

INGEST = ROOT / "examples" / "ingest"
SAMPLES = ROOT / "examples" / "orders.ndjson"
GUIDE = (ROOT / "docs" / "producers.md").read_text()
DAEMON = "http://127.0.0.1:7440"


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Daemon:
    """A daemon for all examples; each writes to topics of its own."""
    return shared_daemon


def run(*command: str, **environ: str) -> str:
    """What a program printed; it must end with 0."""
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_writes_json_lines_and_bytes_and_repeats_are_stored_once(daemon: Daemon) -> None:
    for _ in range(2):
        answers = run("sh", str(INGEST / "curl.sh"), HEADGATE_URL=daemon.url).splitlines()
        assert [json.loads(answer)["count"] for answer in answers] == [1, 2, 1]
    orders = daemon.read_all("orders")
    assert [record["key"] for record in orders] == ["A-1", "A-1", "A-2", "A-1", "A-2"]
    assert [r["data_b64"] for r in daemon.read_all("pictures")] == ["iVBORw=="] * 2


def test_python_writes_each_line_of_a_file_once(daemon: Daemon) -> None:
    lines = SAMPLES.read_text().splitlines()
    for _ in range(2):
        printed = run(
            sys.executable, str(INGEST / "produce.py"), "python", str(SAMPLES), daemon.url
        )
        assert printed == f"{len(lines)} records, the last one has offset {len(lines)}\n"
    assert [r["data"] for r in daemon.read_all("python")] == [json.loads(line) for line in lines]


@pytest.mark.slow
def test_import_stores_the_files_of_a_folder_once(daemon: Daemon, tmp_path: Path) -> None:
    lines = SAMPLES.read_bytes()
    (tmp_path / "a.ndjson").write_bytes(lines)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(lines + b"{half\n"))
    command = f"{sys.executable} -m cli"
    for _ in range(2):
        run("sh", str(INGEST / "import.sh"), str(tmp_path), HEADGATE_URL=daemon.url,
            HEADGATE=command, PYTHONPATH=str(ROOT))  # fmt: skip
    samples = [json.loads(line) for line in lines.splitlines()]
    paid = [each for each in samples if each["status"] == "paid"]
    imported = [record["data"] for record in daemon.read_all("imported")]
    assert sorted(map(str, imported)) == sorted(map(str, [*samples, *samples]))
    assert len(daemon.read_all("imported-paid")) == 2 * len(paid) > 0
    assert [r["data"]["text"] for r in daemon.read_all("imported-invalid")] == ["{half"]


class Refusing(BaseHTTPRequestHandler):
    """Answers 503 first, then ends a connection without an answer, then stores."""

    requests: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, body))
        if len(self.requests) == 2:
            self.close_connection = True
            return
        self.send_response(503 if len(self.requests) == 1 else 200)
        self.send_header("Retry-After", "0")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b'{"last_seq": 1}')

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def test_python_sends_a_batch_again_after_503_and_after_a_lost_answer(tmp_path: Path) -> None:
    file = tmp_path / "one.ndjson"
    file.write_text('{"n": 1}\n')
    requests: list[tuple[str, bytes]] = []
    handler = type("Handler", (Refusing,), {"requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            printed = run(sys.executable, str(INGEST / "produce.py"), "t", str(file), url)
        finally:
            server.shutdown()
            thread.join()
    assert printed == "1 records, the last one has offset 1\n"
    assert requests == [("/v0/topics/t?idempotency_key=one.ndjson%3A0", b'{"n": 1}\n')] * 3


def test_vectors_configuration_writes_one_record_per_event_once(daemon: Daemon) -> None:
    file = tomllib.loads((INGEST / "vector.toml").read_text())
    sink = file["sinks"]["headgate"]
    assert sink["type"] == "http" and sink["method"] == "post"
    assert sink["inputs"] == list(file["sources"])
    assert (sink["encoding"]["codec"], sink["framing"]["method"]) == ("json", "newline_delimited")
    encoding, compress = VECTOR_COMPRESSIONS[sink["compression"]]
    body = b"\n".join(lines_of(EVENTS)) + b"\n"
    request = vector(
        sink["uri"].removeprefix(DAEMON), compress(body), "application/x-ndjson", encoding
    )
    with Wire(daemon.port) as wire:
        answers = [wire.ask(request), wire.ask(request)]
    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.json["deduped"] for answer in answers] == [False, True]
    keys = [(r["data"], r["key"]) for r in daemon.read_all("logs")]
    assert keys == [(event, event["host"]) for event in EVENTS]
    assert daemon.get(sink["healthcheck"]["uri"].removeprefix(DAEMON)).status == 200


def test_vectors_settings_are_those_of_the_guide() -> None:
    example = tomllib.loads((INGEST / "vector.toml").read_text())["sinks"]["headgate"]
    guide = tomllib.loads(GUIDE.split("```toml\n")[1].split("```")[0])["sinks"]["headgate"]
    differing = {"inputs", "framing"}  # the example sends lines, which the guide has as a variant
    assert {k: v for k, v in example.items() if k not in differing} == {
        k: v for k, v in guide.items() if k not in differing
    }


def fluent_bit_sections(text: str) -> dict[str, dict[str, str]]:
    """A classic configuration: [SECTION] lines, then `key value` lines."""
    sections: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        if words[0].startswith("["):
            settings = sections.setdefault(words[0].strip("[]"), {})
        else:
            settings[words[0]] = words[1].strip()
    return sections


def test_fluent_bits_configuration_writes_one_record_per_event_once(daemon: Daemon) -> None:
    output = fluent_bit_sections((INGEST / "fluent-bit.conf").read_text())["OUTPUT"]
    assert (output["name"], output["format"]) == ("http", "json_lines")
    assert output["compress"] == "gzip"
    assert f"http://{output['host']}:{output['port']}" == DAEMON
    events = [{output["json_date_key"]: "2025-11-02T10:15:00.123456Z", **event} for event in EVENTS]
    body = gzip.compress(b"\n".join(lines_of(events)) + b"\n", mtime=0)
    topic = output["uri"].replace("/topics/logs", "/topics/fluent-bit")
    request = fluent_bit(topic, body, "application/x-ndjson", "gzip")
    with Wire(daemon.port) as wire:
        answers = [wire.ask(request), wire.ask(request)]
    assert [(answer.status, answer.json["deduped"]) for answer in answers] == [
        (200, False), (200, True),
    ]  # fmt: skip
    assert [r["data"] for r in daemon.read_all("fluent-bit")] == events


def test_fluent_bits_settings_are_those_of_the_guide() -> None:
    example = fluent_bit_sections((INGEST / "fluent-bit.conf").read_text())["OUTPUT"]
    guide = fluent_bit_sections(GUIDE.split("```ini\n")[1].split("```")[0])["OUTPUT"]
    assert example == {**guide, "format": "json_lines"}
