"""All windows against an obvious model, over any order of events, with crashes between them."""

from __future__ import annotations

import msgspec
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

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.windows import window_for
from ledger.delivery.progress import ROW_OFFSETS
from ledger.delivery.subscription_rules import Mode
from tests.delivery.subscriptions.obvious import (
    ObviousSubscription,
    Place,
    PushedExclusiveSubscription,
    PushedSubscription,
)  # fmt: skip

S = 1_000_000_000
NAMES = ("a", "b", "c")
GAPS = (1, 3, ROW_OFFSETS - 2, ROW_OFFSETS, 1_000_000_000, 1 << 33)
COSTLY = "x" * 1_000  # keys that are compared with it find their owners later
KEYS = ("k0", "k1", "k2", "k3", None)
PARTITIONS = (0, 1)

policies = st.builds(
    WindowPolicy,
    in_flight_max=st.integers(1, 6),
    member_max=st.integers(1, 4),
    ack_timeout_ns=st.sampled_from([10 * S, 30 * S]),
    redeliveries_max=st.integers(0, 2),
    poison=st.sampled_from(["block", "drop", "dead_letter"]),
    unmatched=st.sampled_from(["hold", "skip"]),
    run_max=st.integers(2, 5),  # of what is pushed
)


class WindowsMachine(RuleBasedStateMachine):
    """Each rule is an event of the window and of the model."""

    mode: Mode = "key_shared"
    is_pushed = False
    model_of = ObviousSubscription

    @initialize(policy=policies)
    def begin(self, policy: WindowPolicy) -> None:
        policy = self.suited(policy)
        self.model = self.model_of(self.mode, policy)
        self.window: SubscriptionWindow = window_for(self.mode, policy, is_pushed=self.is_pushed)
        self.now_ns = 1 * S
        self.first_sent: dict[tuple[str | None, int], list[int]] = {}
        self.taken_letters: set[Place] = set()
        self.stored: set[Place] = set()
        self.heads = dict.fromkeys(PARTITIONS, 0)
        self.stored_floors = dict.fromkeys(PARTITIONS, 0)
        self.stored_rows: dict[tuple[int, int], int] = {}
        self.journal: list[Place] = []
        for partition in PARTITIONS:
            self.window.open(partition, 0)

    def suited(self, policy: WindowPolicy) -> WindowPolicy:
        """A policy under which something happens that only this kind of window does."""
        if not self.is_pushed:
            return policy
        return msgspec.structs.replace(
            policy, in_flight_max=2 + policy.in_flight_max, member_max=2 + policy.member_max
        )

    def head(self, partition: int) -> int:
        """The last offset of a partition."""
        return self.heads[partition]

    def known(self, *which: str) -> list[str]:
        """Members that are present."""
        return [name for name in which if name in self.model.members]

    # Messages come in

    @rule(
        partition=st.sampled_from(PARTITIONS),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
    )
    def admit(self, partition: int, keys: list[str | None]) -> None:
        if self.is_pushed:  # runs take several messages of a key
            keys = [{"k1": "k0", "k3": "k2"}.get(key or "", key) for key in keys]
        for offset, key in enumerate(keys, self.head(partition) + 1):
            self.model.keys[partition, offset] = key
        self.heads[partition] += len(keys)
        self.window.admit(partition, keys)

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 3))
    def admit_loose(self, partition: int, count: int) -> None:
        for offset in range(self.head(partition) + 1, self.head(partition) + 1 + count):
            self.model.keys[partition, offset] = None
        self.heads[partition] += count
        self.window.admit_loose(partition, count)

    @rule(partition=st.sampled_from(PARTITIONS), count=st.sampled_from(GAPS))
    def pass_over(self, partition: int, count: int) -> None:
        """A gap: nothing was ever there for this subscription."""
        self.heads[partition] += count
        self.window.pass_over(partition, count)

    @rule(partition=st.sampled_from(PARTITIONS), part=st.sampled_from([0.3, 0.6, 1]))
    def evict(self, partition: int, part: float) -> None:
        before = int(self.head(partition) * part) + 1
        self.model.evict(partition, before)
        self.window.evict(partition, before)

    # Members

    @rule(
        name=st.sampled_from(NAMES),
        patterns=st.sampled_from([[], [], ["k0", "k1"], ["k?", COSTLY]]),
    )
    def join(self, name: str, patterns: list[str]) -> None:
        if not self.known(name):
            patterns = patterns if self.mode == "key_shared" else []
            self.model.members[name] = patterns
            self.window.join(name, patterns)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        if self.known(name):
            self.model.leave(name)
            self.window.leave(name)

    @rule(name=st.sampled_from(NAMES))
    def come_back(self, name: str) -> None:
        if self.known(name):
            model = self.model
            model.come_back([p for p, at in model.out.items() if model.batches[at][0] == name])
            self.window.returned(name)

    # Messages go out

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 5), is_sent=st.booleans())
    def take(self, name: str, count: int, is_sent: bool) -> None:
        if not self.known(name):
            return
        self.window.settle()
        settled = self.window.next_due_ns() != 0
        self.look()
        possible = [p for p in self.model.unfinished() if self.model.may_be_sent(name, p)]
        left = min(count, self.model.left(name))
        batch = self.window.take(name, count, self.now_ns)
        self.look()
        if batch is None:
            assert not settled or left <= 0 or not possible, "there is something to send"
            return
        assert 1 <= len(batch.messages) <= left
        places: list[Place] = []
        self.model.taking = batch.epoch
        for message in batch.messages:
            assert message is not None
            assert self.model.may_be_sent(name, message.place), "not now, or not to this one"
            assert message.attempts == self.model.attempts.get(message.place, 0)
            key = self.model.key_of(message.place)
            if key is not None or self.mode == "exclusive":
                sent = self.first_sent.setdefault((key, message.look_ahead.partition), [])
                if message.offset not in sent:
                    sent.append(message.offset)
            places.append(message.place)
            self.model.send(name, batch.epoch, [message.place])
        self.model.taking = None
        if is_sent:
            self.sent(batch.epoch)

    def sent(self, epoch: int) -> None:
        """A batch was written."""
        name, sent_ns = self.model.batches[epoch]
        if sent_ns is None and self.model.in_batch(epoch):
            self.model.batches[epoch] = (name, self.now_ns)
        self.window.sent(epoch, self.now_ns)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def sent_late(self, data: st.DataObject) -> None:
        self.sent(data.draw(st.sampled_from(sorted(self.model.batches))))

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data(), how=st.sampled_from(["all", "some", "missing"]))
    def give_back(self, data: st.DataObject, how: str) -> None:
        epoch = data.draw(st.sampled_from(sorted(self.model.batches)))
        left = self.model.in_batch(epoch)
        chosen = data.draw(st.lists(st.sampled_from(left), unique=True)) if left else []
        if how == "missing":
            for place in chosen:
                self.model.finish(place, decided=False)
            self.window.missing(epoch, chosen)
        else:
            self.model.come_back(left if how == "all" else chosen)
            self.window.give_back(epoch, None if how == "all" else chosen)

    # Outcomes

    @precondition(lambda self: self.model.batches)
    @rule(
        data=st.data(),
        how=st.sampled_from(["all", "but", "some"]),
        is_mine=st.sampled_from([True, True, False]),
        delay_s=st.sampled_from([None, None, 0, 100]),
        is_counted=st.booleans(),
    )
    def answer(
        self, data: st.DataObject, how: str, is_mine: bool, delay_s: int | None, is_counted: bool
    ) -> None:
        model = self.model
        epoch = data.draw(st.sampled_from(sorted(model.batches)))
        name = model.batches[epoch][0] if is_mine else "stranger"
        left = model.in_batch(epoch) if is_mine else []
        named = data.draw(st.lists(st.sampled_from([*left, (9, 999)]), unique=True, max_size=5))
        if how == "all":
            named = []
        chosen = [p for p in left if p not in named] if how != "some" else named
        accepted = [place for place in chosen if place in left]
        if left:
            model.heard[name] = self.now_ns
        finished = set(model.finished)
        for place in sorted(accepted):
            if delay_s is None:
                model.finish(place)
            else:
                model.fail(place, self.now_ns, delay_s * S, is_counted=is_counted)
        messages, but = (named, []) if how == "some" else (None, named)
        if delay_s is None:
            outcome = self.window.ack(name, epoch, self.now_ns, messages, but)
        else:
            delay_ns = delay_s * S
            outcome = self.window.nack(
                name, epoch, self.now_ns, messages, but, delay_ns, "", is_counted
            )
        assert outcome.accepted == len(accepted)
        if messages is None:
            assert outcome.refused == (not left)
        else:
            assert outcome.refused == len(named) - len(accepted)
            for refusal in outcome.refusals:
                assert (refusal.reason == "finished") == (refusal.place in finished)

    @rule(seconds=st.sampled_from([0, 1, 5, 31, 100]))
    def tick(self, seconds: int) -> None:
        self.now_ns += seconds * S
        assert self.window.tick(self.now_ns) == self.model.tick(self.now_ns)

    # Operators and policies

    @rule(policy=policies)
    def set_policy(self, policy: WindowPolicy) -> None:
        policy = self.suited(policy)
        if policy.in_flight_max >= len(self.model.out):  # else the caps cannot be checked
            self.model.set_policy(policy, self.taken_letters)
            self.window.set_policy(policy)

    @precondition(lambda self: self.window.dead_letters.waiting)
    @rule(data=st.data())
    def send_a_dead_letter(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.window.dead_letters.waiting)))
        self.window.dead_letters.move_away(place)
        self.taken_letters.add(place)

    @precondition(lambda self: self.taken_letters)
    @rule(data=st.data(), stored=st.booleans())
    def settle_a_dead_letter(self, data: st.DataObject, stored: bool) -> None:
        place = data.draw(st.sampled_from(sorted(self.taken_letters)))
        assert not self.window.retry(*place)
        self.taken_letters.discard(place)
        if stored:
            self.model.finish(place)
            assert self.window.moved(*place)
        else:
            self.model.set_policy(self.model.policy, self.model.stuck - {place})
            self.window.not_moved(place)

    @precondition(lambda self: self.model.stuck - self.taken_letters or self.model.rests)
    @rule(data=st.data(), again=st.booleans())
    def settle(self, data: st.DataObject, again: bool) -> None:
        stuck = self.model.stuck - self.taken_letters
        place = data.draw(st.sampled_from(sorted([*stuck, *self.model.rests])))
        (self.model.retry if again else self.model.finish)(place)
        assert (self.window.retry if again else self.window.moved)(*place)
        assert not self.window.moved(*place) and not self.window.retry(*place)

    # Durability

    @rule()
    def flush(self) -> None:
        self.look()
        for partition, look_ahead in self.window.look_aheads.items():
            self.stored_floors[partition] = look_ahead.floor
            for row in look_ahead.changed_rows:
                bits = look_ahead.row(row)
                if bits is not None:
                    before = self.stored_rows.get((partition, row), 0)
                    self.stored_rows[partition, row] = before | int.from_bytes(bits, "little")
            look_ahead.changed_rows.clear()
        self.stored = set(self.model.finished)
        self.journal.clear()

    @rule(keeps=st.sampled_from(["flushed", "journaled", "all"]))
    def begin_again(self, keeps: str) -> None:
        """A crash: what was not finished durably is delivered again. Or another window takes over
        what this one knows, as when the mode changes."""
        self.look()
        model, former = self.model, self.window
        model.forget_deliveries()
        self.window = window_for(self.mode, model.policy, former.epoch, is_pushed=self.is_pushed)
        if keeps == "journaled":
            self.replay()
        if keeps != "all":
            model.finished = set(self.stored)
        for partition in PARTITIONS:
            if keeps == "all":
                look_ahead = self.window.open(partition, former.look_aheads[partition].floor)
                look_ahead.take_over(former.look_aheads[partition])
            else:
                look_ahead = self.window.open(partition, self.stored_floors[partition])
                for (at, row), bits in sorted(self.stored_rows.items()):
                    if at == partition:
                        look_ahead.restore(row, bits.to_bytes(512, "little"))
            self.admit_again(partition)
            self.window.evict(partition, model.gone_before[partition])
        if keeps == "flushed":
            self.journal.clear()

    def replay(self) -> None:
        """Writes the journal into the ledger, before a successor begins."""
        for partition, offset in self.journal:
            row, bit = divmod(offset, ROW_OFFSETS)
            before = self.stored_rows.get((partition, row), 0)
            self.stored_rows[partition, row] = before | 1 << bit
        self.stored.update(self.journal)
        self.journal.clear()

    def admit_again(self, partition: int) -> None:
        """All after the floor; what is finished is passed over in one step or one by one."""
        look_ahead, keys = self.window.look_aheads[partition], self.model.keys
        for offset in sorted(offset for at, offset in keys if at == partition):
            if look_ahead.end < offset <= look_ahead.end + look_ahead.finished_next:
                self.window.pass_over(partition, look_ahead.finished_next)
            if offset > look_ahead.end + 1:
                self.window.pass_over(partition, offset - look_ahead.end - 1)
            if offset > look_ahead.end:
                self.window.admit(partition, [keys[partition, offset]])
        self.window.pass_over(partition, max(0, self.head(partition) - look_ahead.end))

    # What holds after each step

    def look(self) -> None:
        """Learns what the window finished by itself, if it may."""
        model = self.model
        for place in model.unfinished():
            if self.window.look_aheads[place[0]].is_done(place[1]):
                assert model.may_finish_by_itself(place), f"{place} was never acknowledged"
                model.finish(place, decided=not model.is_evicted(place))

    @invariant()
    def it_agrees_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        window, model = self.window, self.model
        window.check_invariants()
        for place, letter in window.dead_letters.waiting.items():
            assert letter.attempts == model.attempts[place]
        self.look()
        news = window.take_news()
        places = [(partition, offset) for partition, offsets in news.items() for offset in offsets]
        assert sorted(places) == sorted(model.decided), "each decision is told once"
        self.journal += places
        model.decided.clear()
        self.taken_letters &= model.stuck
        for place in model.keys:
            assert window.look_aheads[place[0]].is_done(place[1]) == (place in model.finished)
        for partition in PARTITIONS:
            left = [offset for at, offset in model.unfinished() if at == partition]
            assert window.look_aheads[partition].floor == min([*left, self.head(partition) + 1]) - 1
        assert set(window.blocked.stuck) == model.stuck
        assert set(window.blocked.resting) == set(model.rests)
        assert window.in_flight == len(model.out) <= model.policy.in_flight_max
        for place, blocked in window.blocked.resting.items():
            assert blocked.is_counted == (place not in model.uncounted)
            assert blocked.attempts == model.attempts.get(place, 0)
        assert window.unfinished == len(model.unfinished())
        if window.next_due_ns() != 0:  # otherwise keys still look for their owners
            assert window.drainable == model.drainable()
        in_batches = {
            message.place: epoch
            for epoch, batch in window.batches.items()
            for message in batch.messages
            if message is not None
        }
        assert in_batches == model.out

    @invariant()
    def at_most_one_message_of_a_key_is_out(self) -> None:
        if hasattr(self, "model") and not self.is_pushed:
            keys = [self.model.key_of(place) for place in self.model.out]
            known = [key for key in keys if key is not None]
            assert len(known) == len(set(known))

    @invariant()
    def first_deliveries_are_in_order(self) -> None:
        for key, offsets in getattr(self, "first_sent", {}).items():
            assert offsets == sorted(offsets), f"first deliveries of {key} are out of order"

    def teardown(self) -> None:
        """In the end everything is delivered, or a decision finishes it."""
        if not hasattr(self, "model"):
            return
        window = self.window
        for name in list(window.members.by_name):
            window.leave(name)
        window.join("last")
        for _ in range(1_000):
            self.now_ns += 100 * S
            window.tick(self.now_ns)
            for place in list(window.blocked.stuck):
                window.moved(*place)
            batch = window.take("last", 10, self.now_ns)
            if batch is not None:
                window.ack("last", batch.epoch, self.now_ns)
            elif not window.unfinished:
                break
        window.check_invariants()
        assert not window.in_flight
        assert all(
            look_ahead.floor == look_ahead.end for look_ahead in window.look_aheads.values()
        ), "nothing was lost"


