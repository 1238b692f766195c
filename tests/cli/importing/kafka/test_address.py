"""Where a topic of Kafka is, and what the file of properties may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.importing.kafka.address import FIXED, BadAddress, parse_url, read_properties


def test_a_url_names_brokers_and_a_topic() -> None:
    address = parse_url("kafka://a:9092,[::1]:9093/orders.eu", {"client.id": "x"})
    assert (address.brokers, address.topic) == ("a:9092,[::1]:9093", "orders.eu")
    assert address.url == "kafka://a:9092,[::1]:9093/orders.eu"


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka:///t", "kafka://a", "kafka://a/", "kafka://a,/t", "kafka://a/t/0"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadAddress, match=r"is not kafka://BROKER\[,BROKER\]/TOPIC"):
        parse_url(url, {})


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadAddress) as refused:
        parse_url("kafka://me:secret@a:9092/t", {})
    assert "secret" not in str(refused.value) and "--kafka-config" in refused.value.hint


def test_properties_are_names_and_values(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# a comment\n\nsasl.username = me\nsasl.password=a=b # c\r\n!no\n")
    assert read_properties(path) == {"sasl.username": "me", "sasl.password": "a=b # c"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sasl.password", "line 2 of .* is not NAME=VALUE"),
        ("=x", "line 2 of .* is not NAME=VALUE"),
        ("bootstrap.servers=a:1", "the source names the brokers"),
        ("sasl.jaas.config=x", "only Java's clients know"),
        *((f"{name}=x", f"sets {name}, which is") for name in FIXED),
    ],
)
def test_properties_that_cannot_be_set_are_refused_by_name_and_line(
    tmp_path: Path, line: str, why: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"client.id=a\n{line}\n")
    with pytest.raises(BadAddress, match=why):
        read_properties(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match="No such file"):
        read_properties(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff=1")
    with pytest.raises(BadAddress, match="is not UTF-8"):
        read_properties(tmp_path / "bytes")
