"""Handlers that tell about the daemon: whether it lives and is ready, status, metrics, OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from daemon import page
from daemon.access.rights import Rights
from daemon.api.figures import metrics
from daemon.api.figures.kafka_figures import kafka_series
from daemon.api.figures.metric_kinds import Scrape
from daemon.api.figures.push_figures import push_series
from daemon.api.figures.router_figures import router_series
from daemon.api.figures.status import StatusBuilder
from daemon.api.figures.subscription_figures import series
from daemon.api.streaming import EncodedJson, Text
from daemon.http.response import JSON
from daemon.intake.foreign.bulk import ELASTIC, PRODUCT
from daemon.schemas.api import ImportScaling, Live, MetricsHeaders, Ready, Scaling, Status
from daemon.schemas.errors import ApiError
from delivery.ledger_thread import LedgerThread
from ledger import cursors
from ledger.errors import LedgerError
from shards.boards.pushtotals import PushTotal
from shards.boards.rowboard import KafkaGroupRow, Placed, RouterRow, SubscriptionRow
from shards.clock import monotonic_ns, wall_ms

# KEDA gives up after 3 s, `headgate scaler` after 2.
IMPORTS_WAIT_S = 1.0


class DaemonRoutes:
    """The daemon, as one of its shards knows it."""

    def __init__(
        self, status: StatusBuilder, ledger: LedgerThread, openapi: Callable[[], bytes]
    ) -> None:
        self._status = status
        self._ledger = ledger
        self._openapi = openapi
        self._described: asyncio.Task[bytes] | None = None
        self._imports: asyncio.Task[list[ImportScaling] | None] | None = None
        # Of many statuses that are asked for together, one is made in a turn of the loop: each
        # takes milliseconds.
        self._looks = asyncio.Lock()

    async def page(self) -> Text:
        """``/``: what it shows, it asks for itself."""
        return Text(page.CONTENT_TYPE, page.BODY, page.HEADERS)

    async def elastic(self) -> Text:
        """``/v0/elastic/``: clients look at the header and the version, and some at the tagline."""
        return Text(JSON, ELASTIC, PRODUCT)

    async def live(self) -> Live:
        """This shard's loop turns, or it would not answer."""
        return Live()

    async def ready(self) -> Ready:
        """Raises ApiError 503 ``not_ready``, whose message says why."""
        obstacles = self._status.obstacles(monotonic_ns())
        if obstacles:
            raise ApiError(503, "not_ready", "; ".join(obstacles), retry_after_s=1)
        return Ready()

    async def status(self, rights: Rights) -> Status:
        """What the daemon is doing, and of topics what the sender may see."""
        imports = await self._imports_into(rights)
        async with self._looks:
            push, subscriptions, routers = await self._rows(rights)
            groups = self._groups(rights)
            status = self._status.document(
                monotonic_ns(), None, subscriptions, push, routers, groups
            )
        status = msgspec.structs.replace(status, imports=imports)
        if rights.is_for_all_topics:
            return status
        visible = {each.row.router for each in routers}
        standing = [
            each
            for each in status.standing
            if rights.covers(each.topic) and (each.kind != "router" or each.name in visible)
        ]
        alarms = [
            msgspec.structs.replace(each, message=f"{each.alarm} for {each.age_ms // 1000} s")
            for each in status.alarms
        ]
        return msgspec.structs.replace(status, standing=standing, alarms=alarms)

    async def _rows(
        self, rights: Rights
    ) -> tuple[list[PushTotal], list[Placed[SubscriptionRow]], list[Placed[RouterRow]]]:
        """What owners report, as far as the sender may see it: at most 1,024 of each."""
        await asyncio.sleep(0)  # whoever else asks waits for the lock, also if nothing below waits
        push = await self._status.push(monotonic_ns)
        subscriptions, routers = self._status.subscriptions(), self._status.routers()
        if rights.is_for_all_topics:
            return push, subscriptions, routers
        subscriptions = [each for each in subscriptions if rights.covers(each.row.topic)]
        ids = {each.id for each in subscriptions}
        return (
            [each for each in push if each.subscription_id in ids],
            subscriptions,
            [
                each
                for each in routers
                if rights.covers(each.row.source) and rights.covers(each.row.dest)
            ],
        )

    def _groups(self, rights: Rights) -> list[Placed[KafkaGroupRow]] | None:
        """The same of groups of Kafka; None: the sender may see all."""
        if rights.is_for_all_topics:
            return None
        return [each for each in self._status.kafka_groups() if rights.covers(each.row.topic)]

    async def scaling(self, rights: Rights) -> Scaling:
        """How much more CPU would help, consumers of what the sender may see, and the lag of
        imports into it. A ledger that hangs does not keep the answer back."""
        scaling = self._status.scaling(await self._imports_into(rights))
        shown = [each for each in scaling.subscriptions if rights.covers(each.topic)]
        groups = [each for each in scaling.kafka_groups if rights.covers(each.topic)]
        return msgspec.structs.replace(scaling, subscriptions=shown, kafka_groups=groups)

    async def _imports_into(self, rights: Rights) -> list[ImportScaling] | None:
        """What imports have left; None if the ledger does not answer in time."""
        asked = self._imports
        if asked is None or asked.done():
            asked = self._imports = asyncio.create_task(self._read_imports())
        await asyncio.wait([asked], timeout=IMPORTS_WAIT_S)
        found = asked.result() if asked.done() else None
        return found and [each for each in found if rights.covers(each.topic)]

    async def _read_imports(self) -> list[ImportScaling] | None:
        now_ms = wall_ms()
        try:
            found = await self._ledger.read(cursors.imports, now_ms)
        except LedgerError:
            return None
        return [
            ImportScaling(
                each.topic, each.sources, each.unknown, each.lag_bytes, each.lag_records,
                None if each.oldest_ms is None else max(0, now_ms - each.oldest_ms),
            )
            for each in found
        ]  # fmt: skip

    async def metrics(self, headers: MetricsHeaders, rights: Rights) -> Text:
        """The status as a page for Prometheus, with the series that the sender may see."""
        async with self._looks:
            stages = self._status.stages()
            push, subscriptions, routers = await self._rows(rights)
            groups = self._groups(rights)
            status = self._status.document(
                monotonic_ns(), stages, subscriptions, push, routers, groups
            )
            unplaced_lag = 0
            if groups is None:
                groups, (_, unplaced_lag) = (
                    self._status.kafka_groups(), self._status.unplaced_kafka_groups(),
                )  # fmt: skip
            scrape = Scrape(
                status, stages,
                [each for each in self._status.topics() if rights.covers(each.topic)],
                [
                    each
                    for each in self._status.tokens()
                    if rights.is_for_all_topics
                    or (rights.token is not None and each.token == rights.token.name)
                ],
                series(subscriptions), push_series(push, subscriptions), router_series(routers),
                [] if status.kafka is None else kafka_series(groups, unplaced_lag),
            )  # fmt: skip
            return await metrics.page(scrape, headers.accept, monotonic_ns)

    async def openapi(self) -> EncodedJson[dict[str, Any]]:
        """``/openapi.json``, made when it is first asked for: once, by a thread. If that fails, for
        want of memory or threads, the next request has it made again."""
        described = self._described
        if described is None or (
            described.done() and (described.cancelled() or described.exception() is not None)
        ):
            described = self._described = asyncio.create_task(asyncio.to_thread(self._openapi))
        return EncodedJson(await asyncio.shield(described))
