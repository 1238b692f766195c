"""A subscription of a real daemon, as polling consumers use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from tests.e2e.daemon import Answer, Daemon, wait_until

Message = dict[str, Any]
NOTHING_MS = 30  # a message that may be sent is sent within a few
PATIENT_MS = 600_000  # what a consumer has is not taken from it because the test is slow


class Subscription:
    """A subscription, created with these settings; topic and name are those of the test."""

    def __init__(self, daemon: Daemon, topic: str, name: str = "s", **settings: Any) -> None:
        self.daemon = daemon
        self.topic = topic
        self.name = name
        self.path = f"/v0/topics/{topic}/subscriptions/{name}"
        assert self.set(**{"ack_timeout_ms": PATIENT_MS, **settings}).status in (200, 201)

    def set(self, **settings: Any) -> Answer:
        """Creates it, or changes what is given."""
        return self.daemon.json("PUT", self.path, settings)

    def produce(self, *keys: str | None, data: Sequence[Any] = ()) -> None:
        """A record for each key; its data is its number in the call unless given."""
        records = [
            {"data": number} if key is None else {"data": number, "key": key}
            for number, key in zip(data or range(len(keys)), keys, strict=True)
        ]
        answer = self.daemon.json("POST", f"/v0/topics/{self.topic}", {"records": records})
        assert answer.status == 200, answer.body

    def ask(self, consumer: str, *, most: int = 100, wait_ms: int = 0, filters: str = "") -> Answer:
        """One poll."""
        query = f"consumer={quote(consumer)}&max={most}&wait_ms={wait_ms}"
        return self.daemon.get(
            f"{self.path}/consume?{query}" + (f"&filter={quote(filters)}" if filters else "")
        )

    def poll(self, consumer: str, **asked: Any) -> list[Message]:
        """The messages of one poll."""
        answer = self.ask(consumer, **asked)
        assert answer.status == 200, answer.body
        return list(answer.json["messages"])

    def take(self, consumer: str, count: int, **asked: Any) -> list[Message]:
        """Polls until this many messages have come, and no more."""
        found: list[Message] = []

        def come() -> bool:
            if len(found) < count:
                found.extend(self.poll(consumer, most=count - len(found), wait_ms=1_000, **asked))
            return len(found) >= count

        wait_until(come, f"{count} messages for {consumer}")
        return found

    def gets_nothing(self, consumer: str, **asked: Any) -> bool:
        """Whether a poll that waits a little gives nothing."""
        return not self.poll(consumer, wait_ms=NOTHING_MS, **asked)

    def join(self, *consumers: str, filters: str = "") -> None:
        """Makes consumers present that have nothing."""
        for consumer in consumers:
            assert self.poll(consumer, filters=filters) == [], "there is something for it"

    def settle(self, verb: str, consumer: str, messages: Iterable[Message], **more: Any) -> Answer:
        """An acknowledgment or a nack of messages as they came."""
        named = [{each: message[each] for each in ("partition", "seq", "epoch")}
                 for message in messages]  # fmt: skip
        body = {"consumer": consumer, "messages": named, **more}
        return self.daemon.json("POST", f"{self.path}/{verb}", body)

    def ack(self, consumer: str, messages: Iterable[Message]) -> None:
        """Finishes messages; all of them must be accepted."""
        messages = list(messages)
        answer = self.settle("ack", consumer, messages)
        assert answer.status == 200 and answer.json["accepted"] == len(messages), answer.body

    def nack(self, consumer: str, messages: Iterable[Message], **more: Any) -> None:
        """Refuses messages; all of them must be accepted."""
        messages = list(messages)
        answer = self.settle("nack", consumer, messages, **more)
        assert answer.status == 200 and answer.json["accepted"] == len(messages), answer.body

    def leave(self, consumer: str) -> None:
        """A consumer goes."""
        answer = self.daemon.json("POST", f"{self.path}/leave", {"consumer": consumer})
        assert answer.status == 200, answer.body

    @property
    def state(self) -> Any:
        """The subscription, as its owner sees it."""
        answer = self.daemon.get(self.path)
        assert answer.status == 200, answer.body
        return answer.json

    @property
    def floor(self) -> int:
        """Of partition 0."""
        return int(self.state["partitions"][0]["floor"])

    def key(self, key: str) -> Any:
        """Who owns a key, and what its first message waits for."""
        answer = self.daemon.get(f"{self.path}/keys/{quote(key, safe='')}")
        assert answer.status == 200, answer.body
        return answer.json


def seqs(messages: Iterable[Message]) -> list[int]:
    """The offsets of messages."""
    return [message["seq"] for message in messages]


def keys(messages: Iterable[Message]) -> list[str]:
    """The keys of messages, all of which have one."""
    return [message["key"] for message in messages]
