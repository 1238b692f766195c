"""What there is in a kind of chaos run: topics, and subscriptions with their consumers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tests.chaos import kafka, letters, library, pushes, renewing, routers, soak, subscriptions
from tests.chaos.consumers import Consumes
from tests.chaos.history import Capped, History, Lossy, Place, Subscribed
from tests.chaos.watchers import CLICKS
from tests.chaos.world import Options, World

CAPPED: Place = ("short", 0)
CAP_RECORDS = 50
LOSSY = "news"
PLACES: list[Place] = [("orders", 0), *CLICKS, CAPPED, (LOSSY, 0)]
TOPICS: dict[str, dict[str, object]] = {
    CAPPED[0]: {"cap_records": CAP_RECORDS},
    LOSSY: {"lossy": True},
    letters.FULL[0]: letters.FULL_TOPIC,
    **soak.TOPICS,
    **kafka.TOPICS,
}


class Cast(Struct, frozen=True):
    """``produced`` is written by producers, ``others`` by the daemon or by Kafka's."""

    produced: Sequence[Place]
    others: Sequence[Place]
    subscribed: Sequence[Subscribed]
    consumes: Sequence[Consumes]
    pushed: Sequence[pushes.Wanted]

    @property
    def places(self) -> list[Place]:
        """All partitions."""
        return [*self.produced, *self.others]


def cast_of(options: Options) -> Cast:
    """What a run has."""
    if options.soak:
        made = soak.Soaked(options.seed)
        return Cast(
            [*PLACES, *soak.PLACES], made.letters, made.subscribed, made.consumes, made.pushed
        )
    others = [*routers.COPIES, *subscriptions.BURIED, *pushes.BURIED]
    if options.kafka:
        others += kafka.PLACES
    if options.library:
        others += library.PLACES
    if options.renew:
        return Cast(
            [*PLACES, *renewing.PLACES], [*others, *renewing.ALL_PLACES], renewing.SUBSCRIPTIONS,
            renewing.CONSUMES, renewing.PUSHED,
        )  # fmt: skip
    return Cast(
        PLACES, others, subscriptions.SUBSCRIPTIONS if options.subscribe else [],
        subscriptions.CONSUMES, pushes.WANTED if options.push else [],
    )  # fmt: skip


def create_topics(world: World, written: History, cast: Cast) -> dict[str, int]:
    """Creates all topics; returns their ids."""
    assert world.daemon is not None
    topic_ids: dict[str, int] = {}
    for topic in {topic: None for topic, _ in cast.places}:
        count = 1 + max(partition for name, partition in cast.places if name == topic)
        wanted = {"partitions": count} | TOPICS.get(topic, soak.letters_topic(topic))
        answer = world.daemon.json("PUT", f"/v0/topics/{topic}", wanted)
        assert answer.status == 201, answer.body
        topic_ids[topic] = answer.json["topic_id"]
    written.add(Capped(CAPPED, CAP_RECORDS))
    for place in soak.AGING:
        written.add(Capped(place, 0))  # all of it may go
    written.add(Lossy(LOSSY))
    return topic_ids
