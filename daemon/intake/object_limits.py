"""Limits of what there may be: topics, partitions, subscriptions, routers and cursors.

All that a token's patterns of topics match counts for it, whoever made it: so nothing records the
maker, and a token that is made anew finds what the former one left. What counts for the daemon is
everything. It is counted when something is to be created, in a read of the ledger: several that are
created at the same moment may exceed a limit by one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from daemon.access.rights import Rights
from daemon.schemas.errors import ApiError
from delivery.ledger_thread import LedgerThread
from ledger import cursors, topics
from ledger.delivery import group_commits, routers, subscriptions
from ledger.tx import ReadTx

PAGE = 1_000


class Present(NamedTuple):
    """Something that there is: its name, the names that a token must be for, and how much."""

    name: str
    concerns: tuple[str, ...]
    units: int = 1


def _topics(tx: ReadTx) -> Iterator[Present]:
    after = ""
    while page := topics.page(tx, after, PAGE):
        yield from (Present(each.name, (each.name,), each.config.partitions) for each in page)
        after = page[-1].name


def _subscriptions(tx: ReadTx) -> Iterator[Present]:
    for each in subscriptions.all_views(tx):
        topic = each.topic.name
        yield Present(f"{topic}/{each.subscription.name}", (topic,))


def _routers(tx: ReadTx) -> Iterator[Present]:
    for each in routers.views(tx):
        yield Present(each.router.name, (each.source.name, each.dest.name))


def _cursors(tx: ReadTx) -> Iterator[Present]:
    """One of a group of Kafka's consumers is for who may use its topic and its group."""
    after, names = "", dict[int, str]()
    while page := cursors.page(tx, after, PAGE):
        for each in page:
            of_group = group_commits.belongs_to(each.name)
            if of_group is None:
                yield Present(each.name, (each.name,))
                continue
            topic_id, group = of_group
            if topic_id not in names:
                topic = topics.row_of(tx, topic_id)
                names[topic_id] = "" if topic is None else topic.name
            yield Present(each.name, (names[topic_id], group))
        after = page[-1].name


_KINDS: dict[str, Callable[[ReadTx], Iterator[Present]]] = {
    "topics": _topics,
    "subscriptions": _subscriptions,
    "routers": _routers,
    "cursors": _cursors,
}


class ObjectLimits:
    """Checks those of one shard's clients."""

    def __init__(self, ledger: LedgerThread) -> None:
        self._ledger = ledger

    async def check(self, rights: Rights, kind: str, name: str, partitions: int = 1) -> None:
        """Raises ApiError 429 if ``name`` is not there yet and may not be; or, of a topic, not
        with this many partitions."""
        allowance = rights.allowance
        if allowance is None or not allowance.limits_objects(kind, "partitions"):
            return
        present = await self._ledger.read(lambda tx: list(_KINDS[kind](tx)))
        own = [each for each in present if all(map(rights.covers, each.concerns))]
        before = next((each for each in present if each.name == name), None)
        if before is None:
            allowance.check_objects(kind, len(own) + 1, len(present) + 1)
        if kind == "topics":
            more = partitions - (0 if before is None else before.units)
            if more > 0:
                allowance.check_objects(
                    "partitions", _partitions(own) + more, _partitions(present) + more
                )

    async def over(self, rights: Rights, kind: str, names: Sequence[str]) -> set[str]:
        """Which of these are not there yet, and may not be. Raises LedgerError."""
        allowance, over = rights.allowance, set[str]()
        if not names or allowance is None or not allowance.limits_objects(kind):
            return over
        present = await self._ledger.read(lambda tx: list(_KINDS[kind](tx)))
        own = sum(all(map(rights.covers, each.concerns)) for each in present)
        more = 0
        there = {each.name for each in present}
        for name in dict.fromkeys(each for each in names if each not in there):
            try:
                allowance.check_objects(kind, own + more + 1, len(present) + more + 1)
                more += 1
            except ApiError:
                over.add(name)
        return over


def _partitions(there: list[Present]) -> int:
    return sum(each.units for each in there)