class SharedMachine(WindowsMachine):
    """Messages without any order."""

    mode = "shared"


class ExclusiveMachine(WindowsMachine):
    """Messages in total order."""

    mode = "exclusive"


class PushedExclusiveMachine(ExclusiveMachine):
    """Messages of a partition in runs."""

    is_pushed = True
    model_of = PushedExclusiveSubscription


class PushedMachine(WindowsMachine):
    """Messages of a key in runs."""

    is_pushed = True
    model_of = PushedSubscription

    @invariant()
    def what_is_out_of_a_key_is_with_one_member_and_next(self) -> None:
        model = getattr(self, "model", None)
        if not isinstance(model, PushedSubscription):
            return
        for key in {model.key_of(place) for place in model.out} - {None}:
            out = sorted(place for place in model.out if model.keys[place] == key)
            assert len({(place[0], model.out[place]) for place in out}) == 1
            mine = [p for p in model.unfinished() if model.keys[p] == key and p[0] == out[0][0]]
            assert out == [place for place in mine if place <= out[-1]][-len(out) :]


MACHINES = (WindowsMachine, SharedMachine, ExclusiveMachine, PushedMachine, PushedExclusiveMachine)


def run(machine: type[WindowsMachine], examples: int, steps: int) -> None:
    """Runs a machine."""
    checks = list(HealthCheck)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None,
            suppress_health_check=checks,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_a_window_does_what_the_obvious_model_says(machine: type[WindowsMachine]) -> None:
    """K4 to K9, K11, K16, K18 to K20, in all orders of events."""
    run(machine, 20, 30)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_a_window_does_so_in_long_histories(machine: type[WindowsMachine]) -> None:
    """K4 to K9, K11, K16, K18 to K20, in all orders of events."""
    run(machine, 150, 80)
