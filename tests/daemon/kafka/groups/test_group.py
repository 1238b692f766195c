"""Consumer groups: the answers of Kafka's coordinator in each state, and that no order of joins,
silences and departures leaves a client without an answer or a partition without one reader."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from daemon.kafka.error_codes import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from daemon.kafka.groups import group as machine
from daemon.kafka.groups.group import (
    FIRST_REBALANCE_MS,
    NEW_MEMBER_MS,
    ConsumerGroup,
    Joined,
    Joining,
    State,
    Synced,
)

SESSION_MS, REBALANCE_MS = 10_000, 60_000
RANGE = (("range", b"r"),)


class Bench:
    """A group, a clock, and the answers by the names of their waiters."""

    def __init__(self) -> None:
        self.group = ConsumerGroup()
        self.now_ms = 0
        self.ids = itertools.count()
        self.heard: dict[Any, Joined | Synced] = {}

    def take(self) -> None:
        for waiter, answer in self.group.answers:
            assert waiter not in self.heard, "it was answered before"
            self.heard[waiter] = answer
        self.group.answers.clear()
        self.group.check_invariants()

    def joined(self, waiter: Any) -> Joined:
        found = self.heard.pop(waiter)
        assert isinstance(found, Joined)
        return found

    def synced(self, waiter: Any) -> Synced:
        found = self.heard.pop(waiter)
        assert isinstance(found, Synced)
        return found

    def join(self, waiter: Any, member_id: str = "", **more: Any) -> None:
        values = {
            "instance": None, "client_id": "c", "host": "h", "session_ms": SESSION_MS,
            "rebalance_ms": REBALANCE_MS, "protocol_type": "consumer", "protocols": RANGE, **more,
        }  # fmt: skip
        asked = Joining(member_id, **values)
        self.group.join(asked, f"m{next(self.ids)}", waiter, self.now_ms)
        self.take()

    def sync(self, waiter: Any, member_id: str, generation: int, parts: Any = None,
             instance: str | None = None,
             protocols: tuple[str | None, str | None] = (None, None)) -> None:  # fmt: skip
        self.group.sync(
            member_id, instance, generation, protocols, parts or {}, waiter, self.now_ms
        )
        self.take()

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        return self.group.heartbeat(member_id, instance, generation, self.now_ms)

    def leave(self, member_id: str, instance: str | None = None) -> int:
        error = self.group.leave(member_id, instance, self.now_ms)
        self.take()
        return error

    def wait(self, passed_ms: int) -> None:
        """Time passes, and the group is told whenever it wants to be."""
        until_ms = self.now_ms + passed_ms
        while (next_ms := self.group.next_ms()) is not None and next_ms <= until_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.group.advance(self.now_ms)
            self.take()
        self.now_ms = until_ms

    def stable(self, *names: str, **more: Any) -> list[str]:
        """Members who joined together and have synced; the first one leads."""
        for name in names:
            self.join(name, **more)
        self.wait(FIRST_REBALANCE_MS)
        joined = [self.joined(name) for name in names]
        assert {each.error for each in joined} == {0}
        ids = [each.member_id for each in joined]
        for each in reversed(ids):
            self.sync(each, each, joined[0].generation, {one: one.encode() for one in ids})
        assert [self.synced(each).assignment.decode() for each in ids] == ids
        return ids


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_members_who_start_together_get_one_generation(bench: Bench) -> None:
    bench.join("a")
    bench.wait(FIRST_REBALANCE_MS - 1)
    bench.join("b")
    assert not bench.heard
    bench.wait(1)
    first, second = bench.joined("a"), bench.joined("b")
    assert first.leader == second.leader == first.member_id
    assert [each.member_id for each in first.members] == [first.member_id, second.member_id]
    assert second.members == () and first.generation == second.generation == 1
    assert (first.protocol_type, first.protocol) == ("consumer", "range")


def test_a_member_gets_its_part_when_the_leader_has_said_it(bench: Bench) -> None:
    bench.join("a")
    bench.join("b")
    bench.wait(FIRST_REBALANCE_MS)
    leader, other = bench.joined("a").member_id, bench.joined("b").member_id
    bench.sync("b", other, 1)
    assert not bench.heard and bench.group.state == State.COMPLETING
    bench.sync("a", leader, 1, {other: b"all"})
    assert bench.synced("b") == Synced(0, "consumer", "range", b"all")
    assert bench.synced("a").assignment == b""
    bench.sync("again", other, 1)
    assert bench.synced("again").assignment == b"all"


def test_an_id_is_given_first_where_the_version_asks_for_it(bench: Bench) -> None:
    bench.join("a", needs_known_id=True)
    given = bench.joined("a")
    assert (given.error, given.generation) == (MEMBER_ID_REQUIRED, -1)
    assert bench.group.state == State.EMPTY
    bench.join("a", given.member_id, needs_known_id=True)
    bench.wait(FIRST_REBALANCE_MS)
    assert bench.joined("a").member_id == given.member_id
    bench.join("s", instance="i", needs_known_id=True)
    assert "s" not in bench.heard, "a static member needs no id"


def test_an_id_that_is_not_used_is_forgotten(bench: Bench) -> None:
    bench.join("a", needs_known_id=True)
    given = bench.joined("a").member_id
    bench.wait(SESSION_MS)
    assert bench.group.is_vacant
    bench.join("a", given)
    assert bench.joined("a").error == UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_an_id_that_was_given(bench: Bench) -> None:
    (a,) = bench.stable("a")
    bench.join("b")
    bench.join("c", needs_known_id=True)
    bench.join("a", a)
    assert "a" not in bench.heard
    bench.join("c", bench.joined("c").member_id)
    assert {bench.joined(each).generation for each in "abc"} == {2}


def test_a_member_that_joins_makes_the_others_join_again(bench: Bench) -> None:
    a, b = bench.stable("a", "b")
    bench.join("c")
    assert bench.beat(a, 1) == bench.beat(b, 1) == REBALANCE_IN_PROGRESS
    bench.sync("s", b, 1)
    assert bench.synced("s").error == REBALANCE_IN_PROGRESS
    assert bench.group.may_commit(b, None, 1, bench.now_ms) == 0, "it commits what it gives up"
    bench.join("a", a)
    bench.join("b", b)
    assert {bench.joined(each).generation for each in "abc"} == {2}
    assert bench.group.may_commit(b, None, 1, bench.now_ms) == ILLEGAL_GENERATION
    assert bench.group.may_commit(b, None, 2, bench.now_ms) == REBALANCE_IN_PROGRESS
    assert bench.beat(b, 2) == 0
    assert bench.beat(b, 1) == ILLEGAL_GENERATION


def test_who_does_not_join_in_time_is_out(bench: Bench) -> None:
    a, b = bench.stable("a", "b")
    bench.join("c")
    bench.join("b", b)
    for _ in range(REBALANCE_MS // SESSION_MS * 2):
        bench.beat(a, 1)
        bench.wait(SESSION_MS // 2)
    assert bench.joined("b").leader == b == bench.joined("c").leader
    assert bench.beat(a, 1) == UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_after_its_session(bench: Bench) -> None:
    _, b = bench.stable("a", "b")
    bench.wait(SESSION_MS // 2)
    assert bench.beat(b, 1) == 0
    bench.wait(SESSION_MS // 2)
    assert bench.group.state == State.PREPARING and list(bench.group.members) == [b]
    bench.join("b", b)
    assert bench.joined("b").leader == b


def test_a_member_that_waits_does_not_expire_but_a_new_one_does_some_time(bench: Bench) -> None:
    a, b = bench.stable("a", "b", rebalance_ms=2 * NEW_MEMBER_MS)
    bench.join("b", b, protocols=(("range", b"new"),))
    bench.join("c")
    for _ in range(NEW_MEMBER_MS // SESSION_MS * 2 + 2):
        bench.wait(SESSION_MS // 2)
        assert bench.beat(a, 1) == REBALANCE_IN_PROGRESS
    assert "b" not in bench.heard and b in bench.group.members
    assert bench.joined("c").error == UNKNOWN_MEMBER_ID


def test_who_does_not_sync_in_time_is_out(bench: Bench) -> None:
    bench.join("a")
    bench.join("b")
    bench.wait(FIRST_REBALANCE_MS)
    a, b = bench.joined("a").member_id, bench.joined("b").member_id
    bench.sync("a", a, 1, {})
    for _ in range(REBALANCE_MS // SESSION_MS * 2):
        bench.beat(a, 1)
        bench.beat(b, 1)
        bench.wait(SESSION_MS // 2)
    assert list(bench.group.members) == [a]


def test_a_member_that_leaves_is_out_immediately(bench: Bench) -> None:
    a, b = bench.stable("a", "b")
    assert bench.leave(a) == 0
    assert bench.beat(b, 1) == REBALANCE_IN_PROGRESS
    assert bench.leave(a) == UNKNOWN_MEMBER_ID
    assert bench.leave(b) == 0
    assert bench.group.state == State.EMPTY and bench.group.is_vacant
    assert bench.leave("") == UNKNOWN_MEMBER_ID


def test_the_leader_may_ask_for_a_rebalance_and_a_follower_is_told_again(bench: Bench) -> None:
    a, b = bench.stable("a", "b")
    bench.join("b", b)
    assert bench.joined("b").generation == 1
    bench.join("a", a)
    assert bench.group.state == State.PREPARING and "a" not in bench.heard


def test_a_sync_under_way_is_told_of_a_rebalance(bench: Bench) -> None:
    bench.join("a")
    bench.join("b")
    bench.wait(FIRST_REBALANCE_MS)
    b = bench.joined("b").member_id
    bench.sync("b", b, 1)
    bench.join("c")
    assert bench.synced("b").error == REBALANCE_IN_PROGRESS


def test_a_protocol_is_one_that_all_have_and_most_prefer(bench: Bench) -> None:
    x, y, z = ("x", b"1"), ("y", b"2"), ("z", b"3")
    bench.join("a", protocols=(x, y, z))
    bench.join("b", protocols=(z, y))
    bench.join("c", protocols=(z, y, x))
    bench.join("d", protocols=(x,))
    bench.join("e", protocols=(z,), protocol_type="connect")
    assert bench.joined("d").error == bench.joined("e").error == INCONSISTENT_GROUP_PROTOCOL
    bench.wait(FIRST_REBALANCE_MS)
    leader = bench.joined("a")
    assert leader.protocol == "z" and {each.metadata for each in leader.members} == {b"3"}
    bench.sync("a", leader.member_id, 1, protocols=("consumer", "y"))
    assert bench.synced("a").error == INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"session_ms": -1}, INVALID_SESSION_TIMEOUT),
        ({"session_ms": 999}, INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, INVALID_SESSION_TIMEOUT),
        ({"rebalance_ms": -1}, INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": tuple((str(each), b"") for each in range(65))}, INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "instance": "i"}, UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_leaves_nothing(
    bench: Bench, bad: dict[str, Any], code: int
) -> None:
    bench.join("a", **bad)
    assert bench.joined("a").error == code
    assert bench.group.is_vacant and bench.group.state == State.EMPTY


def test_a_group_has_a_size(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMBERS_MAX", 2)
    a, _ = bench.stable("a", "b")
    bench.join("c")
    assert bench.joined("c").error == GROUP_MAX_SIZE_REACHED
    assert bench.beat(a, 1) == 0


def test_a_static_member_takes_its_place_again_and_fences_the_former_one(bench: Bench) -> None:
    bench.join("a", instance="i")
    bench.wait(FIRST_REBALANCE_MS)
    former = bench.joined("a").member_id
    bench.sync("a", former, 1, {former: b"part"}, "i")
    assert bench.synced("a").assignment == b"part"
    bench.join("again", instance="i")
    joined = bench.joined("again")
    assert joined.generation == 1 and joined.leader == former and not joined.members
    bench.sync("again", joined.member_id, 1, None, "i")
    assert bench.synced("again").assignment == b"part"
    assert bench.beat(former, 1, "i") == FENCED_INSTANCE_ID
    assert bench.group.may_commit(former, "i", 1, bench.now_ms) == FENCED_INSTANCE_ID
    bench.join("newer", instance="i", may_skip_assignment=True)
    newer = bench.joined("newer")
    assert newer.skip_assignment and newer.leader == newer.member_id and len(newer.members) == 1
    assert bench.leave("", "i") == 0
    assert bench.group.is_vacant


def test_a_rebalance_keeps_the_place_of_a_static_member_for_its_session(bench: Bench) -> None:
    (a,) = bench.stable("a", rebalance_ms=2_000)
    bench.join("s", instance="i", rebalance_ms=2_000)
    bench.join("a", a, rebalance_ms=2_000)
    s = bench.joined("s").member_id
    bench.heard.clear()
    bench.sync("a", a, 2, {s: b"part"})
    bench.sync("s", s, 2, None, "i")
    bench.heard.clear()
    bench.join("b", rebalance_ms=2_000)
    bench.join("a", a, rebalance_ms=2_000)
    bench.wait(2_000)
    assert {each.member_id for each in bench.joined("a").members} >= {a, s}
    bench.wait(SESSION_MS)
    assert s not in bench.group.members


def test_commits_without_the_protocol_of_groups_are_taken_while_nobody_is_a_member(
    bench: Bench,
) -> None:
    assert bench.group.may_commit("", None, -1, 0) == 0
    (a,) = bench.stable("a")
    assert bench.group.may_commit("", None, -1, 0) == UNKNOWN_MEMBER_ID
    assert bench.group.may_commit(a, None, -1, 0) == ILLEGAL_GENERATION
    assert bench.group.may_commit("x", None, 1, 0) == UNKNOWN_MEMBER_ID


def test_a_group_that_ends_sends_all_away(bench: Bench) -> None:
    a, b = bench.stable("a", "b")
    bench.join("c")
    bench.join("b", b)
    bench.group.end()
    bench.take()
    assert bench.joined("b").error == bench.joined("c").error == NOT_COORDINATOR
    assert bench.beat(a, 1) == NOT_COORDINATOR
    bench.join("a", a)
    assert bench.joined("a").error == NOT_COORDINATOR


# Any order of events


class Client:
    """A consumer as clients are: it joins, syncs, beats, and joins again when it is told to."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.leads: list[str] = []
        self.waits_for: tuple[str, str, int] | None = None
        self.owns: bytes | None = None  # None: it is not reading
        self.requests = 0


