"""Senders and the window of their subscription together, in all orders of events.

Batches, requests and answers are under way for any time, POSTs fail, records are refused, streams
break and the owner dies. What a receiver may see is checked at each POST against all messages.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)  # fmt: skip

from delivery.push.queue import PushQueue, Unit
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.messages import Place
from delivery.subscriptions.window.windows import window_for
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscription_rules import KeyFallback, Mode, SubscriptionRules
from tests.delivery.push.test_queue import Message
from tests.delivery.subscriptions.tracked import rows_of

S = 1_000_000_000
SENDERS = ("push/0", "push/1")
KEYS = ("a", "b", None)

settings_of_push = st.builds(
    PushSettings,
    endpoint=st.just("http://receiver.example/"),
    connections_max=st.integers(1, 4),
    format=st.sampled_from(["binary", "batch", "batch"]),
    batch_max=st.sampled_from([1, 3, 100]),
    batch_bytes_max=st.sampled_from([1_024, 1_000_000]),
    batch_wait_ms=st.sampled_from([0, 1_000]),
)
policies = st.builds(
    WindowPolicy,
    in_flight_max=st.integers(4, 30),
    member_max=st.integers(2, 20),
    run_max=st.sampled_from([1, 3, 100]),
    ack_timeout_ns=st.just(1 << 62),
    redeliveries_max=st.integers(0, 1),
    poison=st.sampled_from(["block", "drop", "dead_letter"]),
)


class Asked(NamedTuple):
    """A request of a sender that its owner has not judged yet. ``life`` is that of its stream."""

    sender: str
    messages: list[tuple[Place, int]]
    is_nack: bool
    is_counted: bool
    life: int


class SendersMachine(RuleBasedStateMachine):
    """Each rule is an event anywhere between the owner and the receiver."""

    mode: Mode = "key_shared"

    @initialize(
        policy=policies, push=settings_of_push, key_fallback=st.sampled_from(["none", "node"])
    )
    def begin(self, policy: WindowPolicy, push: PushSettings, key_fallback: KeyFallback) -> None:
        self.keyed = SubscriptionRules(mode=self.mode, key_fallback=key_fallback)
        self.policy, self.push = policy, push
        self.now_ns = 1 * S
        self.keys: dict[Place, str | None] = {}
        self.finished: set[Place] = set()
        self.delivered: set[Place] = set()
        self.bad: set[Place] = set()
        self.window = self.opened(0)
        self.asked: list[Asked] = []
        self.queues: dict[str, PushQueue[Message]] = {}
        self.wires: dict[str, deque[list[Message] | None]] = {}
        self.under_way: list[tuple[str, Unit[Message]]] = []
        self.lives = dict.fromkeys(SENDERS, 0)
        for name in SENDERS:
            self.queues[name] = PushQueue(self.keyed, push)
            self.wires[name] = deque()
        self.open_stream(SENDERS[0])

    def opened(self, epoch: int) -> SubscriptionWindow:
        """A window that knows what is finished."""
        window = window_for(self.mode, self.policy, epoch, is_pushed=True)
        for partition in (0, 1):
            look_ahead = window.open(partition, 0)
            for row, bits in rows_of(at for p, at in self.finished if p == partition):
                look_ahead.restore(row, bits)
            for place in sorted(self.keys):
                if place[0] == partition:
                    window.admit(partition, [self.keys[place]])
        return window

    def open_stream(self, name: str) -> None:
        """A sender's stream begins, or begins again."""
        self.wires[name].clear()
        self.queues[name].clear()
        self.lives[name] += 1
        if name in self.window.members.by_name:
            self.window.returned(name)
        else:
            self.window.join(name)

    def run_of(self, place: Place) -> Any:
        """What orders a message."""
        if self.mode == "exclusive":
            return place[0]
        key = self.keys[place] if self.mode == "key_shared" else None
        return place if key is None else (key, place[0])

    # The owner

    @rule(
        partition=st.sampled_from((0, 0, 1)),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8),
        bad=st.sampled_from([False, False, True]),
    )
    def admit(self, partition: int, keys: list[str | None], bad: bool) -> None:
        for key in keys:
            place = partition, sum(each[0] == partition for each in self.keys) + 1
            self.keys[place] = key
            if bad:
                self.bad.add(place)
        self.window.admit(partition, keys)

    def send(self, name: str, count: int) -> None:
        """The owner sends a batch, if there is one."""
        if name not in self.window.members.by_name:
            return
        batch = self.window.take(name, count, self.now_ns)
        if batch is not None:
            self.window.sent(batch.epoch, self.now_ns)
            sent = [each.place for each in batch.messages if each is not None]
            self.wires[name].append([self.message(place, batch.epoch) for place in sent])

    def message(self, place: Place, epoch: int) -> Message:
        """What a sender gets."""
        size = 900 if place[1] % 5 == 0 else 100
        key = self.keys[place]
        if self.keyed.takes_nodes:
            return Message(place[1], None, place[0], size, epoch, node=key)
        return Message(place[1], key, place[0], size, epoch)

    def lose(self, number: int) -> None:
        """A request is lost with its stream, if that was not over already."""
        asked = self.asked.pop(number % len(self.asked))
        if asked.life == self.lives[asked.sender]:
            self.open_stream(asked.sender)

    def judge(self, number: int) -> None:
        """The owner judges a request."""
        asked = self.asked.pop(number % len(self.asked))
        for place, epoch in asked.messages:
            if asked.is_nack:
                self.window.nack(
                    asked.sender, epoch, self.now_ns, [place], is_counted=asked.is_counted
                )  # fmt: skip
            else:
                self.window.ack(asked.sender, epoch, self.now_ns, [place])
        self.learn()

    @rule(seconds=st.sampled_from([0, 1, 10]))
    def tick(self, seconds: int) -> None:
        self.now_ns += seconds * S
        assert not self.window.tick(self.now_ns)

    @precondition(lambda self: self.window.blocked.stuck)
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        self.window.moved(*data.draw(st.sampled_from(sorted(self.window.blocked.stuck))))
        self.learn()

    @rule(
        what=st.sampled_from([*[""] * 15, "die", "begin_again", "lose", "come_or_go", "reopen"]),
        name=st.sampled_from(SENDERS),
        number=st.integers(0, 9),
    )
    def trouble(self, what: str, name: str, number: int) -> None:
        if what == "die":
            self.die()
        elif what == "begin_again":
            self.begin_again()
        elif what == "come_or_go":
            self.come_or_go(name)
        elif what == "lose" and self.asked:
            self.lose(number)
        elif what == "reopen" and name in self.window.members.by_name:
            self.open_stream(name)

    def die(self) -> None:
        """The owner dies; its successor knows what is finished."""
        present = [name for name in SENDERS if name in self.window.members.by_name]
        self.window = self.opened(self.window.epoch)
        for name in present:
            self.open_stream(name)

    def begin_again(self) -> None:
        """Another window takes the place of this one, as after a seek; no stream ends, but senders
        are told, after all that they were sent."""
        present = list(self.window.members.by_name)
        self.window = self.opened(self.window.epoch)
        for name in present:
            self.window.join(name)
            self.wires[name].append(None)

    def learn(self) -> None:
        """What the window has finished."""
        for partition, offsets in self.window.take_news().items():
            self.finished.update((partition, offset) for offset in offsets)

    # The senders

    def come_or_go(self, name: str) -> None:
        """One more sender, or one less."""
        if name not in self.window.members.by_name:
            self.open_stream(name)
        elif len(self.window.members.by_name) == 2:
            self.wires[name].clear()
            self.queues[name].clear()
            self.lives[name] += 1
            self.window.leave(name)

    # What goes on all the time

    @rule(
        work=st.lists(
            st.tuples(
                st.sampled_from(["send", "receive", "post", "end", "judge"]),
                st.sampled_from([*SENDERS, *SENDERS[:1] * 3]),
                st.sampled_from([0, 0, 0, 1, 2]),
                st.sampled_from([1, 1, 3, 20]),
                st.booleans(),
            ),
            min_size=2,
            max_size=12,
        )
    )
    def work(self, work: list[tuple[str, str, int, int, bool]]) -> None:
        for each in work:
            self.go_on(*each)

    def go_on(self, what: str, name: str, number: int, count: int, fails: bool) -> None:
        """One step, if it is possible."""
        if what == "send":
            self.send(name, count)
        elif what == "receive":
            self.receive(name)
        elif what == "post":
            self.post(name)
        elif what == "end" and self.under_way:
            self.end_post(number, fails)
        elif what == "judge" and self.asked:
            self.judge(number)

    def receive(self, name: str) -> None:
        """A sender reads its stream."""
        if not self.wires[name]:
            return
        messages = self.wires[name].popleft()
        if messages is None:
            self.queues[name].clear()
        else:
            self.queues[name].add(messages, self.now_ns)

    def post(self, name: str) -> None:
        """A POST begins, if one may."""
        queue = self.queues[name]
        count = queue.under_way
        unit = queue.next(self.now_ns)
        if unit is None:
            due_ns = queue.next_due_ns()
            assert due_ns is None or due_ns > self.now_ns or count == self.push.connections_max
            return
        places = [each.place for each in unit.messages]
        self.check_bounds(unit)
        for other_name, other in self.under_way:
            if other_name == name:
                theirs = {self.run_of(each.place) for each in other.messages}
                assert not theirs & {self.run_of(place) for place in places}
        for index, place in enumerate(places):
            run = self.run_of(place)
            before = {each for each in self.keys if each < place and self.run_of(each) == run}
            left = before - self.delivered - self.finished - set(places[:index])
            assert not left, f"{place} is sent before {left}"
        self.under_way.append((name, unit))

    def check_bounds(self, unit: Unit[Message]) -> None:
        """What a POST may carry."""
        count = len(unit.messages)
        assert 1 <= count <= (self.push.batch_max if self.push.format == "batch" else 1)
        size = sum(each.size_bytes for each in unit.messages)
        assert size <= self.push.batch_bytes_max or count == 1
        runs = [self.run_of(each.place) for each in unit.messages]
        changes = sum(a != b for a, b in pairwise(runs))
        assert changes == len(set(runs)) - 1, "messages of a run are next to each other"

    def end_post(self, number: int, fails: bool) -> None:
        """A POST ends, or is given up."""
        name, unit = self.under_way.pop(number % len(self.under_way))
        queue = self.queues[name]
        places = {each.place for each in unit.messages}
        if not fails and not places & self.bad:
            self.delivered |= places
            acknowledged, come_again = queue.done(unit)
            assert {*come_again, *(each.place for each in acknowledged)} == places
            self.ask(name, acknowledged, is_nack=False)
            return
        nacked = queue.failed(unit) if fails else queue.refused(unit)
        self.ask(name, nacked, is_nack=True, is_counted=not fails)

    def ask(
        self, name: str, messages: list[Message], *, is_nack: bool, is_counted: bool = False
    ) -> None:
        if messages:
            named = [(each.place, each.epoch) for each in messages]
            life = self.lives[name]
            self.asked.append(Asked(name, named, is_nack, is_counted, life))

    @invariant()
    def all_parts_agree(self) -> None:
        if hasattr(self, "queues"):
            for queue in self.queues.values():
                queue.check_invariants()
                assert queue.under_way <= self.push.connections_max
            self.window.check_invariants()

    def teardown(self) -> None:
        """In the end everything is delivered that the receiver takes."""
        if not hasattr(self, "queues"):
            return
        for _ in range(10_000):
            if not self.step() and not self.window.unfinished:
                break
            for place in list(self.window.blocked.stuck):
                assert place in self.bad
                self.window.moved(*place)
                self.learn()
        assert not self.window.unfinished, "a message is lost"
        assert self.keys.keys() - self.delivered <= self.bad
        assert not any(queue.messages or queue.bytes for queue in self.queues.values())

    def step(self) -> bool:
        """What is under way arrives, and no receiver fails any more."""
        self.tick(10)
        busy = bool(self.asked or self.under_way)
        for name in SENDERS:
            self.send(name, 20)
            while self.wires[name]:
                self.receive(name)
            self.post(name)
        if self.under_way:
            self.end_post(0, False)
        if self.asked:
            self.judge(0)
        return busy


class SharedSendersMachine(SendersMachine):
    """Messages without any order."""

    mode: Mode = "shared"


class ExclusiveSendersMachine(SendersMachine):
    """Messages in the order of each partition."""

    mode: Mode = "exclusive"


MACHINES = (SendersMachine, SharedSendersMachine, ExclusiveSendersMachine)


def run(machine: type[SendersMachine], examples: int, steps: int) -> None:
    """Runs a machine."""
    given = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=given)


@pytest.mark.parametrize("machine", MACHINES)
def test_senders_keep_order_and_lose_nothing(machine: type[SendersMachine]) -> None:
    run(machine, 12, 25)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_senders_do_so_in_long_histories(machine: type[SendersMachine]) -> None:
    run(machine, 200, 60)
