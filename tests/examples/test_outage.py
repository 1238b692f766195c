"""Agents and HTTP clients, each as it is, through a minute in which the store fails.

syslog-ng, rsyslog and collectd run the configurations of ``examples/ingest``. The HTTP clients are
those of other languages than Python's: curl, Node's ``fetch`` and Perl's ``HTTP::Tiny``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.kafka import bootstrap, kafka_daemon
from tests.e2e.packages import download
from tests.e2e.proxy import Fault, store_proxy
from tests.e2e.stores import on_s3
from tests.examples.test_ingest import INGEST
from tests.examples.test_proxies import program, replaced
from tests.examples.test_syslog_ng import syslog_ng
from tests.minio import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.s3]

OUTAGE_MS, STEP_MS = 60_000, 500  # how long it is, and between two numbers that are sent
# Each sends the numbers that it reads, a request for each, again and again until it is stored, as
# docs/producers.md says that a producer should.
CURL = """
while read -r n; do
  body="{\\"idempotency_key\\": \\"curl-$n\\", \\"records\\": [{\\"data\\": $n}]}"
  curl -s --fail-with-body --retry 1000 --retry-all-errors --retry-max-time 0 \\
    -H 'Content-Type: application/json' -d "$body" "$1" >/dev/null || exit 1
