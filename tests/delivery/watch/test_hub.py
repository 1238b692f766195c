"""The hub of a shard's watchers, over real rings, ledger and store."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from delivery.dispatch import Served
from delivery.filters import Filter
from delivery.reading.followed import Key
from delivery.ready import Turn
from delivery.streams.formats import MSGPACK, SSE
from delivery.watch import hub as hub_module
from delivery.watch.tail_encoder import Encoded
from ledger import topics
from shards.frame import CODEC_KAFKA, CODEC_RECORDS
from tests.delivery.node import Node
from tests.delivery.reading.test_diff import rec
from tests.delivery.watch.watching import Client, Watching, unchunked, watching
from uploader.l0.records import Record, decode


@asynccontextmanager
async def started_hub(node: Node) -> AsyncIterator[Watching]:
    with watching(node) as made:
        made.start()
        yield made
        made.hub.close()
        assert len(made.hub) == 0


def commit(node: Node, *texts: str, partition: int = 0) -> None:
    node.produce(0, {partition: rec(*texts)})
    assert node.commit(0) is not None


def maps_of(client: Client) -> list[dict[str, Any]]:
    """The maps of a msgpack stream, which msgspec decodes as the members of an array."""
    data = unchunked(client.data)
    for count in range(1, 100):
        with contextlib.suppress(msgspec.DecodeError):
            found: list[dict[str, Any]] = msgspec.msgpack.decode(
                b"\xdd" + count.to_bytes(4, "big") + data
            )
            return found
    raise AssertionError("the stream is not a sequence of maps")


def kinds(client: Client) -> list[str]:
    return [event.get("event", "record") for event in client.events]


async def test_a_watcher_at_the_tail_gets_each_record_once_and_no_request_goes_to_the_store(
    node: Node,
) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0})
        await made.rest()
        assert kinds(client) == ["caught-up"]
        for text in "1", "2", "3":
            commit(node, text)
            made.tell()
        await made.rest()
        assert (client.seqs, client.data_seen) == ([1, 2, 3], [1, 2, 3])
        assert client.position == f"{node.topic.topic_id}:0=3"
        assert node.store.gets == []


async def test_a_watcher_that_starts_in_the_past_catches_up_and_then_follows_the_tail(
    node: Node,
) -> None:
    for number in range(1, 21):
        commit(node, str(number))

    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 4})
        await made.rest()
        made.tell()
        commit(node, "21")
        made.tell()
        await made.rest()
        assert client.seqs == list(range(5, 22))
        assert kinds(client).count("caught-up") == 1


async def test_watchers_of_the_same_place_share_their_bytes(node: Node) -> None:
    async with started_hub(node) as made:
        clients = [made.watch(Client(), {0: 0}) for _ in range(3)]
        await made.rest()
        for client in clients:
            client.writes.clear()
        commit(node, "1", "2")
        made.tell()
        await made.rest()
        assert len(made.hub._encoder._cache) == 1
        assert [client.seqs for client in clients] == [[1, 2]] * 3
        assert len(made.delivered) == 3


async def test_watchers_in_one_turn_get_what_they_each_lack(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_hub(node) as made:
        first = made.watch(Client(), {0: 0})
        await made.rest()
        commit(node, "1")
        made.tell()
        await made.rest()
        others = [
            made.watch(Client(), {0: 1}),
            made.watch(Client(), {0: 1}, filter_=Filter(tag="none")),
            made.watch(Client(stuck=True), {0: 1}),
            made.watch(Client(), {0: 1}),
        ]
        await made.rest()
        stuck = others[2]
        assert stuck.untaken, "the opening is not taken"
        watched = made.hub.topic(node.topic.topic_id)
        assert watched is not None
        behind = list(watched.watchers)[-1]
        commit(node, "2")
        made.tell()
        behind.cursors[node.key(0)] = 0  # as if its last turn had been cut short
        encoder, asked = made.hub._encoder, []
        encode = encoder.encode

        def counted(key: Key, cursor: int, *rest: Any) -> Encoded | None:
            asked.append(cursor)
            return encode(key, cursor, *rest)

        monkeypatch.setattr(encoder, "encode", counted)
        await made.rest()
        assert [client.seqs for client in (first, *others)] == [[1, 2], [2], [], [], [1, 2]]
        assert asked == [1, 1, 0], "once for two, with the filter, and for the one behind"
        stuck.take()
        await made.rest()
        assert stuck.seqs == [2]


@pytest.mark.parametrize("coalesced", [False, True])
async def test_records_are_events_of_their_own_unless_pushes_coalesce(
    node: Node, coalesced: bool
) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0}, format_=SSE)
        await made.rest()
        made.coalesced = coalesced
        commit(node, "1", "2")
        commit(node, "3")
        made.tell()
        await made.rest()
        text = unchunked(client.data)
        singly, together = text.count(b"event: record\n"), text.count(b"event: records\n")
        assert (singly, together) == ((0, 1) if coalesced else (3, 0))
        assert [text.count(b'"seq":%d,' % seq) for seq in (1, 2, 3)] == [1, 1, 1]


async def test_nothing_is_written_to_a_client_that_has_not_drained(node: Node) -> None:
    async with started_hub(node) as made:
        slow, fast = made.watch(Client(), {0: 0}), made.watch(Client(), {0: 0})
        await made.rest()
        slow.stuck = True
        for number in range(1, 31):
            commit(node, str(number))
            made.tell()
            await made.rest()
        assert fast.seqs == list(range(1, 31)), "one slow client holds nobody back"
        assert slow.seqs == [1]
        slow.take()
        await made.rest()
        assert slow.seqs == list(range(1, 31))


@pytest.mark.parametrize("lossy", [False, True])
async def test_a_watcher_that_lagged_loses_only_what_a_lossy_topic_may_lose(
    node: Node, lossy: bool
) -> None:
    async with started_hub(node) as made:
        node.topic = msgspec.structs.replace(
            node.topic, config=msgspec.structs.replace(node.topic.config, lossy=lossy)
        )
        client = made.watch(Client(), {0: 0})
        await made.rest()
        client.stuck = True
        for number in range(1, 6):
            commit(node, str(number))
            made.tell()
            await made.rest()
        made.now_ns += hub_module.LAGGED_NS
        client.take()
        await made.rest()
        commit(node, "6")
        made.tell()
        await made.rest()
        told = [
            (event["gap_from"], event["gap_to"], event["reason"])
            for event in client.events
            if event.get("event") == "tombstone"
        ]
        if lossy:
            assert (client.seqs, told) == ([1, 6], [(2, 5, "lagged")])
        else:
            assert (client.seqs, told) == ([1, 2, 3, 4, 5, 6], [])
        assert kinds(client).count("caught-up") == 2


async def test_a_watcher_that_takes_nothing_counts_as_lagged_until_it_is_at_the_end_again(
    node: Node,
) -> None:
    async with started_hub(node) as made:
        slow, other = made.watch(Client(), {0: 0}), made.watch(Client(), {0: 0})
        await made.rest()
        slow.stuck = True
        for number in range(1, 4):
            commit(node, str(number))
            made.tell()
            await made.rest()

        def counts() -> tuple[int, int, int]:
            made.hub.tick()
            made.hub.check_invariants()
            return made.hub.lagged, made.hub.lags, made.lagged[node.topic.topic_id]

        made.now_ns += hub_module.LAGGED_NS - 1
        assert counts() == (0, 0, 0)
        made.now_ns += 1
        assert counts() == (1, 1, 1), "it may never take anything again"
        assert counts() == (1, 1, 1)
        slow.take(stuck=True)  # it gets a page, which it does not take either
        await made.settle(lambda: bool(slow.untaken))
        assert counts() == (1, 1, 1)
        slow.take()
        await made.rest()
        assert slow.seqs == other.seqs == [1, 2, 3]
        assert counts() == (0, 1, 0)


async def test_a_watcher_that_goes_or_whose_topic_is_deleted_no_longer_counts_as_lagged(
    node: Node,
) -> None:
    async with started_hub(node) as made:
        goes, stays = made.watch(Client(), {0: 0}), made.watch(Client(), {0: 0, 1: 0})
        await made.rest()
        goes.stuck = stays.stuck = True
        for number in range(1, 4):
            commit(node, str(number))
            made.tell()
            await made.rest()
        made.now_ns += hub_module.LAGGED_NS
        made.hub.tick()
        made.hub.check_invariants()
        assert (made.hub.lagged, made.lagged[node.topic.topic_id]) == (2, 2)
        goes.go()
        made.hub.check_invariants()
        assert (made.hub.lagged, made.lagged[node.topic.topic_id]) == (1, 1)
        made.hub.topic_changed(msgspec.structs.replace(node.topic, deleted_ms=1))
        made.hub.check_invariants()
        assert (made.hub.lagged, made.hub.lags) == (0, 2)
        assert made.lagged[node.topic.topic_id] == 0


async def test_a_watcher_whose_records_the_ring_has_overwritten_reads_them_from_the_store(
    node: Node,
) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0})
        await made.rest()
        client.stuck = True
        for number in range(1, 60):  # several laps of a ring of 4 KiB
            commit(node, f'"{number:0200d}"')
            made.tell()
        await made.rest()
        client.take()
        await made.rest()
        assert client.seqs == list(range(1, 60))
        assert node.store.gets


async def test_what_one_partition_has_is_not_lost_when_the_ring_has_overwritten_another(
    node: Node,
) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0, 1: 0})
        await made.rest()
        client.stuck = True
        commit(node, '"first"', partition=1)
        for number in range(1, 60):  # several laps of a ring of 4 KiB
            commit(node, f'"{number:0200d}"', partition=2)
        commit(node, '"last"', partition=0)
        made.tell()
        await made.rest()
        client.take()
        await made.rest()
        assert sorted(client.data_seen) == ["first", "last"]


async def test_a_turn_ends_in_the_middle_of_the_watchers_and_the_next_one_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.delivery.fifo.BUDGET_BYTES", 2 * hub_module.WRITE_COST_BYTES)

    async with started_hub(node) as made:
        clients = [made.watch(Client(), {0: 0}) for _ in range(7)]
        await made.rest()
        commit(node, "1")
        made.tell()
        await made.rest()
        assert [client.seqs for client in clients] == [[1]] * 7


async def test_a_turn_pays_for_what_filters_compare_and_ends_in_the_middle_of_the_partitions(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    work = Filter.work

    def counted(self: Filter, records: Sequence[Record]) -> int:
        compared[-1] += 1
        return work(self, records)

    serve = hub_module.WatchHub.serve

    def served(self: hub_module.WatchHub, turn: Turn) -> Served:
        compared.append(0)
        return serve(self, turn)

    monkeypatch.setattr(Filter, "work", counted)
    monkeypatch.setattr(hub_module.WatchHub, "serve", served)
    monkeypatch.setattr("tests.delivery.fifo.BUDGET_BYTES", 5_000)

    async with started_hub(node) as made:
        patterns = [f"*{'y' * 140}{number}*" for number in range(6)]
        clients = [
            made.watch(Client(), {0: 0, 1: 0, 2: 0}, filter_=Filter(key=pattern))
            for pattern in patterns
        ]
        everything = made.watch(Client(), {0: 0, 1: 0, 2: 0})
        await made.rest()
        records = [Record("1", key="y" * 150 + str(number)) for number in range(2)]
        node.produce(0, dict.fromkeys(range(3), records))
        assert node.commit(0) is not None
        made.tell()
        await made.rest()
        assert [len(client.seqs) for client in clients] == [3, 3, 0, 0, 0, 0]
        assert len(everything.seqs) == 6
        assert max(compared) == 1 and sum(compared) == 18, "each costs more than a turn has"


async def test_a_filter_removes_records_and_the_position_goes_on(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0}, filter_=Filter(tag="a*"))
        await made.rest()
        for tag in "ab", "b", "ac", None, "x":
            node.produce(0, {0: [Record("1", tag=tag)]})
            node.commit(0)
            made.tell()
        await made.rest()
        assert client.seqs == [1, 3]
        made.now_ns += hub_module.HEARTBEAT_NS
        for _ in range(hub_module.TICKS_PER_ROUND):
            made.hub.tick()
        assert client.position == f"{node.topic.topic_id}:0=5"


async def test_a_stream_of_msgpack_forwards_batches_as_they_are_stored(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0}, format_=MSGPACK)
        filtered = made.watch(Client(), {0: 0}, format_=MSGPACK, filter_=Filter(tag="x"))
        await made.rest()
        client.stuck = True
        commit(node, "1", "2", "3")
        node.produce(1, {0: [Record("4", tag="x", key="k")]})
        of_kafka = [Record(b"5", 5), Record("null", 5, meta='{"kafka":{"value":null}}')]
        node.produce(1, {0: of_kafka}, codec=CODEC_KAFKA)
        node.commit()
        made.tell()
        await made.rest()
        client.take()
        await made.rest()
        maps = [event for event in maps_of(client) if event["event"] == "batch"]
        assert [(event["first_seq"], event["count"], event["skip"]) for event in maps] == [
            (1, 3, 0), (4, 1, 0), (5, 2, 0)
        ]  # fmt: skip
        assert {event["codec"] for event in maps} == {CODEC_RECORDS}, "of which all watchers know"
        decoded = [record for event in maps for record in decode(event["payload"])]
        by_http = [Record("1"), Record("2"), Record("3"), Record("4", tag="x", key="k")]
        assert decoded == [*by_http, *of_kafka]
        assert [event["event"] for event in maps_of(filtered) if "records" in event] == ["records"]


async def test_a_forwarded_batch_says_how_many_of_its_records_the_watcher_has(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0}, format_=MSGPACK)
        await made.rest()
        commit(node, "1", "2", "3")
        made.tell()
        for watcher in made.hub._watchers:
            watcher.cursors[node.key()] = 2
        await made.rest()
        (batch,) = [event for event in maps_of(client) if event["event"] == "batch"]
        assert (batch["first_seq"], batch["count"], batch["skip"]) == (1, 3, 2)
        assert maps_of(client)[-1]["id"] == f"{node.topic.topic_id}:0=3"


async def test_several_partitions_share_one_stream_and_one_position(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0, 1: 0, 2: 0})
        await made.rest()
        node.produce(0, {0: rec("1"), 2: rec("2", "3")})
        node.commit(0)
        made.tell()
        commit(node, "4", partition=1)
        made.tell()
        await made.rest()
        by_partition = {
            p: [e["data"] for e in client.events if "seq" in e and e["partition"] == p]
            for p in range(3)
        }
        assert by_partition == {0: [1], 1: [4], 2: [2, 3]}
        assert client.position == f"{node.topic.topic_id}:0=1,1=1,2=2"


async def test_a_partition_that_is_added_is_watched_from_its_start(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0, 1: 0, 2: 0})
        await made.rest()
        config = msgspec.structs.replace(node.topic.config, partitions=4)
        node.topic = node.ledger.write(topics.alter, "t", config)
        commit(node, "1", partition=3)
        made.hub.topic_changed(node.topic)
        made.tell()
        commit(node, "2", partition=3)
        made.tell()
        await made.rest()
        assert [(e["partition"], e["seq"]) for e in client.events if "seq" in e] == [(3, 1), (3, 2)]


async def test_a_watcher_that_was_looked_up_before_partitions_were_added_gets_them_too(
    node: Node,
) -> None:
    async with started_hub(node) as made:
        made.watch(Client(), {0: 0, 1: 0, 2: 0})
        await made.rest()
        looked_up = node.topic
        config = msgspec.structs.replace(node.topic.config, partitions=4)
        made.hub.topic_changed(node.ledger.write(topics.alter, "t", config))
        node.topic = looked_up
        late = made.watch(Client(), {0: 0, 1: 0, 2: 0})
        commit(node, "1", partition=3)
        made.tell()
        await made.rest()
        assert [(e["partition"], e["seq"]) for e in late.events if "seq" in e] == [(3, 1)]


async def test_a_stream_ends_when_its_last_topic_is_deleted(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0})
        await made.rest()
        made.hub.topic_changed(node.ledger.write(topics.delete, "t", 1))
        assert kinds(client) == ["caught-up", "topic-deleted"]
        assert client.closed
        assert len(made.hub) == 0


async def test_a_client_that_goes_in_the_middle_of_its_catch_up_leaves_nothing(node: Node) -> None:
    for number in range(1, 5):
        commit(node, str(number))

    async with started_hub(node) as made:
        made.watch(Client(), {0: 0}).go()
        client = made.watch(Client(stuck=True), {0: 0})
        await made.rest()
        client.go()
        assert len(made.hub) == 0
        assert list(made.hub.topics) == []


async def test_a_failed_read_ends_the_stream_and_says_why(node: Node) -> None:
    commit(node, "1")

    def fail() -> None:
        raise OSError("the disk is gone")

    node.store.before = fail

    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0})
        await made.settle(lambda: client.closed)
        assert client.events[-1]["event"] == "error"
        assert client.seqs == []


async def test_streams_end_with_a_last_event_when_the_process_does(node: Node) -> None:
    async with started_hub(node) as made:
        client = made.watch(Client(), {0: 0})
        made.hub.close()
        assert kinds(client) == ["closing"]
        late = made.watch(Client(), {0: 0})
        assert kinds(late) == ["closing"]


async def test_a_client_that_goes_during_its_catch_up_leaves_nothing_for_the_collector(
    node: Node,
) -> None:
    gc.disable()
    try:
        async with started_hub(node) as made:
            commit(node, "1")
            made.tell()
            client = made.watch(Client(stuck=True), {0: 0})
            await made.rest()
            assert client.untaken
            own = asyncio.current_task()
            client.go()
            client.drained = client.closed_by_peer = None  # as every outlet that is closed
            await asyncio.wait(asyncio.all_tasks() - {own})
            for _ in range(hub_module.TICKS_PER_ROUND):
                made.hub.tick()
            gone = weakref.ref(client)
            del client
            assert gone() is None
    finally:
        gc.enable()
