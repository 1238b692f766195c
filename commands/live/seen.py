"""What `top` reads of a status document.

Everything has a default: a daemon that restarts may come back as another version, with fields more
or less, and `top` goes on. What is missing is shown as ``-`` or not at all.
"""

from __future__ import annotations

from msgspec import Struct


class SeenAlarm(Struct, frozen=True):
    """An alarm."""

    message: str = "an alarm"


class SeenStore(Struct, frozen=True):
    """Counters of the store."""

    url: str = ""
    puts: int = 0
    put_bytes: int = 0


class SeenSensor(Struct, frozen=True):
    """A sensor of the pressure."""

    sensor: str = ""
    pressure: float = 0.0
    hard: bool = False


class SeenPressure(Struct, frozen=True):
    """The pressure. Without ``sensors``, ``inputs`` has their pressure by name."""

    level: float = 0.0
    hard_level: float | None = None
    rungs: list[str] = []
    inputs: dict[str, float] = {}
    sensors: list[SeenSensor] = []


class SeenDelivery(Struct, frozen=True):
    """Writes to streams."""

    deliveries: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None


class SeenStage(Struct, frozen=True):
    """How long requests take to a stage."""

    p50_ms: float | None = None
    p99_ms: float | None = None


class SeenBudget(Struct, frozen=True):
    """What it may cost."""

    usd_per_month: float = 0.0
    holds: bool = True


class SeenStream(Struct, frozen=True):
    """What uploading in one stream would have needed."""

    puts: int


class SeenBill(Struct, frozen=True):
    """What the store costs. ``puts`` are not only uploads; those of ``single_stream`` neither."""

    usd_per_month: float | None = None
    puts: int = 0
    single_stream: SeenStream | None = None
    budget: SeenBudget | None = None


class SeenRetention(Struct, frozen=True):
    """Whether the wall clock is trusted."""

    clock_jump_ms: int | None = None


class SeenShard(Struct, frozen=True):
    """A shard."""

    shard: int
    pid: int | None = None
    ready: bool = True
    cpu: int | None = None
    restarts: int = 0
    cpu_ms: int | None = None
    ring_bytes: int = 0
    ring_used_bytes: int = 0
    connections: int = 0
    streams: int = 0
    requests_acked: int = 0
    records_acked: int = 0
    bytes_acked: int = 0

    @property
    def ring_share(self) -> float:
        """How full the ring is, 0 to 1."""
        return self.ring_used_bytes / self.ring_bytes if self.ring_bytes else 0.0


class SeenGroup(Struct, frozen=True):
    """A group."""

    group: int
    shards: list[int]
    turn: int | None = None
    backlog_bytes: int = 0
    last_upload_age_ms: int | None = None


class SeenTotals(Struct, frozen=True):
    """Sums over the shards."""

    requests_acked: int = 0
    records_acked: int = 0
    bytes_acked: int = 0
    rejected: int = 0


class SeenSubscription(Struct, frozen=True):
    """A subscription that should be looked at."""

    topic: str = ""
    subscription: str = ""
    state: str = ""
    reason: str = ""
    lag: int = 0
    blocked_keys: int = 0
    consumers: int = 0
    oldest_unacknowledged_ms: int = 0


class SeenSubscriptions(Struct, frozen=True):
    """All subscriptions together, and the ``first`` ones to look at."""

    count: int = 0
    held: int = 0
    lag: int = 0
    blocked_keys: int = 0
    consumers: int = 0
    delivered: int = 0
    acknowledged: int = 0
    oldest_unfinished_ms: int = 0
    first: list[SeenSubscription] = []


class SeenPush(Struct, frozen=True):
    """A push subscription that should be looked at."""

    topic: str = ""
    subscription: str = ""
    mode: str = ""
    rate: float = 0.0
    rate_max: float = 0.0
    held_ms: int = 0


class SeenPushes(Struct, frozen=True):
    """All push subscriptions together, and the ``first`` ones to look at."""

    count: int = 0
    slow: int = 0
    rate_max: float = 0.0
    attempts: int = 0
    failures: int = 0
    records: int = 0
    p99_ms: float | None = None
    first: list[SeenPush] = []


class SeenRouter(Struct, frozen=True):
    """A router that should be looked at."""

    router: str = ""
    state: str = ""
    reason: str = ""
    lag: int = 0


class SeenRouters(Struct, frozen=True):
    """All routers together, and the ``first`` ones to look at."""

    count: int = 0
    held: int = 0
    stopped: int = 0
    lag: int = 0
    copied: int = 0
    first: list[SeenRouter] = []


class SeenStatus(Struct, frozen=True):
    """A status document."""

    version: str
    uptime_s: int
    ready: bool
    incarnation: int = 0
    window_ms: float | None = None
    object_bytes_target: int | None = None
    alarms: list[SeenAlarm] = []
    store: SeenStore = SeenStore()
    pressure: SeenPressure = SeenPressure()
    retention: SeenRetention = SeenRetention()
    delivery: SeenDelivery = SeenDelivery()
    subscriptions: SeenSubscriptions = SeenSubscriptions()
    push: SeenPushes = SeenPushes()
    routers: SeenRouters = SeenRouters()
    latency: dict[str, SeenStage] = {}
    bill: SeenBill | None = None
    shards: list[SeenShard] = []
    groups: list[SeenGroup] = []
    totals: SeenTotals = SeenTotals()

    @property
    def fewest_puts(self) -> int | None:
        """Uploads so far, had one stream made them."""
        bill = self.bill
        if bill is None or bill.single_stream is None:
            return None
        return bill.single_stream.puts - (bill.puts - self.store.puts)