done
"""
NODE = """
const send = async (url, n) => {
  const body = JSON.stringify({ idempotency_key: `node-${n}`, records: [{ data: n }] });
  for (;;) {
    let wait = 1;
    try {
      const headers = { "Content-Type": "application/json" };
      const answer = await fetch(url, { method: "POST", headers, body });
      await answer.text();
      if (answer.ok) return;
      if (![429, 502, 503, 504].includes(answer.status)) process.exit(1);
      wait = Number(answer.headers.get("Retry-After") ?? 1);
    } catch { /* no answer: the outcome is unknown */ }
    await new Promise((done) => setTimeout(done, wait * 1e3));
  }
};
const lines = require("readline").createInterface({ input: process.stdin });
(async () => { for await (const line of lines) await send(process.argv[2], Number(line)); })();
"""
PERL = """
use strict; use HTTP::Tiny;
my $http = HTTP::Tiny->new(timeout => 60);
while (my $n = <STDIN>) {
  chomp $n;
  my $body = qq({"idempotency_key": "perl-$n", "records": [{"data": $n}]});
  for (;;) {
    my $answer = $http->post($ARGV[0],
      { headers => { "Content-Type" => "application/json" }, content => $body });
    last if $answer->{success};
    # 599: no answer
    exit 1 unless grep { $_ == $answer->{status} } 429, 502, 503, 504, 599;
    sleep($answer->{headers}{"retry-after"} // 1);
  }
}
"""


@contextmanager
def ended(*command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that goes on until the end, when SIGTERM ends it."""
    with subprocess.Popen(command, text=True, **more) as process:
        try:
            yield process
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        finally:
            process.terminate()


def unpacked(folder: Path, *packages: str) -> Path:
    """The files of Debian packages, for some that cannot be installed: of rsyslog and syslog-ng
    a machine has one."""
    folder.mkdir()
    download(["apt-get", "-q", "download", *packages], folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    return folder / "usr"


@contextmanager
def rsyslog(folder: Path, servers: str) -> Iterator[None]:
    """The agent with the example's configuration: other folders, another address."""
    own = ("rsyslog", "rsyslog-kafka", "libestr0", "libfastjson4", "liblognorm5")
    usr = unpacked(folder / "packages", *own)
    (modules,) = usr.glob("lib/*/rsyslog")
    text = replaced(
        (INGEST / "rsyslog.conf").read_text(),
        ("127.0.0.1:9092", servers), ('topic="logs"', 'topic="rsyslog"'),
        ("/var/log/app", f"{folder}/log"), ("/var/lib/rsyslog", f"{folder}/rsyslog"),
    )  # fmt: skip
    (folder / "rsyslog").mkdir()
    (folder / "rsyslog.conf").write_text(text)
    files = ["-f", f"{folder}/rsyslog.conf", "-i", f"{folder}/rsyslog.pid", "-M", str(modules)]
    environ = {**os.environ, "LD_LIBRARY_PATH": str(modules.parent)}
    agent = [f"{usr}/sbin/rsyslogd", "-n", *files]
    with (folder / "rsyslog.said").open("wb") as said, ended(*agent, stderr=said, env=environ):
        yield


@contextmanager
def collectd(folder: Path, servers: str) -> Iterator[Callable[[int], None]]:
    """The agent with the example's configuration, and a way to give it a measurement."""
    text = replaced(
        (INGEST / "collectd.conf").read_text(),
        ("127.0.0.1:9092", servers), ("/var/lib/collectd", f"{folder}/collectd"),
        ("LoadPlugin cpu\nLoadPlugin memory\n", "LoadPlugin unixsock\n"),
    )  # fmt: skip
    at = f"{folder}/collectd.socket"
    own = f'<Plugin unixsock>\nSocketFile "{at}"\n</Plugin>\nPIDFile "{folder}/collectd.pid"\n'
    (folder / "collectd").mkdir()
    (folder / "collectd.conf").write_text(text + own)
    agent = program("collectd", "collectd-core librdkafka1")
    with (
        (folder / "collectd.said").open("wb") as said,
        ended(agent, "-f", "-C", f"{folder}/collectd.conf", stdout=said, stderr=said),
        socket.socket(socket.AF_UNIX) as commands,
    ):
        wait_until(lambda: commands.connect_ex(at) == 0, "collectd")
        answers = commands.makefile()

        def measure(number: int) -> None:
            # The time tells collectd which value is new; it is the number, in seconds.
            commands.sendall(f"PUTVAL test/outage/gauge-n {number + 1}:{number}\n".encode())
            assert next(answers).startswith("0 "), "collectd refused a value"

        yield measure


def numbers(daemon: Daemon, topic: str, number_of: Callable[[Any], int]) -> list[int]:
    if daemon.get(f"/v0/topics/{topic}").status != 200:
        return []
    return [number_of(record) for record in daemon.read_all(topic)]


def of_line(record: Any) -> int:
    return int(record["data"]["message"])


def of_line_by_kafka(record: Any) -> int:
    return int(json.loads(b64decode(record["data_b64"]))["message"])


def of_measurement(record: Any) -> int:
    (measured,) = json.loads(b64decode(record["data_b64"]))
    return int(measured["values"][0])


def of_data(record: Any) -> int:
    return int(record["data"])


TOPICS = {
    "logs": of_line, "rsyslog": of_line_by_kafka, "metrics": of_measurement,
    "curl": of_data, "node": of_data, "perl": of_data,
}  # fmt: skip

# What had no answer may be stored twice: rsyslog sends it again by a new producer, syslog-ng in one
# body with the lines that came meanwhile (docs/producers.md).
TWICE = ("logs", "rsyslog")


def test_a_minute_without_the_store_loses_nothing(tmp_path: Path, bucket: Bucket) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(store_proxy(bucket.endpoint_url))
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        daemon = stack.enter_context(kafka_daemon(tmp_path / "data", **options))
        (tmp_path / "log").mkdir()
        log = stack.enter_context((tmp_path / "log" / "app.log").open("a", buffering=1))
        stack.enter_context(syslog_ng(tmp_path, daemon.url))
        stack.enter_context(rsyslog(tmp_path, bootstrap(daemon)))
        measure = stack.enter_context(collectd(tmp_path, bootstrap(daemon)))
        (tmp_path / "client.js").write_text(NODE)
        (tmp_path / "client.pl").write_text(PERL)
        clients = [
            stack.enter_context(
                ended(*command, f"{daemon.url}/v0/topics/{topic}", stdin=subprocess.PIPE)
            )
            for topic, command in (
                ("curl", ("sh", "-c", CURL, "sh")),
                ("node", (program("node", "nodejs"), str(tmp_path / "client.js"))),
                ("perl", ("perl", str(tmp_path / "client.pl"))),
            )
        ]
        sent = 0

        def send() -> None:
            nonlocal sent
            log.write(f"{sent}\n")
            measure(sent)
            for client in clients:
                assert client.stdin is not None
                client.stdin.write(f"{sent}\n")
                client.stdin.flush()
            sent += 1

        def missing() -> dict[str, int]:
            found = {topic: numbers(daemon, topic, of) for topic, of in TOPICS.items()}
            lacks = {t: len({*range(sent)} - {*n}) for t, n in found.items()}
            return {topic: count for topic, count in lacks.items() if count}

        def all_stored() -> bool:
            return not missing()

        for _ in range(20):
            send()
        wait_until(all_stored, "what was sent before")
        proxy.decide = lambda _: Fault.SLOW_DOWN

        def is_over() -> bool:
            age_ms = daemon.alarm("store_failing")["age_ms"]
            while sent < 20 + age_ms / STEP_MS:
                send()
            return bool(age_ms >= OUTAGE_MS)

        send()
        wait_until(is_over, "a minute to pass", 2 * OUTAGE_MS / 1e3)
        proxy.release()
        send()
        wait_until(all_stored, "all that was sent", 4 * HANG_S)
        for topic, of in TOPICS.items():
            stored = numbers(daemon, topic, of)
            assert sorted({*stored} if topic in TWICE else stored) == [*range(sent)], topic
