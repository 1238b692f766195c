"""Handlers of ``/v0/plans``: what a bulk reader has to read, held while it reads.

    POST  takes a read lease, then plans -> 200 with a page -> POST of its ``next``, same lease
    PUT   renews the lease;  DELETE  ends it;  without either it expires

The lease comes first: what is planned after it stays until it ends (protocol 7). It is a row of
the ledger, so it outlives the daemon. ``compaction/source/plan.py`` is the planner; each of its
steps is a short read in the shard's ledger thread, so that other readers are served in between.
"""

from __future__ import annotations

import secrets

from compaction.source import plan as source_plan
from compaction.source.plan import LEASE_MS, Page, PlanInvalid
from compaction.source.schemas import PlanStore
from daemon.config import Config
from daemon.intake.topic_cache import TopicCache
from daemon.schemas.api import Plan, PlanEnded, PlanRenewed, PlanRequest
from daemon.schemas.errors import ApiError, invalid
from daemon.schemas.names import check_topic_name
from delivery.ledger_thread import LedgerThread
from ledger.errors import ReadLeasesFull
from ledger.lake import readleases
from shards.clock import wall_ms

PARTITIONS_MAX = 10_000  # each is a read of the ledger by itself: seconds in total
WHAT_CHARACTERS_MAX = 200


class PlanRoutes:
    """The plans of bulk readers."""

    def __init__(self, topics: TopicCache, ledger: LedgerThread, config: Config) -> None:
        self._topics = topics
        self._ledger = ledger
        self._store = PlanStore(
            config.store_url, config.s3_endpoint_url, config.s3_region, config.lake_url
        )

    async def post(self, asked: PlanRequest) -> Plan:
        """A page of a plan, under a new lease or the one that is named."""
        check_plan(asked)
        topics = [(await self._topics.entry(check_topic_name(name))).topic for name in asked.topics]
        partitions = sum(topic.config.partitions for topic in topics)
        if partitions > PARTITIONS_MAX:
            raise invalid(
                f"a plan has at most {PARTITIONS_MAX} partitions, these topics have {partitions};"
                " plan fewer topics at a time",
                field="topics",
                limit=PARTITIONS_MAX,
            )
        lease, expires_ms = await self._lease(asked)
        try:
            page = Page(asked.limit)
            for topic in topics:
                states = await self._topics.states(topic.topic_id)
                starts = asked.from_.get(topic.name, {})
                for part in source_plan.wanted(topic, states, starts, asked.to.get(topic.name, {})):
                    await self._ledger.read(source_plan.fill, page, part)
        except PlanInvalid as error:
            if asked.plan is None:
                await self._ledger.write(readleases.end, lease)
            raise invalid(str(error), field=error.field) from error
        return source_plan.finished(page, lease, expires_ms, self._store)

    async def put(self, plan: str) -> PlanRenewed:
        """Holds the lease for longer. Raises ApiError 404 ``plan_expired``."""
        return PlanRenewed(plan, await self._renew(plan))

    async def delete(self, plan: str) -> PlanEnded:
        """Ends the lease. Raises ApiError 404 ``plan_expired``."""
        if not await self._ledger.write(readleases.end, plan):
            raise _expired(plan)
        return PlanEnded(plan)

    async def _lease(self, asked: PlanRequest) -> tuple[str, int]:
        if asked.plan is not None:
            return asked.plan, await self._renew(asked.plan)
        lease = secrets.token_hex(12)
        now_ms = self._topics.age_ms()
        what = f"plan of {', '.join(asked.topics)}"[:WHAT_CHARACTERS_MAX]
        try:
            await self._ledger.write(readleases.take, lease, what, now_ms, now_ms + LEASE_MS)
        except ReadLeasesFull as error:
            detail = {"limit": error.maximum}
            raise ApiError(429, "too_many_plans", str(error), detail, retry_after_s=1) from error
        return lease, wall_ms() + LEASE_MS

    async def _renew(self, plan: str) -> int:
        now_ms = self._topics.age_ms()
        if not await self._ledger.write(readleases.renew, plan, now_ms, now_ms + LEASE_MS):
            raise _expired(plan)
        return wall_ms() + LEASE_MS  # clients go by the wall clock


def _expired(plan: str) -> ApiError:
    return ApiError(
        404,
        "plan_expired",
        f"there is no plan {plan[:40]!r}, or it was not renewed within {LEASE_MS // 1000} s: what"
        " it held may be gone; plan again with POST /v0/plans",
        {"plan": plan[:40]},
    )


def check_plan(asked: PlanRequest) -> None:
    """Raises ApiError 400 where fields contradict each other; offsets are for the ledger."""
    if len(set(asked.topics)) < len(asked.topics):
        raise invalid("topics has a topic twice", field="topics")
    for field, offsets in (("from", asked.from_), ("to", asked.to)):
        for name in offsets.keys() - set(asked.topics):
            raise invalid(f"{field} has {name[:60]!r}, which is not in topics", field=field)
