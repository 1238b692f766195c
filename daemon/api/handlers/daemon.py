"""Handlers that tell about the daemon: whether it lives and is ready, status, metrics, OpenAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from daemon.api.figures import metrics
from daemon.api.figures.metric_kinds import Scrape
from daemon.api.figures.push_figures import push_series
from daemon.api.figures.router_figures import router_series
from daemon.api.figures.status import StatusBuilder
from daemon.api.figures.subscription_figures import series
from daemon.api.streaming import Text
from daemon.schemas.api import Live, MetricsHeaders, Ready, Scaling, Status
from daemon.schemas.errors import ApiError
from shards.clock import monotonic_ns


class DaemonRoutes:
    """The daemon, as one of its shards knows it."""

    def __init__(self, status: StatusBuilder, openapi: Callable[[], dict[str, Any]]) -> None:
        self._status = status
        self._openapi = openapi

    async def live(self) -> Live:
        """This shard's loop turns, or it would not answer."""
        return Live()

    async def ready(self) -> Ready:
        """Raises ApiError 503 ``not_ready``, whose message says why."""
        obstacles = self._status.obstacles(monotonic_ns())
        if obstacles:
            raise ApiError(503, "not_ready", "; ".join(obstacles), retry_after_s=1)
        return Ready()

    async def status(self) -> Status:
        """What the daemon is doing."""
        push = await self._status.push(monotonic_ns)
        return self._status.document(monotonic_ns(), push=push)

    async def scaling(self) -> Scaling:
        """How much more CPU would help."""
        return self._status.scaling()

    async def metrics(self, headers: MetricsHeaders) -> Text:
        """The status as a page for Prometheus."""
        stages = self._status.stages()
        push, subscriptions = await self._status.push(monotonic_ns), self._status.subscriptions()
        routers = self._status.routers()
        status = self._status.document(monotonic_ns(), stages, subscriptions, push, routers)
        scrape = Scrape(
            status, stages, self._status.topics(), series(subscriptions),
            push_series(push, subscriptions), router_series(routers),
        )  # fmt: skip
        return await metrics.page(scrape, headers.accept, monotonic_ns)

    async def openapi(self) -> dict[str, Any]:
        """``/openapi.json``."""
        return await asyncio.to_thread(self._openapi)
