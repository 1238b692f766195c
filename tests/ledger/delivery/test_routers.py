"""Routers in the ledger: bound to topic ids, without cycles, from an offset of one moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import changes, cursors, reads, topics
from ledger.delivery import copy_paths, routers
from ledger.delivery.record_filter import NO_FILTER, RecordFilter
from ledger.delivery.routers import Router, Start
from ledger.errors import (
    CursorMissing,
    RouterBound,
    RouterCycle,
    RouterMissing,
    RoutersFull,
    RouterStartRefused,
    TopicMissing,
)
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.space import retention
from ledger.types import CursorPosition, TokenName, Topic, TopicConfig
from tests.ledger.requests import Request, draft_of, lease


def add_topics(ledger: Ledger, *names: str) -> list[Topic]:
    return [ledger.write(topics.create, name, TopicConfig(), 1)[0] for name in names]


def add(
    ledger: Ledger, name: str, source: str, dest: str, start: Start = "now", paused: bool = False
) -> Router:
    return ledger.write(routers.create, name, source, dest, NO_FILTER, start, paused, 5)


def fill(ledger: Ledger, counter: int, topic: Topic, *counts: int) -> None:
    requests = [
        Request(topic.topic_id, parts=((partition, count),))
        for partition, count in enumerate(counts)
    ]
    ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)


def positions(ledger: Ledger, router: Router) -> list[CursorPosition]:
    return ledger.read(cursors.positions, router.cursor_id)


def test_a_router_is_found_by_its_name_with_what_it_was_created_with(
    ledger: Ledger, topic: Topic
) -> None:
    (dest,) = add_topics(ledger, "copies")
    wanted = RecordFilter(tag="a*", key="k")
    made = ledger.write(routers.create, "r", "orders", "copies", wanted, "now", True, 5)
    assert made == Router(
        1, "r", wanted, 5, None, topic.topic_id, dest.topic_id, made.cursor_id, 0, True
    )
    assert ledger.read(routers.find, "r") == made
    cursor = ledger.read(cursors.by_id, made.cursor_id)
    assert cursor is not None
    assert (cursor.name, cursor.kind) == ("router/r", "router")


@pytest.mark.parametrize(
    ("start", "wanted"),
    [("earliest", [2, 0]), ("now", [5, 3]), ([4, 1], [4, 1]), ([0, 0], [0, 0]), ([5, 3], [5, 3])],
)
def test_where_it_begins_is_resolved_to_offsets_when_it_is_created(
    ledger: Ledger, topic: Topic, start: Start, wanted: Sequence[int]
) -> None:
    add_topics(ledger, "copies")
    fill(ledger, 1, topic, 5, 3)
    retention.trim(ledger, "orders", 0, 3)
    made = add(ledger, "r", "orders", "copies", start)
    fill(ledger, 2, topic, 1, 1)
    found = {each.partition: each.seq for each in positions(ledger, made)}
    assert [found.get(partition, 0) for partition in (0, 1)] == wanted


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (3, "has 1 offsets, but its source has 2 partitions"),
        ([3, 3, 3], "has 3 offsets, but its source has 2 partitions"),
        ([5, 4], "is 4 for partition 1 of the source, whose last offset is 3"),
    ],
)
def test_a_start_that_the_source_does_not_have_is_refused_and_nothing_is_created(
    ledger: Ledger, topic: Topic, start: Start, problem: str
) -> None:
    add_topics(ledger, "copies")
    fill(ledger, 1, topic, 5, 3)
    with pytest.raises(RouterStartRefused, match=problem):
        add(ledger, "r", "orders", "copies", start)
    assert ledger.read(routers.find, "r") is None
    assert ledger.read(cursors.find, "router/r") is None


def test_a_cycle_is_refused_with_its_path_and_paused_routers_count(ledger: Ledger) -> None:
    add_topics(ledger, "a", "b", "c", "d")
    add(ledger, "ab", "a", "b")
    add(ledger, "bc", "b", "c", paused=True)
    add(ledger, "ad", "a", "d")
    add(ledger, "ac", "a", "c")
    add(ledger, "dc", "d", "c")
    with pytest.raises(RouterCycle, match="c -> a -> c;") as refused:
        add(ledger, "ca", "c", "a")
    assert refused.value.path == ["c", "a", "c"]
    with pytest.raises(RouterCycle, match="c -> b -> c;"):
        add(ledger, "cb", "c", "b")
    with pytest.raises(RouterCycle, match="a -> a;"):
        add(ledger, "aa", "a", "a")
    ledger.write(routers.delete, "bc", 6)
    add(ledger, "cb", "c", "b")


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_a_path_is_a_shortest_one_and_is_found_if_there_is_one(
    pairs: list[tuple[int, int]], start: int, goal: int
) -> None:
    edges: dict[int, list[int]] = {}
    for a, b in pairs:
        edges.setdefault(a, []).append(b)
    distance = {start: 0}
    for step in range(7):
        for a, b in pairs:
            if distance.get(a) == step:
                distance.setdefault(b, step + 1)
    found = copy_paths.path(edges, start, goal)
    if goal not in distance:
        assert found is None
        return
    assert found is not None
    assert (found[0], found[-1], len(found) - 1) == (start, goal, distance[goal])
    assert all(pair in pairs for pair in pairwise(found))


def test_a_router_keeps_its_topics_and_changes_what_is_given(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "copies", "other")
    made = add(ledger, "r", "orders", "copies")
    paused = ledger.write(routers.alter, "r", None, None, None, True)
    assert paused.paused and paused.filter == made.filter
    wanted = RecordFilter(node="n?")
    changed = ledger.write(routers.alter, "r", "orders", "copies", wanted, None)
    assert (changed.paused, changed.filter) == (True, wanted)
    assert ledger.read(routers.find, "r") == changed
    for source, dest, problem in (
        ("other", None, "the source of router 'r', 'orders', cannot become 'other'"),
        (None, "nowhere", "the dest of router 'r', 'copies', cannot become 'nowhere'"),
    ):
        with pytest.raises(RouterBound, match=problem):
            ledger.write(routers.alter, "r", source, dest, None, None)


def test_a_topic_that_is_created_again_is_not_the_routers(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "copies")
    add(ledger, "r", "orders", "copies")
    ledger.write(topics.delete, "orders", 6)
    with pytest.raises(RouterBound, match="'orders', was deleted; delete the router"):
        ledger.write(routers.alter, "r", "orders", None, None, None)
    add_topics(ledger, "orders")
    with pytest.raises(RouterBound, match="was deleted, and the topic of this name is another one"):
        ledger.write(routers.alter, "r", "orders", None, None, None)
    view = ledger.read(routers.view, "r")
    assert view is not None
    assert view.source.deleted_ms == 6


def test_a_change_that_changes_nothing_is_no_news_for_the_log(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "copies")
    add(ledger, "r", "orders", "copies")
    before = ledger.read(changes.latest)
    ledger.write(routers.alter, "r", "orders", "copies", NO_FILTER, False)
    assert ledger.read(changes.latest) == before


def test_a_deleted_router_takes_its_cursor_along_and_frees_its_name_and_its_slot(
    ledger: Ledger, topic: Topic
) -> None:
    add_topics(ledger, "copies")
    first = add(ledger, "r", "orders", "copies")
    assert add(ledger, "r2", "orders", "copies").slot == 1
    ledger.write(routers.delete, "r", 6)
    assert ledger.read(routers.find, "r") is None
    with pytest.raises(RouterMissing, match="there is no router 'r'"):
        ledger.write(routers.delete, "r", 7)
    with pytest.raises(CursorMissing):
        ledger.write(cursors.delete, "router/r", "router", 7)
    again = add(ledger, "r", "orders", "copies")
    assert again.router_id > first.router_id
    assert again.cursor_id > first.cursor_id
    assert again.slot == 0


def test_there_is_a_limit_of_routers(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "ROUTERS_MAX", 2)
    add_topics(ledger, "a", "b")
    add(ledger, "r0", "a", "b")
    add(ledger, "r1", "a", "b")
    with pytest.raises(RoutersFull, match="there are 2 routers, which is the limit"):
        add(ledger, "r2", "a", "b")


def test_unknown_topics_are_refused(ledger: Ledger) -> None:
    add_topics(ledger, "a")
    for source, dest in (("a", "b"), ("b", "a")):
        with pytest.raises(TopicMissing, match="there is no topic 'b'"):
            add(ledger, "r", source, dest)


def test_each_router_has_one_owner_and_owners_have_equal_shares(ledger: Ledger) -> None:
    add_topics(ledger, "a", "b")
    made = [add(ledger, f"r{n}", "a", "b").router_id for n in range(9)]
    shares = [
        [view.router.router_id for view in ledger.read(routers.owned, shard, 4)[1]]
        for shard in range(4)
    ]
    assert sorted(chain(*shares)) == made
    assert {len(share) for share in shares} == {2, 3}


def test_an_owner_asks_for_what_changed_and_for_routers_whose_topics_changed(
    ledger: Ledger,
) -> None:
    add_topics(ledger, "a", "b")
    for n in range(4):
        add(ledger, f"r{n}", "a", "b")
    seen, first = ledger.read(routers.owned, 0, 1)
    assert len(first) == 4
    assert ledger.read(routers.owned, 0, 1, seen) == (seen, [])
    ledger.write(routers.alter, "r2", None, None, None, True)
    ledger.write(routers.delete, "r0", 6)
    ids = [view.router.router_id for view in first]
    now, found = ledger.read(routers.owned, 0, 1, seen, {ids[3]})
    assert now > seen
    assert {view.router.name: view.router.deleted_ms for view in found} == {
        "r0": 6, "r2": None, "r3": None,
    }  # fmt: skip


def test_a_view_has_the_positions_and_the_lag(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "copies")
    fill(ledger, 1, topic, 5, 3)
    add(ledger, "r", "orders", "copies", [2, 3])
    view = ledger.read(routers.view, "r")
    assert view is not None
    assert [(at, state.partition, state.head_seq) for at, state in view.partitions] == [
        (2, 0, 5), (3, 1, 3),
    ]  # fmt: skip
    assert view.lag == 3
    assert ledger.read(routers.views) == [view]


def test_the_owners_log_carries_routers_that_changed_and_only_those(
    ledger: Ledger, topic: Topic
) -> None:
    add_topics(ledger, "copies")
    add(ledger, "kept", "orders", "copies")
    mark = ledger.read(backup.mark)
    add(ledger, "new", "orders", "copies")
    ledger.write(routers.delete, "new", 6)
    new = add(ledger, "new", "orders", "copies", "earliest")
    _, news = ledger.read(backup.changes_since, mark)
    assert [row[1] for row in news.rows["routers"]] == ["new", "new"]
    assert ledger.read(reads.partition_states, new.source_id)


def test_a_rebuilt_ledger_has_the_same_routers(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    add_topics(ledger, "copies")
    fill(ledger, 1, topic, 5, 3)
    add(ledger, "gone", "orders", "copies")
    ledger.write(routers.delete, "gone", 6)
    add(ledger, "gone", "orders", "copies", [2, 3])
    _, everything = ledger.read(backup.changes_since, backup.Mark())
    rebuilt = Ledger(tmp_path / "rebuilt.db", nullcontext())
    rebuilt.write(backup.apply, everything)
    rebuilt.write(backup.apply, everything)
    assert rebuilt.read(routers.views) == ledger.read(routers.views)
    rebuilt.close()


def test_entries_tell_with_which_token_it_was_set_up_and_those_of_a_former_version_of_none(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    add_topics(ledger, "copies")
    token = TokenName("12ab", "mover")
    made = ledger.write(routers.create, "r", "orders", "copies", NO_FILTER, "now", False, 5, token)
    assert made.token == token and ledger.read(routers.find, "r") == made
    _, told = ledger.read(backup.changes_since, backup.Mark())
    for name, wanted in (("now", token), ("former", None)):
        with closing(Ledger(tmp_path / f"{name}.db", nullcontext())) as other:
            other.write(backup.apply, told)
            found = other.read(routers.find, "r")
            assert found is not None and found.token == wanted
        told.rows["routers"] = [row[:-1] for row in told.rows["routers"]]
    keeper = TokenName("34cd", "keeper")
    for now in (keeper, None):
        assert ledger.write(routers.alter, "r", None, None, None, None, now).token == now
        found = ledger.read(routers.find, "r")
        assert found is not None and found.token == now
