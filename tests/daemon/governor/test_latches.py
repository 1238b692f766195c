"""The traps of a governor that measures its own reactions: none of them keeps the ladder up."""

from __future__ import annotations

from daemon.governor.ladder import names_of
from tests.daemon.governor.delivering import Delivering

PLAIN = range(1, 100)
NEGATIVE = range(1_000, 1_500)


def priority_of(topic_id: int) -> int:
    return -1 if topic_id in NEGATIVE else 0


def test_coalescing_does_not_count_as_latency_so_the_ladder_comes_down_again() -> None:
    """With deliberate delays counted, 20 ms of coalescing are four times what is promised."""
    shard = Delivering(priority_of, turn_us=800)
    overload = shard.run(5, 5_000, PLAIN)
    assert "coalesce" in names_of(overload[-1].rungs) and overload[-1].coalesce_ns > 10_000_000
    after = shard.run(9, 75, PLAIN)
    assert after[-1].level < 0.05 and after[-1].coalesce_ns == 0
    assert names_of(after[-1].rungs) == []
    assert all(governed.level == 0 for governed in after[-10:])


def test_what_was_deferred_does_not_bring_the_next_deferral_when_it_is_let_go() -> None:
    """Hundreds of pushes that waited for seconds are ready in the same moment."""
    shard = Delivering(priority_of, turn_us=1_600)
    overload = shard.run(5, 5_000, PLAIN)
    assert overload[-1].deferring
    shard.run(3, 5_000, range(1, 1_500))
    assert shard.ready.deferred() > 400
    after = shard.run(8, 12, PLAIN)
    edges = [(edge.rung.name, edge.begins) for governed in after for edge in governed.edges]
    assert edges.count(("defer", False)) == 1 and ("defer", True) not in edges
    assert shard.ready.deferred() == 0 and len(shard.ready) == 0
    assert sum(topic_id in NEGATIVE for topic_id in shard.served) > 400


def test_an_overload_of_what_may_be_deferred_defers_it_and_then_lets_it_go_again() -> None:
    """The processor is the sensor then; the ladder neither stays up nor flaps."""
    shard = Delivering(priority_of, turn_us=1_200)
    overload = shard.run(12, 1_500, NEGATIVE)
    begins = sum(e.rung.name == "defer" and e.begins for g in overload for e in g.edges)
    assert 1 <= begins <= 4, "each turn of the cycle lasts seconds"
    assert len(shard.served) == len(NEGATIVE), "everything is served between two deferrals"
    calm = shard.run(8, 10, NEGATIVE)
    assert not calm[-1].deferring and shard.ready.deferred() == 0
