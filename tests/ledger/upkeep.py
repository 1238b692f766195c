"""What the daemon's upkeep does a little at a time, done whole."""

from __future__ import annotations

from ledger import topics
from ledger.lake.types import Evicted
from ledger.ledger import Ledger
from ledger.space import marking, retention


def evict_all(ledger: Ledger, now_ms: int) -> list[Evicted]:
    """All that the limits of all topics evict now; what became free is marked."""
    done: list[Evicted] = []
    for _, topic_id in ledger.read(retention.changed_topics, (-1, 0), 1 << 62):
        topic = ledger.read(topics.by_id, topic_id)
        assert topic is not None
        while found := ledger.write(
            retention.evict, ledger.read(retention.due_evictions, topic, now_ms).evictions
        ):
            done += found
    while marking.mark_unreferenced(ledger, now_ms):
        pass
    return done
