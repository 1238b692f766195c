"""What becomes of each command of the documentation: page by page, by the beginning of the command.

A command that is neither run nor listed fails ``test_commands.py``, and so does a line here without
a command. What no test runs has its reason; there may only be fewer of them.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.docs.pages import ROOT, Command, Elsewhere, NotRun, Runs, Step
from tests.docs.reader import Reader
from tests.e2e.daemon import wait_until
from tests.e2e.secured import Authority
from tests.e2e.subscribing import Subscription
from tools.receiver.process import ReceiverProcess

SERVES = r"ready on http://(?P<AT>\S+) "
SAMPLES = (ROOT / "examples" / "orders.ndjson").read_text()
LAKE = Elsewhere("tests/e2e/test_lake_docs.py::test_every_block_of_the_page_runs_in_order")
WHEEL = Elsewhere("tests/test_dist.py::test_the_wheel_in_a_new_environment_is_a_working_command")
IMAGE = Elsewhere("tests/test_dist.py::test_what_the_image_installs_and_runs_works")
CLIENT = Elsewhere(
    "tests/test_dist.py::test_the_clients_wheel_works_in_an_environment_without_the_server"
)
ENGINE = NotRun("needs a container engine")
SYSTEMD = NotRun("needs root and a machine that systemd has started")


def topic(name: str, *records: dict[str, Any], partition: int | None = None, **config: Any) -> Any:
    """What makes a topic, and stores records in it."""

    def made(reader: Reader) -> None:
        put = reader.daemon.json("PUT", f"/v0/topics/{name}", config)
        assert put.status in (200, 201), put.body
        if records:
            body: dict[str, Any] = {"records": list(records)}
            if partition is not None:
                body["partition"] = partition
            answer = reader.daemon.json("POST", f"/v0/topics/{name}", body)
            assert answer.status == 200, answer.body

    return made


def both(*firsts: Any) -> Any:
    """One after the other."""

    def done(reader: Reader) -> None:
        for first in firsts:
            first(reader)

    return done


def script(name: str) -> Any:
    """What makes a program that prints what it is given."""
    return lambda reader: reader.write(name, "#!/bin/sh\ncat\necho\n", 0o755)


def certificates(reader: Reader) -> None:
    """The files that the page on TLS names, and no other daemon on the directory."""
    reader.end("headgate serve")
    Authority(reader.folder / "etc")


def receiver(reader: Reader) -> None:
    """A receiver that takes everything, 60 records for it, and files with secret and header."""
    process = reader.stack.enter_context(ReceiverProcess())
    reader.environ["ENDPOINT"] = process.url("orders")
    topic("orders", *({"data": n} for n in range(60)), partition=3, partitions=4)(reader)
    reader.write("secrets.txt", "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3\n")
    reader.write("headers.txt", "X-Shop: 7\n")


HERE = {"https://example.com/orders": "{ENDPOINT}"}


def without_billing(reader: Reader) -> None:
    """The page shows two ways to one subscription: the second one begins without it."""
    reader.end("curl -N")
    path = "/v0/topics/orders/subscriptions/billing"
    assert reader.daemon.ask("DELETE", path).status == 200


def blocked(reader: Reader, key: str = "customer-17", **more: Any) -> None:
    """A message of the key that a consumer has refused for the last time."""
    reader.end("headgate consume")
    subscription = Subscription(reader.daemon, "orders", "billing", redeliveries_max=0, **more)
    subscription.produce(key)
    while True:
        (message,) = subscription.take("w", 1)
        if message.get("key") != key:  # what the page has stored before comes first
            subscription.ack("w", [message])
            continue
        subscription.nack("w", [message])
        if subscription.key(key)["state"] != "resting":  # its owner has the settings
            break
    subscription.leave("w")


def letter(reader: Reader) -> None:
    """A dead letter, and a consumer that takes its message the next time."""
    topic("bad-orders")(reader)
    blocked(reader, "customer-18", poison="dead_letter", dead_letter_topic="bad-orders")
    reader.run(Command(CHARGE), Runs("", ends=False, stays=True))


def consumed(reader: Reader) -> None:
    """Records that are finished for the subscription."""
    topic("orders", *({"data": n} for n in range(1234)), partition=3)(reader)
    reader.run(Command("headgate subscriptions seek orders billing --to latest"), Runs("head seq"))


def pushed(reader: Reader) -> None:
    """All that the topic has."""
    path = "/v0/topics/orders/subscriptions/hook"
    wait_until(
        lambda: reader.daemon.get(f"{path}/push/attempts?limit=1").json["kept"] >= 60,
        "60 records to be pushed",
    )


def scaled(reader: Reader) -> None:
    """A subscription that the scaling signal has."""
    Subscription(reader.daemon, "orders", "billing")
    wait_until(
        lambda: b'"billing"' in reader.daemon.get("/v0/scaling").body,
        "the shards to tell of the subscription",
    )


CHARGE = "headgate consume orders billing --exec ./charge"


def files(reader: Reader) -> None:
    """What the page sends and imports."""
    reader.write("events.ndjson", SAMPLES)
    reader.write("picture.png", "PNG")
    (reader.folder / "archive").mkdir()
    lines = "".join(json.dumps({"customer": f"c{n}"}) + "\n" for n in range(3))
    (reader.folder / "archive" / "a.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    reader.write("log/app.log", '{"n": 2}\nnot JSON\n')
    reader.write("log/app.log.1", '{"n": 1}\n')
    assert reader.bucket is not None
    for key, body in (
        ("exports/2026/a.ndjson", SAMPLES),
        ("audit/trail/a.json", '{"Records": [{"n": 1}, {"n": 2}]}'),
    ):
        reader.bucket.client.put_object(Bucket=reader.bucket.bucket, Key=key, Body=body.encode())


def stored(**counts: int) -> Any:
    """Whether topics have this many records. A command that is stopped before Python has begun ends
    as if it had failed."""

    def is_there(reader: Reader, name: str, count: int) -> bool:
        answer = reader.daemon.get(f"/v0/topics/{name}")
        return answer.status == 200 and answer.json["partitions"][0]["head_seq"] >= count

    return lambda reader: all(is_there(reader, *each) for each in counts.items())


def watched(reader: Reader) -> bool:
    """Stores what a watch shows, which begins with what comes after it."""
    topic("orders", {"key": "customer-17", "data": {"n": 1}})(reader)
    return True


def load(reader: Reader) -> None:
    """A trace of a load."""
    reader.write("yesterday.csv", "time,bytes_per_s\n0,100000\n2,400000\n")


CHAOS = "tests/chaos/test_run.py::test_"
RANGE = Elsewhere("tests/cli/running/test_simulate.py::test_a_range_is_drawn_over_the_load")
PUBLISHED = Elsewhere(
    "tests/daemon/simulation/test_strategies.py"
    "::test_the_published_table_of_32_cores_and_5_brokers_is_reproduced"
)

SHOWN: dict[str, dict[str, Step]] = {
    "README.md": {
        "make demo": Elsewhere(
            "tests/tools/test_demo.py::test_the_demo_writes_and_reads_the_samples_and_leaves_nothing"
        ),
        "make test": NotRun("runs these tests"),
        "curl -H": Runs('"count":1,"head_seq":1'),
        ".venv/bin/headgate read orders": Runs('^{"status": ?"placed"}$'),
        ".venv/bin/headgate serve --store": Runs(SERVES, ends=False),
    },
    "CONTRIBUTING.md": {
        "make test": NotRun("runs these tests"),
        "make slow": NotRun("runs these tests"),
        "make sim": Runs("seed 7", swap={"STEPS=1000000": "STEPS=20000"}),
        "make chaos SECONDS": Elsewhere(
            f"{CHAOS}kills_and_store_faults_contradict_nothing_that_was_said"
        ),
        "make chaos CHAOS=--subscriptions": Elsewhere(
            f"{CHAOS}subscriptions_under_kills_lose_and_reorder_nothing"
        ),
        "make chaos CHAOS=--soak": Elsewhere(
            f"{CHAOS}fifty_subscriptions_account_for_every_record_within_the_printed_memory"
        ),
        "make chaos CHAOS=--recreate": Elsewhere(
            f"{CHAOS}what_is_deleted_and_created_again_while_it_is_used_keeps_its_promises"
        ),
        "make chaos CHAOS=--push": Elsewhere(
            f"{CHAOS}kills_while_pushing_lose_and_reorder_nothing"
        ),
        "make chaos CHAOS=--kafka": Elsewhere(
            f"{CHAOS}kills_lose_double_and_reorder_nothing_of_kafkas_clients"
        ),
        "make chaos CHAOS=--library": Elsewhere(
            f"{CHAOS}kills_lose_double_and_reorder_nothing_of_the_python_client"
        ),
        "make chaos CHAOS=--pair": Elsewhere(
            f"{CHAOS}take_overs_lose_and_reorder_nothing"
        ),
        "make fuzz SECONDS": Elsewhere(
            "tests/fuzz/test_fuzz.py"
            "::test_nothing_that_a_client_sends_breaks_the_daemon_or_is_half_stored"
        ),
        "make fuzz FUZZ=--tls": Elsewhere(
            "tests/fuzz/test_fuzz.py"
            "::test_nothing_that_a_client_sends_breaks_the_daemon_or_is_half_stored"
        ),
        "make kafka-suite": NotRun("builds another project, whose sources CI has not"),
        "make fuzz FUZZ=--kafka": Elsewhere(
            "tests/fuzz/test_fuzz.py"
            "::test_nothing_that_a_client_of_kafka_sends_breaks_the_daemon_or_is_half_stored"
        ),
        "make bench": NotRun("measures for many minutes"),
    },
    "clients/python/README.md": {"make client": CLIENT, "pip install": CLIENT},
    "docs/access.md": {
        "headgate tokens create shop": Runs(r"(?P<TOKEN>hg_[0-9a-f]{16}_\S+)"),
        "headgate serve --data /var/lib/headgate --listen": Runs(
            SERVES, swap={"10.0.0.5:7440": "127.0.0.1:0"}, ends=False, stays=True
        ),
        "curl -H": Runs('"first_seq":1'),
        "headgate tokens revoke shop": Runs("shop"),
        "headgate tokens create guest": Runs("hg_"),
        "headgate tokens create ops": Runs(r"(?P<TOKEN>hg_\S+)"),
        "headgate serve --data /var/lib/headgate --set auth_file": Runs(
            r"(?s)TLS on https://(?P<SECURE>\S+).*ready on", first=certificates,
            ends=False, stays=True,
        ),
        "HEADGATE_CA_FILE=": Runs("ready", swap={"headgate.example.org:7443": "{SECURE}"}),
    },
    "docs/benchmarks.md": {
        "make bench BENCH=--quick": NotRun("measures for 90 s"),
        'make bench BENCH="--only': NotRun("measures"),
        "make bench BENCH=--list": Runs("embedded/1/1KiB"),
        'make bench BENCH="--s2-lite': NotRun("needs a build of s2-lite"),
    },
    "docs/cli.md": {
        "eval": Runs(
            "complete .*headgate", swap={"# or zsh_source": "; complete -p headgate"}
        ),
        "_HEADGATE_COMPLETE=fish_source": NotRun("needs the shell fish"),
        "headgate serve": Runs(SERVES, ends=False),
        "headgate handover": Elsewhere(
            "tests/e2e/test_standby.py"
            "::test_a_handover_loses_nothing_and_the_former_owner_stands_by"
        ),
        "headgate top --interval": Runs("pressure", ends=False),
        "headgate top -n": Runs(
            '"rates"', swap={"-n 60 --interval 60": "-n 2 --interval 0.1", ">": "| tee"}
        ),
        "headgate scaler": Runs("scaler listens on", ends=False),
        "headgate otlp": Runs("OTLP over gRPC on 127", ends=False),
        "headgate simulate --cores": PUBLISHED,
        "headgate simulate --load 100KiB/s": RANGE,
        "headgate simulate --load yesterday.csv": Runs('"store_class": ?"express"', first=load),
    },
    "docs/costs.md": {"headgate simulate --cores": PUBLISHED, "headgate simulate --load": RANGE},
    "docs/hooks.md": {
        "curl": Runs('"first_seq":1'),
        "printf": Runs(""),
        "headgate topics alter": Runs("github"),
    },
    "docs/kafka.md": {
        "headgate serve": Runs(
            rf"(?s)Kafka's protocol on (?P<KAFKA>\S+).*{SERVES}",
            swap={"127.0.0.1:9092": "127.0.0.1:0"}, ends=False, stays=True,
        ),
        "kcat -b 127.0.0.1:9092 -t orders -P": Runs(
            "", swap={"127.0.0.1:9092": "{KAFKA}"}, stdin="placed\n", first=topic("orders")
        ),
        "kcat -b 127.0.0.1:9092 -t orders -C": Runs(
            "placed", swap={"127.0.0.1:9092": "{KAFKA}", "-C": "-u -C"}, ends=False
        ),
        "headgate import": Elsewhere(
            "tests/e2e/test_import_kafka.py::test_a_topic_is_followed_and_its_lag_is_told"
        ),
    },
    "docs/lake.md": {
        "headgate compact --dry-run": LAKE,
        "headgate compact": LAKE,
        "headgate compact -o json": LAKE,
        "headgate topics alter orders": LAKE,
        "headgate compact --master": LAKE,
        "headgate compact --url": LAKE,
        "spark-submit": LAKE,
        "headgate gc --dry-run": LAKE,
        "headgate gc": LAKE,
        "headgate quarantine ls": LAKE,
        "headgate quarantine retry": LAKE,
        "headgate quarantine accept": Elsewhere(
            "tests/daemon/upkeep/test_quarantine.py::test_the_command_gives_records_up"
        ),
    },
    "docs/operations.md": {
        "sudo python3 -m venv": WHEEL,
        "sudo sh tools/install.sh": WHEEL,
        "sudo pipx install": NotRun("installs for all users of the machine"),
        "sudo PIPX_HOME": NotRun("installs for all users of the machine"),
        "sudo cp systemd": SYSTEMD,
        "sudo mkdir": SYSTEMD,
        "sudo systemctl daemon-reload": SYSTEMD,
        "sudo systemctl enable": SYSTEMD,
        "curl 127.0.0.1:7440/readyz": Runs("ready"),
        "sudo systemd-run": SYSTEMD,
        "make dist && docker build": ENGINE,
        "docker run --rm": ENGINE,
        "docker run -d": ENGINE,
    },
    "docs/pressure.md": {
        "curl": Runs(
            '"subscription":"billing"',
            first=both(topic("orders"), scaled),
        ),
    },
    "docs/producers.md": {
        "headgate serve": Runs(SERVES, ends=False),
        "OTEL_EXPORTER_OTLP_ENDPOINT": Elsewhere(
            "tests/e2e/test_foreign.py::test_opentelemetrys_exporter_appends_log_records"
        ),
        "OTEL_EXPORTER_OTLP_HEADERS": Elsewhere(
            "tests/e2e/test_foreign.py::test_tokens_hold_for_each_topic_of_a_foreign_request"
        ),
        "headgate otlp": Runs("OTLP over gRPC on 127", ends=False),
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": Elsewhere(
            "tests/e2e/test_otlp_grpc.py::test_opentelemetrys_exporter_appends_log_records"
        ),
        "headgate import orders": Runs(r"\b3 records", first=files),
        "headgate import events": Runs("records"),
        "headgate import logs": Runs("", ends=False, until=stored(**{"logs": 2, "bad-logs": 1})),
        "headgate import trail": Runs("", ends=False, until=stored(trail=2)),
        "curl -H 'Content-Type: application/x-ndjson'": Runs('"count":'),
        "curl -H 'Content-Type: application/octet-stream'": Runs('"count":1'),
    },
    "docs/push.md": {
        "headgate subscriptions create": Runs("hook", first=receiver, swap=HERE),
        "headgate subscriptions alter": Runs("hook"),
        "headgate push test": Runs("200"),
        "curl -X PUT": Runs('"rate_max":50', swap=HERE),
        "echo": Runs(r"^whsec_\S{44}$"),
        "headgate push attempts orders hook": Runs("200", first=pushed),
        "headgate push attempts orders hook 57": Runs("200"),
    },
    "docs/readers.md": {
        "curl -N": Runs(
            '"customer-17"', ends=False,
            first=topic("orders", {"key": "customer-17", "data": {"n": 1}}),
        ),
        "headgate watch": Runs('{"n": ?1}', ends=False, until=watched),
        "headgate read": Runs('{"n": ?1}', ends=False),
    },
    "docs/stores.md": {
        "export": NotRun("the credentials of the reader's store"),
        "make check-store": Elsewhere(
            "tests/uploader/stores/test_s3.py::test_an_object_is_read_whole_and_in_ranges"
        ),
    },
    "docs/subscriptions.md": {
        "curl -X PUT localhost:7440/v0/topics/orders/subscriptions/billing": Runs(
            '"subscription":"billing"',
            first=both(
                topic("orders", {"key": "customer-17", "data": {"n": 1}}, partitions=4),
                topic("readings"),
            ),
        ),
        "curl -N": Runs(r'"epoch":(?P<BATCH>\d+)', ends=False, stays=True),
        "curl -X POST": Runs('"accepted":1', swap={"4294967297": "{BATCH}"}),
        "headgate subscriptions create orders billing": Runs("billing", first=without_billing),
        CHARGE: Runs('{"n": ?1}', first=script("charge"), ends=False),
        "headgate subscriptions create readings alarms": Runs("alarms of readings"),
        "headgate subscriptions create orders paid": Runs("paid of orders"),
        "headgate consume orders paid": Runs(
            '"NO"', ends=False,
            first=both(
                script("ship"),
                topic("orders", {"data": {"status": "paid", "country": "NO"}}, partitions=4),
            ),
        ),
        "headgate subscriptions create readings pumps": Runs("pumps of readings"),
        "curl -X PUT localhost:7440/v0/topics/orders/subscriptions/large": Runs(
            '"key":"customer-\\*"'
        ),
        "headgate subscriptions keys orders billing": Runs("customer-17", first=blocked),
        "headgate subscriptions keys orders billing customer-17": Runs("stuck"),
        "headgate subscriptions retry orders billing customer-17": Runs("again"),
        "headgate subscriptions skip orders billing customer-17": Runs("given up", first=blocked),
        "headgate subscriptions retry orders billing --where": Runs("0 messages"),
        "headgate subscriptions skip orders billing --where": Runs("0 messages"),
        "headgate deadletters ls": Runs("billing", first=letter),
        "headgate deadletters redrive bad-orders": Runs("1 of 1 letter redriven"),
        "headgate deadletters redrive bad-orders --where": Runs("no letters of bad-orders"),
        "headgate subscriptions resend": Runs("1234", first=consumed),
        "headgate subscriptions seek orders billing --to": Runs("head seq"),
        "headgate subscriptions seek orders billing --since": Runs("head seq"),
    },
    "docs/tasks.md": {
        "headgate subscriptions create orders": Runs("billing", first=topic("orders", {"data": 7})),
        "headgate consume orders": Runs("(?m)^7$", first=script("charge"), ends=False),
        "headgate subscriptions create shipments": Runs(
            "europe of shipments",
            first=topic(
                "shipments", *({"key": "eu-west-1", "data": n} for n in range(100))
            ),
        ),
        "headgate consume shipments": Runs("99"),
        "headgate serve": Runs(rf"(?s)CHAOS IS ON.*{SERVES}", ends=False),
    },
}  # fmt: skip
