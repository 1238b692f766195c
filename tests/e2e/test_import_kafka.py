"""``headgate import`` from a Kafka cluster, through librdkafka: a daemon's own listener is one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Message

import cli
from tests.e2e.daemon import HANG_S, ROOT, Daemon, command, wait_until
from tests.e2e.kafka import Sender, bootstrap, consume


def source(daemon: Daemon, topic: str) -> str:
    return f"kafka://{bootstrap(daemon)}/{topic}"


def imported(daemon: Daemon, *arguments: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(
        cli.headgate, ["import", *arguments], env={"HEADGATE_URL": daemon.url}
    )


def totals(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["totals"]


def parts(message: Message) -> tuple[Any, ...]:
    return message.key(), message.value(), message.headers(), message.timestamp()[1]


@contextlib.contextmanager
def importing(daemon: Daemon, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, as a process that does not outlive the block."""
    with subprocess.Popen(
        command("import", *arguments, "-o", "json"),
        cwd=ROOT, env={**os.environ, "HEADGATE_URL": daemon.url}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def heads(daemon: Daemon, topic: str) -> int:
    """How many records a topic has been given."""
    answer = daemon.get(f"/v0/topics/{topic}")
    return sum(int(each["head_seq"]) for each in answer.json.get("partitions", ()))


def stores(daemon: Daemon, topic: str, enough: int, process: subprocess.Popen[str]) -> bool:
    """Waits until a topic has ``enough`` records; False if the import ended before."""
    wait_until(lambda: process.poll() is not None or heads(daemon, topic) >= enough, "records")
    return process.poll() is None


def test_a_topic_is_moved_in_byte_for_byte_and_a_second_run_takes_what_is_new(
    daemon: Daemon,
) -> None:
    daemon.json("PUT", "/v0/topics/m.from", {"partitions": 2})
    sender = Sender(daemon)
    for number in range(2):
        sender.send("m.from", b'{"n": 1}', b"k", partition=number, timestamp=1_700_000_000_123)
        sender.send("m.from", None, b"\xff\x00", partition=number, headers=[("h", b"\x80")])
    sender.send("m.from", b"", None, partition=1, headers=[("a", None), ("a", b"")])
    sender.flush()
    done = totals(imported(daemon, "m.to", source(daemon, "m.from"), "-o", "json"))
    assert (done["sources"], done["records"], done["absent"]) == (2, 5, 0)
    for number, count in ((0, 2), (1, 3)):
        found = [list(map(parts, consume(daemon, each, count, number))) for each in
                 ("m.from", "m.to")]  # fmt: skip
        assert found[0] == found[1]

    sender.send("m.from", b"new", partition=0)
    sender.flush()
    again = imported(daemon, "m.to", source(daemon, "m.from"), "-o", "json")
    assert (totals(again)["records"], totals(again)["already_stored"]) == (1, 0)
    (cursor,) = {each["cursor"] for each in json.loads(again.stdout)["sources"]
                 if each["source"].endswith("/0")}  # fmt: skip
    (told,) = (each for each in daemon.get("/v0/cursors?limit=1000").json["cursors"]
               if each["cursor"] == cursor)  # fmt: skip
    assert told["positions"] == [{"partition": 0, "seq": 3}]
    assert (told["source"]["lag_bytes"], told["source"]["lag_records"]) == (None, 0)


def test_values_become_json_in_a_topic_that_says_so(daemon: Daemon, topic: str) -> None:
    sender = Sender(daemon)
    for value in (b'{"a": 1}', b"no json", b"2"):
        sender.send(topic, value)
    sender.flush()
    daemon.json("PUT", "/v0/topics/j.to", {"kafka_value": "json"})
    ended = imported(daemon, "j.to", source(daemon, topic))
    assert ended.exit_code == 1 and "offset 1: a value is not JSON" in ended.stderr
    done = totals(
        imported(daemon, "j.to", source(daemon, topic), "--invalid", "j.bad", "-o", "json")
    )
    assert (done["records"], done["dead_letters"]) == (1, 1)
    assert [each["data"] for each in daemon.read_all("j.to")] == [{"a": 1}, 2]
    assert daemon.read_all("j.bad")[0]["data"]["position"] == 1


def test_records_that_kafka_deletes_before_they_are_imported_are_not_passed_in_silence(
    daemon: Daemon, topic: str
) -> None:
    def trimmed(before: int) -> None:
        body = {"partition": 0, "before_seq": before}
        assert daemon.json("POST", f"/v0/topics/{topic}/trim", body).status == 200

    def run() -> Result:
        return imported(daemon, "d.to", source(daemon, topic), "-o", "json")

    sender = Sender(daemon)
    for number in range(4):
        sender.send(topic, b"%d" % number)
    sender.flush()
    trimmed(3)  # nobody was promised those
    assert totals(run())["records"] == 2
    for number in range(4, 8):
        sender.send(topic, b"%d" % number)
    sender.flush()
    trimmed(7)
    ended = run()
    assert ended.exit_code == 1
    assert "begins at offset 6 now, and was imported up to 4" in ended.stderr
    (advice,) = (line for line in ended.stderr.splitlines() if "headgate cursors set" in line)
    asked = advice.split("`")[1].split()[1:]
    assert CliRunner().invoke(cli.headgate, asked, env={"HEADGATE_URL": daemon.url}).exit_code == 0
    assert totals(run())["records"] == 2
    assert [m.value() for m in consume(daemon, "d.to", 4)] == [b"2", b"3", b"6", b"7"]


def test_what_cannot_be_moved_in_is_refused_and_nothing_is_created(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.json("PUT", "/v0/topics/r.from", {"partitions": 2})
    daemon.json("PUT", "/v0/topics/r.narrow", {})
    properties = tmp_path / "client.properties"
    for arguments, why, code in (
        (["r.to", source(daemon, "r.nothing")], "the cluster has no topic 'r.nothing'", 1),
        (["r.narrow", source(daemon, "r.from")], "has 2 partitions, which keep their numbers", 1),
        (["r.to", "kafka://me:secret@a/t"], "names no user and no password", 1),
        (["r.to", source(daemon, "r.from"), "-"], "the only source of its command", 2),
        (["r.to", source(daemon, "r.from"), "--key", "k"], "are for text", 2),
        (["r.to", "-", "--kafka-config", str(properties)], "is for a source kafka://", 2),
        (["r.to", source(daemon, "r.from"), "--kafka-config", str(properties)],
         'No such configuration property: "no.such"', 1),
        ([source(daemon, "r.from")], "give the topic first", 2),
    ):  # fmt: skip
        properties.write_text("no.such=1\n")
        ended = imported(daemon, *arguments)
        assert ended.exit_code == code and why in ended.stderr, ended.stderr
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    ended = imported(daemon, "r.to", source(daemon, "r.from"))
    assert ended.exit_code == 1 and "pip install 'headgate[kafka]'" in ended.stderr
    for name in ("r.to", "r.nothing"):
        assert daemon.get(f"/v0/topics/{name}").status == 404


def test_all_partitions_go_into_one_that_is_named(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/o.from", {"partitions": 3})
    sender = Sender(daemon)
    for number in range(9):
        sender.send("o.from", b"%d" % number, partition=number % 3)
    sender.flush()
    arguments = ["o.to", source(daemon, "o.from"), "--partition", "0", "-o", "json"]
    assert totals(imported(daemon, *arguments))["records"] == 9
    found = Counter(m.value() for m in consume(daemon, "o.to", 9))
    assert found == Counter(b"%d" % number for number in range(9))


@pytest.mark.slow
def test_a_topic_is_followed_and_its_lag_is_told(daemon: Daemon, topic: str) -> None:
    sender = Sender(daemon)

    def sent(*values: bytes) -> None:
        for value in values:
            sender.send(topic, value)
        sender.flush()

    def lag() -> Any:
        return [each for each in daemon.imports() if each["topic"] == "f.to"]

    sent(b"1", b"2")
    with importing(daemon, "f.to", source(daemon, topic), "--follow") as process:
        wait_until(lambda: heads(daemon, "f.to") == 2, "the first records")
        sent(b"3")
        wait_until(lambda: heads(daemon, "f.to") == 3, "a record that came later")
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=HANG_S)
    assert (process.returncode, stderr) == (0, "")
    assert json.loads(stdout)["totals"]["records"] == 3
    assert lag() == []


@pytest.mark.slow
def test_an_import_from_kafka_that_is_killed_again_and_again_stores_every_record_once(
    daemon: Daemon,
) -> None:
    partitions, count = 3, 12_000
    daemon.json("PUT", "/v0/topics/k.from", {"partitions": partitions})
    sender = Sender(daemon)
    for number in range(count):
        sender.send("k.from", b"%d" % number, b"%d" % (number % 11), partition=number % partitions)
        sender.producer.poll(0)
    sender.flush()
    arguments = ["k.to", source(daemon, "k.from")]
    kills = 0
    for more in (1, 300, 900, 1_500):
        begin = heads(daemon, "k.to")
        # One by one, so that it is far from its end when it is killed, however late that is.
        with importing(daemon, *arguments, "--batch", "1") as process:
            kills += stores(daemon, "k.to", begin + more, process)
            process.kill()
            process.communicate()
    assert kills >= 3
    done = totals(imported(daemon, *arguments, "-o", "json"))
    assert done["failed"] == 0
    again = totals(imported(daemon, *arguments, "-o", "json"))
    assert again["records"] == 0
    for number in range(partitions):
        found = [m.value() for m in consume(daemon, "k.to", count // partitions, number)]
        assert found == [b"%d" % each for each in range(number, count, partitions)]
    assert heads(daemon, "k.to") == count
