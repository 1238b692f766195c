"""The client with a daemon: produce, read, watch, consume, manage, and what is refused."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

import pytest

from headgate import (
    Advance,
    Client,
    ConditionFailed,
    Gap,
    HeadgateError,
    Limits,
    Message,
    NewRecord,
    NotAllowed,
    NotFound,
    ProducerFailed,
    Record,
    Refused,
    UnknownAnswer,
    Unreachable,
)
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.secured import Authority, secured


def test_a_record_is_read_as_it_was_produced(client: Client, topic: str) -> None:
    stored = client.produce(
        topic,
        {"a": [1, "ü", None]},
        key="k",
        tag="t",
        node="n",
        meta={"m": 1},
        ts=1_700_000_000_000,
    )
    (found,) = client.read(topic)
    assert found == Record(
        topic=topic, partition=0, seq=stored.seq, ts=1_700_000_000_000, data={"a": [1, "ü", None]},
        key="k", tag="t", node="n", meta={"m": 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [None, 0, "", b"", b"\x00\xff\n", [], {"a": "\n\r\u2028"}, 1e300],
    ids=["null", "zero", "empty", "nothing", "bytes", "list", "lines", "large"],
)
def test_data_of_any_kind_is_kept_by_all_readers(client: Client, topic: str, data: object) -> None:
    client.produce(topic, data)
    (read,) = client.read(topic)
    with client.watch(topic, from_seq=0) as watch:
        watched = next(watch)
    with client.consume(topic, "s", name="c", create=True) as messages:
        consumed = next(messages)
    assert isinstance(watched, Record)
    assert data == read.data == watched.data == consumed.data


def test_many_records_are_stored_together_and_say_where(client: Client, topic: str) -> None:
    stored = client.produce_many(topic, [NewRecord(n) for n in range(3)])
    assert (stored.count, stored.seq, stored.deduped) == (3, 3, False)
    client.create_topic(topic, partitions=8)
    spread = client.produce_many(topic, [NewRecord(n, f"key-{n}") for n in range(50)])
    assert sum(part.count for part in spread.parts) == 50 and len(spread.parts) > 1
    with pytest.raises(ValueError, match="parts"):
        _ = spread.seq
    assert sorted(r.data for r in client.read(topic)) == sorted([*range(3), *range(50)])


def test_an_idempotency_key_stores_once(client: Client, topic: str) -> None:
    first = client.produce(topic, 1, idempotency_key="once")
    second = client.produce(topic, 1, idempotency_key="once")
    assert (first.seq, first.deduped) == (second.seq, not second.deduped)
    assert [r.data for r in client.read(topic)] == [1]


def test_a_cursor_moves_with_a_produce_or_nothing_is_stored(client: Client, topic: str) -> None:
    client.put_cursor(topic)
    client.produce(topic, "a", advance=Advance(topic, 0, 10))
    with pytest.raises(ConditionFailed) as raised:
        client.produce(topic, "b", advance=Advance(topic, 0, 10))
    assert raised.value.code == "cursor_moved" and raised.value.detail["position"] == 10
    assert "another producer" in raised.value.hint
    assert client.cursor(topic) == 10
    assert [r.data for r in client.read(topic)] == ["a"]
    client.delete_cursor(topic)
    with pytest.raises(NotFound):
        client.cursor(topic)


def test_a_producer_stores_in_order_what_it_was_given(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    with client.producer(topic, limits=Limits(batch_records=100)) as producer:
        for n in range(2000):
            producer.send(n, key=f"k{n % 7}")
        producer.flush()
        assert producer.position == 2000
        producer.send(b"last")
    found = list(client.read(topic))
    assert len(found) == 2001
    for key in {r.key for r in found} - {None}:
        mine = [r.data for r in found if r.key == key]
        assert mine == list(range(int(key[1:]), 2000, 7))  # type: ignore[index]


def test_a_producer_with_a_cursor_goes_on_where_another_ended(client: Client, topic: str) -> None:
    items = list(range(500))
    for end in (200, 500):
        with client.producer(topic, cursor=topic) as producer:
            for item in items[producer.position : end]:
                producer.send(item)
    assert [r.data for r in client.read(topic)] == items


def test_of_two_producers_with_a_cursor_one_fails_and_nothing_is_doubled(
    client: Client, topic: str
) -> None:
    def overtaken() -> None:
        with client.producer(topic, cursor=topic) as second:
            with client.producer(topic, cursor=topic) as first:
                first.send(1)
            second.send(1)
            with pytest.raises(ProducerFailed):
                second.flush()
            with pytest.raises(ProducerFailed):
                second.send(2)

    with pytest.raises(ProducerFailed) as raised:
        overtaken()
    assert (raised.value.code, raised.value.count) == ("cursor_moved", 1)
    assert [r.data for r in client.read(topic)] == [1]


def test_a_refused_record_fails_the_producer_and_its_sender_is_told(
    client: Client, topic: str
) -> None:
    with pytest.raises(ProducerFailed) as raised, client.producer(topic) as producer:
        producer.send("x" * (2 << 20))
    assert raised.value.code == "too_large" and isinstance(raised.value.__cause__, Refused)
    assert raised.value.hint and raised.value.detail["record"] == 0
    with client.producer(topic) as producer, pytest.raises(ValueError, match="JSON"):
        producer.send(float("nan"))
    with pytest.raises(ValueError, match="not open"):
        producer.send(1)


def test_what_another_thread_sends_while_a_producer_ends_is_stored_or_refused(
    client: Client, topic: str
) -> None:
    sent = 0

    def sending() -> None:
        nonlocal sent
        while True:
            producer.send(sent)
            sent += 1

    def refused() -> None:
        with pytest.raises(ValueError, match="not open"):
            sending()

    other = threading.Thread(target=refused, daemon=True)
    with client.producer(topic) as producer:
        other.start()
        wait_until(lambda: producer.position, "a first record to be stored")
    other.join()
    assert producer.position == sent
    producer.flush()


def test_a_flush_after_a_producer_that_ended_early_says_how_many_are_not_stored(
    client: Client, topic: str
) -> None:
    def sending() -> None:
        with producer:
            producer.send(1)
            raise ProducerFailed(HeadgateError("other", "of another producer"), 0)

    producer = client.producer(topic, limits=Limits(linger_s=3600))
    with pytest.raises(ProducerFailed, match="of another"):
        sending()
    with pytest.raises(ProducerFailed, match="closed") as raised:
        producer.flush()
    assert raised.value.count == 1


def test_a_sender_waits_while_the_buffer_is_full(client: Client, topic: str) -> None:
    with client.producer(topic, limits=Limits(5, 1000, 1000, 0)) as producer:
        for n in range(300):
            producer.send(n)
            assert producer._batching._bytes <= 1000
    assert [r.data for r in client.read(topic)] == list(range(300))


def test_read_begins_where_it_is_told_and_ends_at_the_head(client: Client, topic: str) -> None:
    client.produce_many(topic, [NewRecord(n, tag=f"t{n % 2}") for n in range(2500)])
    reading = client.read(topic)
    assert next(reading).data == 0
    client.produce(topic, "later")
    assert [r.data for r in reading] == list(range(1, 2500))
    assert [r.data for r in client.read(topic, from_seq=2499, partition=0)] == [2499, "later"]
    assert len(list(client.read(topic, tag="t1"))) == 1250
    client.create_topic(topic, partitions=2)
    with pytest.raises(ValueError, match="partition"):
        next(client.read(topic, from_seq=5))


def test_offsets_that_are_gone_are_told(
    client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_topic(topic, cap_records=10)
    for _ in range(3):
        client.produce_many(topic, [NewRecord(n) for n in range(10)])

    def is_evicted() -> bool:  # whatever the cap evicts: a look may come between two requests
        return bool(client.topic(topic)["partitions"][0]["lost_seq"] == 20)

    wait_until(is_evicted, "the cap to evict")
    gaps: list[Gap] = []
    found = list(client.read(topic, on_gap=gaps.append))
    assert gaps and gaps[0].first_seq == 1 and gaps[0].reason == "cap"
    assert gaps[0].last_seq + 1 == found[0].seq
    with caplog.at_level(logging.WARNING, "headgate"):
        list(client.read(topic))
    assert f"of {topic} are gone: cap" in caplog.text
    with client.watch(topic, from_seq=0) as watch:
        assert next(watch) == gaps[0] and next(watch) == found[0]


def test_a_watch_goes_on_after_its_position_and_filters(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    client.produce_many(topic, [NewRecord(n, key=f"k{n}") for n in range(100)])
    with client.watch(topic, from_seq=0) as watch:
        first = [next(watch) for _ in range(40)]
        position = watch.position
    with client.watch(topic, position=position) as watch:
        rest = [next(watch) for _ in range(60)]
        assert len({(r.partition, r.seq) for r in first + rest if isinstance(r, Record)}) == 100
        client.produce(topic, "new", key="k0")
        news = next(watch)
    assert isinstance(news, Record) and news.data == "new"
    with client.watch(topic, from_seq=0, key="k1?") as watch:
        assert len([next(watch) for _ in range(10)]) == 10


def test_a_watch_of_a_topic_that_is_deleted_raises(client: Client, topic: str) -> None:
    client.produce(topic, 1)
    with client.watch(topic, from_seq=0) as watch:
        next(watch)
        client.delete_topic(topic)
        with pytest.raises(NotFound):
            next(watch)


def test_a_message_comes_again_until_it_is_acknowledged(client: Client, topic: str) -> None:
    client.produce_many(topic, [NewRecord(n, key="k") for n in range(3)])
    settings = {"backoff_ms": [1, 1]}
    with client.consume(topic, "s", name="w1", create=settings) as messages:
        first = next(messages)
        assert (first.data, first.attempt) == (0, 1)
        assert first.nack(reason="not now")
        again = next(messages)
        assert (again.data, again.attempt) == (0, 2) and again.ack()
        assert again.ack(), "an acknowledgment may be repeated"
        assert not first.nack(), "it is finished"
    with client.consume(topic, "s", name="w2") as messages:
        left = next(messages)
        assert left.data == 1
    with client.consume(topic, "s", name="w3") as messages:
        assert next(messages).data == 1, "what w2 had goes to others immediately"
        client.seek(topic, "s", "earliest")
        assert not left.ack(), "it was taken back"


def test_handlers_work_in_threads_with_each_key_in_order(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    client.produce_many(topic, [NewRecord(n, key=f"k{n % 5}") for n in range(200)])
    seen: list[tuple[str | None, int]] = []
    names: set[str] = set()
    everybody = threading.Barrier(4)

    def handler(message: Message) -> None:
        if not names:
            everybody.wait(60)  # four handlers run simultaneously, or this is never over
        names.add(threading.current_thread().name)
        if message.data == 7 and message.attempt == 1:
            raise RuntimeError("the first attempt fails")
        seen.append((message.key, message.data))
        if len(seen) == 200:
            messages.stop()

    settings = {"backoff_ms": [1, 1]}
    with client.consume(topic, "s", name="w", create=settings) as messages:
        messages.handle(handler, threads=4)
    assert len(names) == 4
    for key in range(5):
        assert [n for k, n in seen if k == f"k{key}"] == list(range(key, 200, 5))
    state = client.subscription(topic, "s")
    assert (state["lag"], state["redelivered"]) == (0, 1)


def test_an_error_of_an_acknowledgment_ends_handle(client: Client, topic: str) -> None:
    client.produce(topic, 1)

    def handler(message: Message) -> None:
        client.delete_topic(topic)

    with (
        pytest.raises(NotFound),
        client.consume(topic, "s", name="w", create=True) as messages,
    ):
        messages.handle(handler, threads=2)


def test_topics_subscriptions_routers_and_cursors_are_managed(client: Client, topic: str) -> None:
    other = f"{topic}-copy"
    client.create_topic(other, cap_records=5)
    assert client.topic(other)["config"]["cap_records"] == 5
    assert {topic, other} <= {each["topic"] for each in client.topics()}
    client.create_router(topic, topic, other, start="earliest", filter={"tag": "x*"})
    client.produce_many(topic, [NewRecord(1, tag="xy"), NewRecord(2, tag="y")])
    wait_until(lambda: client.router(topic)["lag"] == 0, "the router")
    assert [r.data for r in client.read(other)] == [1]
    assert topic in {each["router"] for each in client.routers()}
    client.delete_router(topic)
    client.create_subscription(topic, "s", redeliveries_max=0)
    assert [each["subscription"] for each in client.subscriptions(topic)] == ["s"]
    with client.consume(topic, "s", name="w") as messages:
        next(messages).nack(reason="never")
        (blocked,) = wait_until(lambda: client.blocked_keys(topic, "s")["keys"], "a blocked key")
        assert blocked["reason"] == "never"
        assert client.repair(topic, "s", "skip", reason="nev*")["repaired"] == 1
    client.delete_subscription(topic, "s")
    assert client.trim(topic, 2)["earliest_seq"] == 2
    client.put_cursor(other, 7, partition=3)
    assert client.cursor(other, partition=3) == 7 and client.cursor(other) == 0
    assert other in {each["cursor"] for each in client.cursors()}
    client.delete_topic(other)
    assert client.status()["version"]


def test_lists_have_all_pages(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.calls.PAGE_RECORDS", 2)
    for n in range(5):
        client.create_subscription(topic, f"s{n}")
    assert len(list(client.subscriptions(topic))) == 5


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("127.0.0.1:7440", {}, "is not the URL of a daemon"),
        ("ftp://127.0.0.1", {}, "is not the URL of a daemon"),
        ("http://user:secret@127.0.0.1", {}, "is not the URL of a daemon"),
        ("http://[::1", {}, "is not a URL"),
        ("http://example.invalid:7440", {"token": "hg_x"}, "in clear text"),
        ("http://127.0.0.1", {"token": "a b"}, "blanks"),
        ("http://127.0.0.1", {"token": "a\r\nX: y"}, "control characters"),
        ("http://127.0.0.1", {"token": ""}, "empty"),
        ("http://127.0.0.1", {"timeout_s": 0}, "timeout_s 0"),
        ("http://127.0.0.1", {"patience_s": -1}, "patience_s -1"),
    ],
)
def test_a_wrong_setting_is_refused(url: str, more: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Client(url, **more)  # type: ignore[arg-type]


def test_nobody_there_and_another_program_there_are_told_apart(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, patience_s=0.3) as client, pytest.raises(Unreachable) as raised:
            client.status()
        assert raised.value.code == "unreachable" and "Client(" in raised.value.hint
        silent.listen()

        def answer() -> None:
            other, _ = silent.accept()
            with other:
                other.recv(1000)
                other.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        with Client(url) as client, pytest.raises(UnknownAnswer):
            client.status()
        thread.join()


def test_a_token_and_a_private_authority_are_used(tmp_path: Path) -> None:
    from daemon.access.token_file import Scope, TokenFile

    file = TokenFile(tmp_path / "tokens.json")
    token = file.issue("all", list(Scope))[1]
    reader = file.issue("reader", [Scope("read")])[1]
    with secured(tmp_path, settings={"auth_file": tmp_path / "tokens.json"}) as daemon:
        ca_file = str(daemon.authority.file)
        with Client(daemon.url, token=token, ca_file=ca_file) as client:
            client.produce("t", 1)
            with client.watch("t", from_seq=0) as watch:
                assert isinstance(next(watch), Record)
        with Client(daemon.url, token=reader, ca_file=ca_file) as client:
            with pytest.raises(NotAllowed) as raised:
                client.produce("t", 1)
            assert (raised.value.status, raised.value.code) == (403, "forbidden")
        with Client(daemon.url, ca_file=ca_file) as client, pytest.raises(NotAllowed) as raised:
            client.topic("t")
        assert raised.value.code == "unauthenticated" and "token=" in raised.value.hint
        stranger = Authority(tmp_path / "stranger")
        with (
            Client(daemon.url, token=token, ca_file=str(stranger.file)) as client,
            pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.topic("t")


def test_the_shared_daemon_is_not_asked_by_a_closed_client(daemon: Daemon) -> None:
    with Client(daemon.url) as client:
        client.status()
    with pytest.raises(RuntimeError, match="closed"):
        client.status()
