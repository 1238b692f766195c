"""The rules for routers, by the word that a contradiction begins with. Pure.

- uncopied: each kept record of a source that passes the filters is in the destination.
- recopied: once, by each life of a router that was deleted and created again.
- miscopied: nothing else is in the destination.
- reordered: within a partition of the destination, records of one partition of a source are in the
  order of that partition, in each life of the router.

Sources keep all their records; several may have one destination, and a destination may be a source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import Place, Routed, passes
from tests.chaos.known import Known


def _copied(known: Known) -> Iterator[str]:
    for destination, routers in known.routers.items():
        found: dict[str, list[tuple[Place, int]]] = defaultdict(list)
        for place, records in known.kept.items():
            if place[0] == destination:
                for seq, record in sorted(records.items()):
                    found[record].append((place, seq))
        wanted = {
            record: (place, seq)
            for router in routers
            for place, records in _sources(known, router)
            for seq, record in records
        }
        lives = sum(router.lives - 1 for router in routers)
        for record, where in wanted.items():
            if record not in found:
                yield f"uncopied: {record} at {where} is not in {destination}"
        for record, places in found.items():
            if record not in wanted:
                yield f"miscopied: {record} at {places} passes no router to {destination}"
            elif len(places) > 1 + lives:
                yield f"recopied: {record} at {wanted[record]} is in {destination} at {places}"


def _reordered(known: Known) -> Iterator[str]:
    for destination, routers in known.routers.items():
        for router in routers:
            for source, records in _sources(known, router):
                sequence = {record: seq for seq, record in records}
                for place, copies in known.kept.items():
                    if place[0] == destination:
                        falls = [*_falls(source, sequence, place, copies)]
                        yield from falls[router.lives - 1 :]


def _falls(
    source: Place, sequence: dict[str, int], place: Place, copies: dict[int, str]
) -> Iterator[str]:
    last = 0
    for seq, record in sorted(copies.items()):
        now = sequence.get(record)
        if now is None:
            continue
        if now < last:
            yield (
                f"reordered: {record} at {(place, seq)} is {now} in {source}, and stands after a"
                f" copy of {last}"
            )
        last = now


def _sources(known: Known, router: Routed) -> Iterator[tuple[Place, list[tuple[int, str]]]]:
    for place, records in list(known.kept.items()):
        if place[0] == router.source:
            yield (
                place,
                [
                    (seq, record)
                    for seq, record in sorted(records.items())
                    if passes(router.filters, record)
                ],
            )


RULES = (_copied, _reordered)
