"""Topics by Kafka's requests over a real ledger: what is done, what is refused, how it is said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kio.index import load_request_schema

from daemon.access.audit import AuditedRequest, AuditLog
from daemon.access.rights import EVERYTHING as ALL_RIGHTS
from daemon.access.rights import Rights
from daemon.access.token_file import Scope
from daemon.config import Override, load
from daemon.intake.topic_cache import TopicCache
from daemon.kafka.admin.administration import Administration
from daemon.kafka.admin.configs import Configs, batch_bytes_max
from daemon.kafka.messages import MetadataAsked, TopicSaid
from daemon.kafka.rights import EVERYTHING, Allowed
from daemon.kafka.topics import KafkaTopics
from daemon.schemas.errors import ApiError
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.errors import LedgerBusy
from ledger.types import TopicConfig
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.frames import Key, answered
from tests.daemon.kafka.test_messages import asked, made, nested, read

CONFIG = load(None, {}, [Override("kafka_partitions", "2")])
NO_ID = UUID(int=0)


class Tool:
    """A client that asks in the latest version, with answers as kio reads them."""

    def __init__(self, made_: Outbox) -> None:
        self.made = made_
        self.now_ns = 0
        self.topics = TopicCache(made_.segment, made_.ledger, nullcontext(), partitions_max=20)
        self.names = KafkaTopics(
            self.topics, (9000, 9001), "file:///s", auto_create=False, partitions=2
        )
        self.admin = Administration(self.names, self.topics, Configs(CONFIG), lambda: self.now_ns)
        self.allowed = EVERYTHING

    async def ask(self, key: int, version: int, **values: Any) -> Any:
        request = asked(key, version, timeout=timedelta(seconds=1), **values)
        said = await answered(request, self.allowed, administration=self.admin)
        answer = said.make()
        assert len(answer) <= said.size + 40, "what is counted is what it takes"
        return read(key, version, answer)

    async def create(self, *names: str, check: bool = False, **values: Any) -> Any:
        """The answer of the last topic."""
        topic = nested(load_request_schema(Key.CREATE_TOPICS, 7), "topics")
        config = nested(topic, "configs")
        assignment = nested(topic, "assignments")
        configs = tuple(config(name=n, value=v) for n, v in values.get("configs", {}).items())
        assigned = (assignment(partition_index=0, broker_ids=(0,)),)
        wanted = tuple(
            topic(
                name=name, num_partitions=values.get("partitions", 1),
                replication_factor=values.get("copies", 1), configs=configs,
                assignments=assigned if values.get("assigned") else (),
            )
            for name in names
        )  # fmt: skip
        answer = await self.ask(Key.CREATE_TOPICS, 7, topics=wanted, validate_only=check)
        return answer.topics[-1]

    async def grow(self, name: str, count: int, *, check: bool = False) -> Any:
        topic = nested(load_request_schema(Key.CREATE_PARTITIONS, 3), "topics")
        answer = await self.ask(
            Key.CREATE_PARTITIONS, 3, validate_only=check,
            topics=(topic(name=name, count=count, assignments=None),),
        )  # fmt: skip
        return answer.results[0]

    async def delete(self, name: str | None, topic_id: UUID | None = None) -> Any:
        topic = nested(load_request_schema(Key.DELETE_TOPICS, 6), "topics")
        answer = await self.ask(Key.DELETE_TOPICS, 6, topics=(topic(name=name, topic_id=topic_id),))
        return answer.responses[0]

    async def describe(self, kind: int, name: str, *names: str) -> Any:
        resource = nested(load_request_schema(Key.DESCRIBE_CONFIGS, 4), "resources")
        answer = await self.ask(
            Key.DESCRIBE_CONFIGS, 4,
            resources=(made(resource, resource_type=kind, resource_name=name,
                            configuration_keys=names or None),),
        )  # fmt: skip
        return answer.results[0]

    async def said(self, name: str) -> TopicSaid:
        """What Metadata says of a topic."""
        (found,) = await self.names.asked(MetadataAsked([(name, NO_ID)], True))
        return found

    async def config(self, name: str) -> TopicConfig:
        return (await self.topics.entry(name)).topic.config


def tool(directory: Path, test: Callable[[Tool], Coroutine[Any, Any, None]]) -> None:
    with outbox_in(directory) as made_:
        asyncio.run(test(Tool(made_)))


def test_a_topic_is_created_grown_and_deleted_and_metadata_says_so_immediately(
    tmp_path: Path,
) -> None:
    async def test(to: Tool) -> None:
        assert (await to.said("t")).error == 3
        made_ = await to.create("t", partitions=3, configs={"retention.ms": "60000"})
        assert (made_.error_code.value, made_.num_partitions) == (0, 3)
        said = await to.said("t")
        assert (said.id, len(said.leaders)) == (made_.topic_id, 3)
        assert await to.config("t") == TopicConfig(partitions=3, ttl_ms=60_000)
        assert (await to.grow("t", 5)).error_code.value == 0
        assert len((await to.said("t")).leaders) == 5
        assert (await to.config("t")).ttl_ms == 60_000
        found = await to.delete("t")
        assert (found.error_code.value, found.topic_id) == (0, made_.topic_id)
        assert (await to.said("t")).error == 3

    tool(tmp_path, test)


def test_a_topic_that_metadata_creates_has_the_default_of_partitions(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        names = KafkaTopics(to.topics, (9000,), "file:///s", auto_create=True, partitions=3)
        (said,) = await names.asked(MetadataAsked([("new", NO_ID)], True))
        assert (said.error, len(said.leaders)) == (0, 3)

    tool(tmp_path, test)


def test_the_default_of_partitions_and_copies_may_be_asked_for(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        made_ = await to.create("t", partitions=-1, copies=-1)
        assert (made_.error_code.value, made_.num_partitions, made_.replication_factor) == (0, 2, 1)

    tool(tmp_path, test)


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ({"name": "not/a/topic"}, 17, "not/a/topic"),
        ({"name": "dest"}, 36, "already"),
        ({"name": "DEST"}, 17, "table"),  # both would have one table
        ({"partitions": 0}, 37, "1 to 1000"),
        ({"partitions": -2}, 37, "-2"),
        ({"partitions": 1_001}, 37, "1001"),
        ({"partitions": 20}, 44, "20"),  # one more than partitions_max leaves
        ({"copies": 3}, 38, "got 3"),
        ({"copies": 0}, 38, "got 0"),
        ({"assigned": True}, 39, "assignment"),
        ({"configs": {"segment.bytes": "1"}}, 40, "segment.bytes"),
        ({"configs": {"retention.ms": "0"}}, 40, "'0'"),
        ({"configs": {"retention.ms": "soon"}}, 40, "'soon'"),
        ({"configs": {"retention.bytes": "-2"}}, 40, "'-2'"),
        ({"configs": {"retention.ms": str(1 << 63)}}, 40, "9223372036854775807"),
        ({"configs": {"retention.ms": None}}, 40, "no value"),
        ({"configs": {"cleanup.policy": "compact,gone"}}, 40, "gone"),
        ({"configs": {"min.insync.replicas": "2"}}, 40, "is 1 here"),
        ({"configs": {"cleanup.policy": "compact", "retention.ms": "5"}}, 40, "compact,delete"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_created(
    tmp_path: Path, values: dict[str, Any], code: int, says: str
) -> None:
    name = values.pop("name", "t")

    async def test(to: Tool) -> None:
        for check in (True, False):
            refused = await to.create(name, check=check, **values)
            assert (refused.error_code.value, refused.num_partitions) == (code, -1)
            assert says in refused.error_message
        assert [each.name for each in await to.topics.page("", 9)] == ["dest"]

    tool(tmp_path, test)


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        version = to.made.ledger.ledger.read(topics.catalog_version)
        found = await to.create("t", partitions=2, check=True)
        assert (found.error_code.value, found.num_partitions, found.topic_id) == (0, 2, None)
        assert (await to.grow("dest", 3, check=True)).error_code.value == 0
        assert (await to.said("t")).error == 3 and len((await to.said("dest")).leaders) == 1
        assert to.made.ledger.ledger.read(topics.catalog_version) == version
        assert (await to.create("t", partitions=2)).error_code.value == 0

    tool(tmp_path, test)


def test_compaction_by_key_is_accepted_told_again_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(to: Tool) -> None:
        with caplog.at_level(logging.WARNING):
            await to.create("checked", configs={"cleanup.policy": "compact"}, check=True)
            assert not caplog.text
            for name, policy in (("c", "compact"), ("both", "delete, compact")):
                found = await to.create(name, configs={"cleanup.policy": policy})
                assert found.error_code.value == 0
                assert f"topic {name} was created" in caplog.text
                assert "nothing is compacted by key" in caplog.text
        for name, policy in (("c", "compact"), ("both", "compact,delete"), ("dest", "delete")):
            (one,) = (await to.describe(2, name, "cleanup.policy")).configs
            assert (one.value, one.config_source) == (policy, 5 if name == "dest" else 1)

    tool(tmp_path, test)


def test_a_name_that_is_there_twice_is_not_begun(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        refused = await to.create("t", "t")
        assert refused.error_code.value == 42 and "2 times" in refused.error_message
        assert (await to.said("t")).error == 3

    tool(tmp_path, test)


def test_partitions_only_become_more(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        for name, count, code in (
            ("dest", 1, 37), ("dest", 0, 37), ("dest", 1_001, 37), ("dest", 21, 44), ("no", 2, 3),
        ):  # fmt: skip
            refused = await to.grow(name, count)
            assert refused.error_code.value == code and refused.error_message
        assert len((await to.said("dest")).leaders) == 1

    tool(tmp_path, test)


def test_a_topic_is_deleted_by_its_id_and_no_other_of_its_name_is(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        first = (await to.create("t")).topic_id
        found = await to.delete(None, first)
        assert (found.error_code.value, found.name) == (0, "t")
        second = (await to.create("t")).topic_id
        for name, topic_id, code in (
            (None, first, 100), (None, None, 100), (None, UUID(int=5), 100), ("t", second, 42),
            ("no", None, 3),
        ):  # fmt: skip
            refused = await to.delete(name, topic_id)
            assert refused.error_code.value == code and refused.error_message
        with pytest.raises(ApiError):  # which was created after the id was looked up
            await to.topics.delete("t", topic_id=to.made.dest.topic_id)
        assert (await to.said("t")).id == second

    tool(tmp_path, test)


def test_a_topic_of_dead_letters_is_not_deleted(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        await to.create("letters")
        config = SubscriptionConfig(dead_letter_topic="letters")
        await to.made.ledger.write(subscriptions.create, "dest", "s", config, "earliest", 5)
        refused = await to.delete("letters")
        assert refused.error_code.value == 44 and "dest" in refused.error_message
        assert (await to.said("letters")).error == 0

    tool(tmp_path, test)


def test_a_token_changes_the_topics_that_it_is_for_and_is_told_of_no_other(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        mine, other = (await to.create("mine.a")).topic_id, (await to.said("dest")).id
        rights = Rights(None, [Scope.MANAGE], ["mine*", "DEST"])
        to.allowed = Allowed(rights, (Scope.MANAGE,), "a request", "here", None)
        for refused, code in (
            (await to.create("new"), 29), (await to.create("dest"), 29),
            (await to.grow("dest", 2), 29), (await to.delete("dest"), 29),
            (await to.delete("no"), 29), (await to.delete(None, other), 100),
            (await to.describe(2, "dest"), 29),
        ):  # fmt: skip
            assert refused.error_code.value == code
        refused = await to.create("DEST")  # whose table is that of another topic
        assert refused.error_code.value == 17 and "dest" not in refused.error_message
        assert (await to.create("mine.b")).error_code.value == 0
        assert (await to.grow("mine.b", 2)).error_code.value == 0
        assert (await to.delete(None, mine)).error_code.value == 0
        assert (await to.describe(4, "0")).error_code.value == 0
        rights.scopes = frozenset()
        assert (await to.describe(4, "0")).error_code.value == 31
        assert [each.name for each in await to.topics.page("", 9)] == ["dest", "mine.b"]

    tool(tmp_path, test)


def test_changes_have_lines_of_the_audit_log_and_those_without_one_are_not_made(
    tmp_path: Path,
) -> None:
    class Audited:
        """Where the changes that were asked for are noted, while there is space."""

        def __init__(self) -> None:
            self.paths: list[str] = []
            self.is_full = False

        @contextmanager
        def change(self, asked: AuditedRequest) -> Iterator[None]:
            if self.is_full:
                raise ApiError(503, "audit_log", "the disk is full")
            self.paths.append(asked.path)
            yield

    async def test(to: Tool) -> None:
        audit = Audited()
        to.allowed = Allowed(ALL_RIGHTS, tuple(Scope), "Change", "here", cast(AuditLog, audit))
        await to.create("t", check=True)
        assert not audit.paths
        topic_id = (await to.create("t")).topic_id
        await to.grow("t", 2)
        audit.is_full = True
        for refused in (
            await to.create("u"), await to.grow("t", 3), await to.delete("t"),
            await to.delete(None, topic_id),
        ):  # fmt: skip
            assert refused.error_code.value == 56 and "full" in refused.error_message
        audit.is_full = False
        await to.delete(None, topic_id)
        assert audit.paths == ["Change/t"] * 3

    tool(tmp_path, test)


def test_what_the_time_of_a_request_does_not_suffice_for_is_not_begun(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        create = to.topics.create

        async def slow(*args: Any, **more: Any) -> Any:
            to.now_ns += 700_000_000
            return await create(*args, **more)

        to.topics.create = slow  # type: ignore[method-assign]
        assert (await to.create("a", "b", "c")).error_code.value == 7
        assert [each.name for each in await to.topics.page("", 9)] == ["a", "b", "dest"]

    tool(tmp_path, test)


def test_a_ledger_that_fails_is_said_and_the_next_request_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(to: Tool) -> None:
        def fails(*_: Any, **__: Any) -> Any:
            raise LedgerBusy(Path("ledger"), 1)

        with monkeypatch.context() as patched:
            patched.setattr(topics, "create", fails)
            assert (await to.create("t")).error_code.value == 56
        assert (await to.create("t")).error_code.value == 0

    tool(tmp_path, test)


def test_settings_of_topics_and_brokers_are_told(tmp_path: Path) -> None:
    async def test(to: Tool) -> None:
        await to.create("t", configs={"retention.ms": "5", "retention.bytes": "6"})
        found = {each.name: each for each in (await to.describe(2, "t")).configs}
        assert {name: each.value for name, each in found.items()} == {
            "cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "6",
            "max.message.bytes": str(batch_bytes_max(CONFIG)), "min.insync.replicas": "1",
            "message.timestamp.type": "CreateTime", "unclean.leader.election.enable": "false",
        }  # fmt: skip
        assert (found["retention.ms"].config_source, found["retention.ms"].read_only) == (1, False)
        assert found["min.insync.replicas"].read_only
        # What is told may be asked for again.
        again = {name: each.value for name, each in found.items()}
        assert (await to.create("again", configs=again)).error_code.value == 0
        some = await to.describe(2, "t", "retention.ms", "segment.bytes")
        assert [each.name for each in some.configs] == ["retention.ms"]
        broker = await to.describe(4, "1", "num.partitions", "offsets.retention.minutes")
        assert [each.value for each in broker.configs] == ["2", str(30 * 24 * 60)]
        assert not (await to.describe(4, "")).configs
        for kind, name, code in ((2, "no", 3), (2, "a/b", 17), (4, "2", 42), (4, "x", 42),
                                 (8, "0", 42)):  # fmt: skip
            refused = await to.describe(kind, name)
            assert refused.error_code.value == code and refused.error_message

    tool(tmp_path, test)
