"""What the store was asked for, and what that costs. See ``api.py``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shards import layout as at
from shards.boards.figures import Family, figure

_REQUESTS = Family(
    "headgate_store_requests_total",
    "requests to the object store: objects, the owner's log, images, probes, reads",
)
_BYTES = Family("headgate_store_bytes_total", "bytes that were put or got")
_OTHER_PUTS = Family(
    "headgate_alternative_puts_total", "PUTs that uploading without groups would have made"
)
_OTHER_COST_PER_MONTH = Family(
    "headgate_alternative_cost_usd_per_month",
    "the same for 30 days at the pace of the last minute; 0 in the first minute",
)
_OTHER_COST = Family(
    "headgate_alternative_cost_usd_total", "what uploading without groups would have cost"
)


class StoreStatus(Struct, frozen=True):
    """Calls of the object store since the daemon started, over restarts of shards."""

    url: str
    puts: Annotated[int, figure("attempts to PUT an L0 object", word=at.S_PUTS)]
    put_bytes: Annotated[int, figure("", word=at.S_PUT_BYTES)]
    put_failures: Annotated[
        int,
        figure(
            "attempts to PUT an object that failed; each is repeated",
            "headgate_store_put_failures_total",
            word=at.S_PUT_FAILURES,
        ),
    ]
    gets: Annotated[int, figure("", word=at.S_GETS)]
    get_bytes: Annotated[int, figure("", word=at.S_GET_BYTES)]
    lists: Annotated[int, figure("", word=at.S_LISTS)]


class StoreCost(Struct, frozen=True):
    """What another way to upload the same requests would have cost."""

    puts: Annotated[int, figure("an estimate", _OTHER_PUTS)]
    usd: Annotated[float, figure("with all other requests as they were", _OTHER_COST)]
    usd_per_month: Annotated[
        float | None,
        figure(
            "the same for 30 days at the pace of the last minute; null in the first minute",
            _OTHER_COST_PER_MONTH,
        ),
    ] = None


class BudgetStatus(Struct, frozen=True):
    """The budget in force (`put_budget_usd_per_month`)."""

    usd_per_month: Annotated[
        float, figure("the budget; no series if there is none", "headgate_put_budget_usd_per_month")
    ]
    window_ms: Annotated[
        float,
        figure(
            "the least commit window that the budget allows now",
            "headgate_put_budget_window_seconds",
            per=1e3,
        ),
    ]
    target_bytes: Annotated[int, figure("the object target that it asks for now")]
    holds: Annotated[
        bool,
        figure(
            "false, or 0: the budget is exceeded, and no lever is left", "headgate_put_budget_holds"
        ),
    ]


class BillStatus(Struct, frozen=True):
    """What the daemon's requests to the store cost since it started, in US dollars. A month has
    30 days. Commands report their own."""

    store_class: Annotated[str, figure("whose `prices` count")]
    puts: Annotated[
        int,
        figure(
            "attempts: objects, the owner's log, images of the ledger, probes",
            _REQUESTS,
            operation="put",
        ),
    ]
    gets: Annotated[int, figure("", _REQUESTS, operation="get")]
    lists: Annotated[int, figure("", _REQUESTS, operation="list")]
    put_bytes: Annotated[int, figure("", _BYTES, operation="put")]
    get_bytes: Annotated[int, figure("", _BYTES, operation="get")]
    usd: Annotated[
        float,
        figure(
            "what the requests to the store cost, by the configured prices",
            "headgate_store_cost_usd_total",
        ),
    ]
    usd_per_month: Annotated[
        float | None,
        figure(
            "what the store costs in 30 days at the pace of the last minute; null, or 0, in"
            " the first minute",
            "headgate_store_cost_usd_per_month",
        ),
    ]
    usd_per_gib: Annotated[
        float | None,
        figure(
            "the cost so far per acknowledged GiB of bodies; null, or 0, before 16 MiB",
            "headgate_store_cost_usd_per_gib",
        ),
    ]
    put_rate: Annotated[float, figure("PUTs per second in the last minute")]
    optimum_put_rate: Annotated[
        float,
        figure(
            "PUTs per second of one group that is never too slow",
            "headgate_optimum_puts_per_second",
        ),
    ]
    per_shard: Annotated[
        StoreCost, figure("if each shard uploaded for itself", uploading="per_shard")
    ]
    single_stream: Annotated[
        StoreCost, figure("if one stream uploaded for all", uploading="single_stream")
    ]
    budget: BudgetStatus | None
