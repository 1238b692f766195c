"""A subscription with a filter delivers what matches, and has finished with all else when it has
looked at it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.reading.blocks import Wanted
from delivery.subscriptions.requests import Describe, Resend, Seek
from delivery.subscriptions.window.messages import Place
from ledger.cursors import positions
from ledger.delivery import subscriptions
from ledger.delivery.record_filter import RecordFilter
from ledger.delivery.subscription_rules import Mode
from ledger.delivery.subscriptions import Subscription
from tests.delivery.node import Node
from tests.delivery.subscriptions.lives import Lives, Step, steps_of
from tests.delivery.subscriptions.owning import Owner, data, messages, started_owner
from tests.delivery.subscriptions.test_key_fallback import alter
from tests.long import examples
from uploader.l0.records import Record

PAID = RecordFilter(where=("status=paid",))


def of(number: int, status: str = "new", key: str | None = None) -> Record:
    return Record(f'{{"n":{number},"status":"{status}"}}', key=key)


def numbers(client: Any) -> list[int]:
    return [each["n"] for each in data(client)]  # type: ignore[index]


def floor(owner: Owner, made: Subscription) -> int:
    """The floor in the ledger."""
    found = owner.node.ledger.read(subscriptions.find, made.topic_id, made.name)
    assert found is not None
    return sum(each.seq for each in owner.node.ledger.read(positions, found.cursor_id))


@pytest.mark.parametrize("mode", ["key_shared", "shared", "exclusive"])
@pytest.mark.parametrize("reliable", [True, False])
async def test_in_each_mode_what_matches_is_delivered_and_all_else_is_finished(
    node: Node, mode: Mode, reliable: bool
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode=mode, reliable=reliable, filter=PAID)
        client = await owner.consume(made, "c")
        owner.produce(*(of(n, "paid" if n % 3 == 0 else "new", "kl"[n % 2]) for n in range(30)))
        await owner.rest()
        await owner.take_all(made, client)
        assert sorted(numbers(client)) == [*range(0, 30, 3)]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["filtered"], state["delivered"]) == (0, 20, 10)
        assert floor(owner, made) == 30


async def test_what_is_left_out_takes_no_memory_no_journal_and_no_row_and_holds_no_key(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(filter=PAID)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "paid", "k"))
        for first in range(0, 20_000, 500):
            owner.produce(*(of(n, key="k") for n in range(first, first + 500)))
            await owner.rest()
        owner.produce(of(2, "paid", "l"))
        await owner.rest()
        assert numbers(client) == [1, 2], "the first one of key k is with the consumer still"
        window = owner.subscriptions._running[made.subscription_id].window
        assert window.unfinished == 2 and window.memory_bytes < 60_000
        await owner.ack(made, "c", messages(client)[1])
        known = owner.node.ledger.read(subscriptions.find, made.topic_id, made.name)
        assert known is not None and floor(owner, made) == 0
        rows = owner.node.ledger.read(
            lambda tx: tx.execute("SELECT count(*) FROM finished_rows").fetchone()
        )
        assert rows == (1,), "that of the message that was acknowledged"
        await owner.ack(made, "c", messages(client)[0])
        assert floor(owner, made) == 20_002
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["filtered"]) == (0, 20_000)


async def test_without_a_consumer_nothing_is_looked_at_and_all_of_it_is_lag(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(filter=PAID)
        owner.produce(*(of(n) for n in range(10)))
        await owner.later(1)
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 10
        await owner.consume(made, "c")
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 0


async def test_a_successor_goes_on_at_the_floor_and_repeats_nothing(node: Node) -> None:
    made: Any = None

    async with started_owner(node) as owner:
        made = owner.create(filter=PAID)
        client = await owner.consume(made, "c")
        owner.produce(*(of(n, "paid" if n in (4, 8) else "new", f"k{n}") for n in range(1, 11)))
        await owner.rest()
        owner.dies()
        await owner.ack(made, "c", messages(client)[1])
        assert floor(owner, made) == 3
    async with started_owner(node) as owner:
        client = await owner.consume(made, "c")
        assert numbers(client) == [4]
        await owner.take_all(made, client)
        assert floor(owner, made) == 10


@pytest.mark.parametrize("mode", ["key_shared", "shared", "exclusive"])
async def test_another_filter_judges_all_that_is_not_finished_and_nothing_else(
    node: Node, mode: Mode
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode=mode, filter=PAID, redeliveries_max=0)
        client = await owner.consume(made, "c")
        statuses = ["paid", "new", "paid", "paid", "sent", "new"]
        owner.produce(*(of(n, status, f"k{n}") for n, status in enumerate(statuses, 1)))
        await owner.rest()
        one, three, four = messages(client)
        await owner.ack(made, "c", one)
        await owner.nack(made, "c", three)
        assert (await owner.ask(Describe(made.subscription_id)))["blocked_keys"] == 1
        alter(owner, filter=RecordFilter(where=("status=*e*",)))
        await owner.later(0.1)
        refused = await owner.ack(made, "c", four)
        assert refused["refused"] == 1, "it was given before the change"
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["blocked_keys"], state["lag"]) == (0, 0), "nothing that is left matches"
        assert len(messages(client)) == 3, "what the former filter has left out stays finished"
        owner.produce(of(7, "new", "k7"), of(8, "paid", "k8"))
        await owner.rest()
        assert numbers(client)[3:] == [7]
        await owner.ask(Seek(made.subscription_id, {0: 0}))
        await owner.rest()
        await owner.take_all(made, client)
        assert sorted({*numbers(client)[4:]}) == [2, 5, 6, 7], "a seek looks at all anew"
        alter(owner, filter=None)
        await owner.later(0.1)
        owner.produce(of(9, "paid"))
        await owner.rest()
        assert numbers(client)[-1] == 9


async def test_what_is_with_a_consumer_and_matches_the_next_filter_comes_again(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(filter=PAID)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "paid", "k"), of(2, "paid", "k"))
        await owner.rest()
        alter(owner, filter=RecordFilter(key="k"))
        await owner.later(0.1)
        assert numbers(client) == [1, 1]
        await owner.take_all(made, client)
        assert numbers(client) == [1, 1, 2]


async def test_a_message_that_the_filter_leaves_out_can_be_resent(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(filter=PAID)
        client = await owner.consume(made, "c")
        owner.produce(of(1))
        await owner.rest()
        await owner.ask(Resend(made.subscription_id, (0, 1)))
        await owner.rest()
        assert numbers(client) == [1]


async def test_a_filter_that_takes_long_leaves_the_loop_to_others(node: Node) -> None:
    """A record is admitted alone, and a turn has few of them."""

    async with started_owner(node) as owner:
        pattern = "*" + "?a" * 400 + "*"
        made = owner.create(filter=RecordFilter(tag=pattern, key=pattern))
        await owner.consume(made, "c")
        text = "b" * 1_000
        for _ in range(2):
            owner.produce(*[Record("1", key=text, tag=text)] * 12, tell=False)
        running = owner.subscriptions._running[made.subscription_id]
        owner.tell()
        lags = [running.lag]
        while running.lag:
            wanted: list[Wanted] = []
            running.serve(128 << 10, wanted)
            assert not wanted
            lags.append(running.lag)
        assert lags[0] == 24 and 2 <= lags[1] < 10, "a turn ends before all is compared"


class FilteredLives(Lives):
    """What matches comes in the order of its key, and nothing else comes."""

    first = "c"
    settings: ClassVar[dict[str, Any]] = {**Lives.settings, "filter": RecordFilter(tag="yes")}

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.records: list[Record] = []

    def judge(self, place: Place, event: dict[str, Any]) -> None:
        assert place not in self.finished
        record = self.records[place[1] - 1]
        assert record.tag == "yes"
        if record.key is not None:
            before = {at for at in self.produced() if at < place and self._key(at) == record.key}
            assert before <= self.finished, "those before it are not finished"

    def _key(self, place: Place) -> str | None:
        return self.records[place[1] - 1].key

    def produced(self) -> set[Place]:
        return {(0, seq) for seq, each in enumerate(self.records, 1) if each.tag == "yes"}

    async def change(self, kind: str, *values: Any) -> None:
        new = [Record("1", key=key, tag=tag) for key, tag in values[0]]
        self.records += new
        self.owner.produce(*new)


class ExclusiveLives(FilteredLives):
    """The same with one consumer at a time."""

    settings: ClassVar[dict[str, Any]] = {**FilteredLives.settings, "mode": "exclusive"}

    def judge(self, place: Place, event: dict[str, Any]) -> None:
        assert place not in self.finished and self.records[place[1] - 1].tag == "yes"


RECORDS = st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, "yes", "no"]))
STEPS = steps_of("cd", st.tuples(st.just("produce"), st.lists(RECORDS, min_size=1, max_size=5)))


@pytest.mark.parametrize("lives", [FilteredLives, ExclusiveLives])
@settings(max_examples=examples(50), deadline=None)
@given(todo=STEPS)
def test_whatever_happens_all_that_matches_is_finished_and_nothing_else_comes(
    lives: type[Lives], todo: list[Step]
) -> None:
    lives.run(todo)