class GroupGame(RuleBasedStateMachine):
    """Clients that come, go, are silent, and get or lose their answers, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.clients: list[Client] = []
        self.names = itertools.count()
        self.generations: dict[int, list[tuple[Client, Joined]]] = {}

    def running(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    def hear(self) -> None:
        for client in self.clients:
            waits = client.waits_for
            if waits is None or waits not in self.bench.heard:
                continue
            client.waits_for = None
            answer = self.bench.heard.pop(waits)
            if isinstance(answer, Joined):
                self.hear_joined(client, answer)
            elif answer.error == 0:
                client.owns = answer.assignment
            else:
                self.hear_error(client, answer.error)

    def hear_joined(self, client: Client, joined: Joined) -> None:
        if joined.error == MEMBER_ID_REQUIRED:
            client.member_id = joined.member_id
        elif joined.error:
            self.hear_error(client, joined.error)
        else:
            assert joined.generation >= client.generation
            client.member_id, client.generation = joined.member_id, joined.generation
            client.leads = [each.member_id for each in joined.members]
            client.owns = None
            self.generations.setdefault(joined.generation, []).append((client, joined))

    def hear_error(self, client: Client, error: int) -> None:
        client.owns = None
        if error in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION):
            client.member_id, client.generation = "", -1
        elif error == FENCED_INSTANCE_ID:
            self.clients.remove(client)
        else:
            assert error == REBALANCE_IN_PROGRESS, error

    def ask(self, client: Client, what: str) -> tuple[str, str, int]:
        client.requests += 1
        client.waits_for = (client.name, what, client.requests)
        return client.waits_for

    @initialize(count=st.integers(0, 3), is_stable=st.booleans(), is_static=st.booleans())
    def begin(self, count: int, is_stable: bool, is_static: bool) -> None:
        """Some have joined, and may have synced."""
        for each in range(count):
            self.start(is_static and not each)
            for _ in range(1 if is_static and not each else 2):
                self.join(each, False)
        self.wait(FIRST_REBALANCE_MS)
        if is_stable:
            self.all_do_as_clients_do()

    @rule(number=st.integers(0, 3))
    def all_join_again_and_one_loses_the_answer(self, number: int) -> None:
        if (loser := self.running(number)) is None:
            return
        for at, client in enumerate(list(self.clients)):
            if client.waits_for is None and client is not loser:
                self.join(at, True)
        if loser in self.clients and loser.waits_for is None and loser.member_id:
            self.bench.join(
                self.ask(loser, "join"), loser.member_id, instance=loser.instance,
                protocols=(("range", b"3"),),
            )  # fmt: skip
            loser.waits_for = None
        self.hear()

    @rule(is_static=st.sampled_from([False, False, True]))
    @precondition(lambda self: len(self.clients) < 4)
    def start(self, is_static: bool) -> None:
        name = f"c{next(self.names)}"
        there = {each.instance for each in self.clients}
        instance = next((i for i in ("i", "j") if i not in there), None) if is_static else None
        self.clients.append(Client(name, instance))

    @rule(number=st.integers(0, 3), changes=st.booleans())
    def join(self, number: int, changes: bool) -> None:
        client = self.running(number)
        if client is None or client.waits_for is not None:
            return
        protocols = (("range", b"2" if changes else b"1"),)
        client.owns = None
        self.bench.join(
            self.ask(client, "join"), client.member_id, instance=client.instance,
            needs_known_id=client.instance is None, protocols=protocols,
        )  # fmt: skip
        self.hear()

    @rule(number=st.integers(0, 3))
    def sync(self, number: int) -> None:
        client = self.running(number)
        if client is None or client.waits_for is not None or client.generation < 0:
            return
        parts = {each: str(at).encode() for at, each in enumerate(client.leads)}
        self.bench.sync(
            self.ask(client, "sync"), client.member_id, client.generation, parts, client.instance
        )
        self.hear()

    @rule(number=st.integers(0, 3))
    def beat(self, number: int) -> None:
        client = self.running(number)
        if client is None or client.waits_for is not None or client.generation < 0:
            return
        error = self.bench.beat(client.member_id, client.generation, client.instance)
        if error:
            self.hear_error(client, error)

    @rule(number=st.integers(0, 3))
    def commit(self, number: int) -> None:
        client = self.running(number)
        if client is None or client.generation < 0:
            return
        error = self.bench.group.may_commit(
            client.member_id, client.instance, client.generation, self.bench.now_ms
        )
        newest = max(self.generations, default=0)
        if error == 0:
            assert client.generation == newest, "another generation has begun"
            assert client.member_id in self.bench.group.members

    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        client = self.running(number)
        if client is None:
            return
        self.clients.remove(client)
        if client.member_id:
            self.bench.leave(client.member_id, client.instance)
        self.hear()

    @rule(number=st.integers(0, 3))
    def die(self, number: int) -> None:
        client = self.running(number)
        if client is not None:
            self.clients.remove(client)

    @rule(number=st.integers(0, 3))
    def lose_an_answer(self, number: int) -> None:
        client = self.running(number)
        if client is not None and client.waits_for is not None:
            client.waits_for = None

    @rule(passed_ms=st.sampled_from([1, 400, 3_000, 9_000, 30_000, 400_000]))
    def wait(self, passed_ms: int) -> None:
        self.bench.wait(passed_ms)
        self.hear()

    def go_on(self, number: int, client: Client) -> None:
        if client.owns is not None:
            self.beat(number)
        elif client.generation >= 0:
            self.sync(number)
        if client in self.clients and client.owns is None and client.waits_for is None:
            self.join(number, False)

    @rule()
    def all_do_as_clients_do(self) -> None:
        """After a while without events the group is stable, and each part has one reader."""
        for _ in range(600):
            self.bench.wait(1_000)
            self.hear()
            for number, client in enumerate(list(self.clients)):
                if client.waits_for is None:
                    self.go_on(number, client)
            members = self.bench.group.members
            if self.bench.group.state == State.STABLE and set(members) == {
                each.member_id for each in self.clients if each.owns is not None
            } and len(members) == len(self.clients):  # fmt: skip
                break
            if not self.clients and self.bench.group.is_vacant:
                break
        else:
            raise AssertionError("it does not become stable")
        if len(members) > 1 or self.clients:
            parts = [each.owns for each in self.clients]
            assert sorted(parts) == sorted({*parts}) and b"0" in parts  # type: ignore[type-var]

    @invariant()
    def a_generation_has_one_leader_and_one_protocol(self) -> None:
        for joins in self.generations.values():
            assert len({each.protocol for _, each in joins}) == 1

    @invariant()
    def who_reads_is_in_the_generation_that_it_believes_or_will_hear_of_another(self) -> None:
        newest = [each for each in self.clients if each.owns is not None
                  and each.generation == self.bench.group.generation
                  and each.member_id in self.bench.group.members]  # fmt: skip
        parts = [each.owns for each in newest]
        assert len(parts) == len(set(parts)), "two members of a generation read one part"


TestGroupGame = GroupGame.TestCase
