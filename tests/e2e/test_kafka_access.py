"""librdkafka by SASL_SSL: what tokens allow, when they go, and what the audit log says of it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from daemon.access.token_file import Scope, TokenFile
from tests.daemon.kafka.frames import authenticate, handshake, plain
from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.kafka import Sender, bootstrap, consume, kafka_daemon
from tests.e2e.secured import Authority

DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = KafkaError.SASL_AUTHENTICATION_FAILED.to_bytes(2)


class Access:
    """A daemon whose Kafka clients need TLS and a token; its HTTP has no TLS."""

    def __init__(self, daemon: Daemon, file: TokenFile, authority: Authority, log: Path) -> None:
        self.daemon, self.file, self.authority, self._log = daemon, file, authority, log

    def token(self, name: str, scopes: list[Scope], *topics: str, **limits: float) -> str:
        return self.file.issue(name, scopes, topics or ("*",), limits=limits)[1]

    def options(self, token: str) -> dict[str, Any]:
        """Of a client."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.file),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "anybody",
            "sasl.password": token,
        }

    def admin(self, token: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": bootstrap(self.daemon), **self.options(token)})

    def ports(self) -> list[int]:
        """The one where clients connect first, and those of the shards."""
        brokers = self.admin(self.daemon.token).list_topics(timeout=HANG_S).brokers.values()
        return [int(bootstrap(self.daemon).rsplit(":", 1)[1]), *(each.port for each in brokers)]

    @contextlib.contextmanager
    def line(self, port: int) -> Iterator[ssl.SSLSocket]:
        """A connection of nobody."""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as made,
            self.authority.context.wrap_socket(made, server_hostname="localhost") as line,
        ):
            yield line

    def lines(self) -> list[dict[str, object]]:
        """Of the audit log."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    folder = tmp_path_factory.mktemp("access")
    authority = Authority(folder / "tls")
    file = TokenFile(folder / "tokens.json")
    owner = file.issue("owner", list(Scope))[1]
    settings = {
        "auth_file": file.path, "audit_log": folder / "audit.log",
        "tls_certificate": authority.certificate, "tls_key": authority.key,
        "tls_client_ca": authority.file,
    }  # fmt: skip
    with kafka_daemon(folder / "data", shards=2, token=owner, settings=settings) as daemon:
        yield Access(daemon, file, authority, folder / "audit.log")


def test_a_token_does_what_its_scopes_and_topics_allow(access: Access) -> None:
    writer = access.options(access.token("writer", [Scope.PRODUCE], "orders*"))
    scopes = [Scope.READ, Scope.CONSUME]  # a client looks for its group's coordinator in any case
    reader = access.options(access.token("reader", scopes, "orders*", "unused"))
    sender = Sender(access.daemon, **{**writer, "enable.idempotence": True})
    values = [b"1", b"x" * 900_000, b"3"] + [b"y" * 500_000] * 6
    for value in values:
        sender.send("orders.1", value)
    sender.flush()
    found = consume(access.daemon, "orders.1", len(values), **reader)
    assert [each.value() for each in found] == values
    sender.send("payments", b"1")
    assert sender.producer.flush(HANG_S) == 0
    assert [each.code() for each in sender.failed] == [DENIED]
    with pytest.raises(AssertionError, match="AUTHORIZATION_FAILED"):
        consume(access.daemon, "orders.1", 1, **writer)
    refused = Sender(access.daemon, **reader)
    refused.send("orders.1", b"1")
    assert refused.producer.flush(HANG_S) == 0
    assert [each.code() for each in refused.failed] == [DENIED]
    assert access.daemon.produce("secrets", 1).status == 200
    seen = access.admin(str(writer["sasl.password"])).list_topics(timeout=HANG_S)
    assert set(seen.topics) == {"orders.1"}


def test_only_who_may_write_creates_a_topic_that_is_asked_for(access: Access) -> None:
    reads = access.admin(access.token("looks", [Scope.READ], "made*"))
    writes = access.admin(access.token("makes", [Scope.PRODUCE], "made*"))
    (said,) = reads.list_topics("made.1", HANG_S).topics.values()
    assert said.error is not None
    assert said.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert access.daemon.get("/v0/topics/made.1").status == 404
    (said,) = writes.list_topics("made.1", HANG_S).topics.values()
    assert said.error is None
    asked = next(each for each in access.lines() if each.get("path") == "Metadata/made.1")
    assert (asked["event"], asked["who"], asked["from"]) == ("asked", "makes", "127.0.0.1")
    assert any(each.get("of") == asked["n"] and each["process"] == asked["process"]
               and each["status"] == 200 for each in access.lines())  # fmt: skip


def test_a_group_is_for_tokens_whose_topics_have_its_name(access: Access) -> None:
    access.daemon.produce("parcels", 1)
    token = access.token("works", [Scope.READ, Scope.CONSUME], "parcels", "workers*")

    def polled(group: str) -> int:
        """The value of the first message, or what the consumer is told instead."""
        consumer = Consumer(
            {"bootstrap.servers": bootstrap(access.daemon), "group.id": group,
             "auto.offset.reset": "earliest", **access.options(token)}
        )  # fmt: skip
        with contextlib.closing(consumer):
            consumer.subscribe(["parcels"])
            message = wait_until(lambda: consumer.poll(0.2), f"a message for {group}")
            assert message is not None
            error = message.error()
            if error is not None:
                return int(error.code())
            consumer.commit(message=message, asynchronous=False)
            return int(message.value() or b"0")

    assert polled("workers.1") == 1
    assert polled("others") == KafkaError.GROUP_AUTHORIZATION_FAILED
    admin = access.admin(token)
    groups = admin.list_consumer_groups().result()
    assert not groups.errors
    assert {each.group_id for each in groups.valid} == {"workers.1"}
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups(["workers.1"])["workers.1"].result()
    assert caught.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    refused = [each for each in access.lines() if each["event"] == "refused"]
    assert any(each["path"] == "DeleteGroups/workers.1" and each["who"] == "works"
               for each in refused)  # fmt: skip


def test_a_wrong_token_and_one_that_is_revoked_get_no_further(access: Access) -> None:
    token = access.token("leaving", [Scope.PRODUCE, Scope.READ])
    refused: list[int] = []
    wrong = Producer(
        {"bootstrap.servers": bootstrap(access.daemon), **access.options(f"{token[:-4]}0000"),
         "error_cb": lambda error: refused.append(error.code())}
    )  # fmt: skip
    wait_until(lambda: wrong.poll(0.1) or KafkaError._AUTHENTICATION in refused, "a refusal")
    wait_until(lambda: access.daemon.status()["kafka"]["unauthenticated"], "the status to tell")
    sender = Sender(access.daemon, **access.options(token))
    sender.send("left", b"before")
    sender.flush()
    ports = access.ports()[1:]  # of each shard
    access.file.revoke("leaving")

    def is_unknown() -> bool:
        """To all shards, which ends its connections."""
        for port in ports:
            with access.line(port) as line:
                line.sendall(handshake())
                line.recv(1 << 16)
                line.sendall(authenticate(plain(token)))
                if line.recv(1 << 16)[8:10] != UNKNOWN:
                    return False
        return True

    wait_until(is_unknown, "nobody knows the token")
    sender.send("left", b"never")
    sender.producer.poll(1)
    sender.producer.purge()
    sender.producer.flush(HANG_S)
    found = [b64decode(each["data_b64"]) for each in access.daemon.read_all("left")]
    assert found == [b"before"]
    lines = [each for each in access.lines() if each["event"] == "refused"]
    assert any(each["path"] == "SaslAuthenticate" and each["who"] is None for each in lines)


def test_a_certificate_stands_for_the_token_of_its_name(access: Access) -> None:
    access.file.issue("shown", [Scope.PRODUCE], ["shown*"], certificate="client.example")
    certificate, key = access.authority.pair("client.example")
    sender = Sender(
        access.daemon,
        **{"security.protocol": "SSL", "ssl.ca.location": str(access.authority.file),
           "ssl.certificate.pem": certificate.decode(), "ssl.key.pem": key.decode()},
    )  # fmt: skip
    sender.send("shown.1", b"1")
    sender.flush()
    sender.send("hidden.1", b"1")
    assert sender.producer.flush(HANG_S) == 0
    assert [each.code() for each in sender.failed] == [DENIED]


def test_a_limited_producer_is_told_to_wait_and_loses_nothing(access: Access) -> None:
    token = access.token("slow", [Scope.PRODUCE], bytes_in=400_000)
    throttled: list[float] = []
    sender = Sender(
        access.daemon, **access.options(token), **{"linger.ms": 0, "batch.num.messages": 1},
        throttle_cb=lambda event: throttled.append(event.throttle_time),
    )  # fmt: skip

    def is_throttled() -> bool:
        """After one record more; with pauses between them, any number of records is allowed."""
        sender.send("slowly", b"z" * 100_000)
        sender.producer.poll(0)
        return bool(throttled) and max(throttled) > 0

    wait_until(is_throttled, "the producer to be told to wait")
    sent = len(sender.flush())
    assert len(access.daemon.read_all("slowly")) == sent


def test_all_ports_take_tls_only_and_show_a_certificate_that_was_renewed(access: Access) -> None:
    ports = access.ports()
    assert len(set(ports)) == 3

    def shown() -> set[bytes | None]:
        found = set()
        for port in ports:
            with access.line(port) as line:
                found.add(line.getpeercert(binary_form=True))
        return found

    (before,) = shown()
    access.authority.issue()
    wait_until(lambda: before not in (now := shown()) and len(now) == 1, "the new certificate")
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as line:
            line.sendall(bytes.fromhex("0000000c 0012 0000 00000007 ffff 0000"))
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(100)[:1] in (b"", b"\x15"), "nothing, or an alert of TLS"
