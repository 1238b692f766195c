"""What was measured, in the shape of the JSON that is kept. Names end in their units."""

from __future__ import annotations

import msgspec

from bench.access import AccessResult
from bench.delivery_results import DeliveryResults
from bench.governor_results import GovernorResults
from bench.hot import HotResult
from bench.kafka import KafkaResult
from bench.load import Load
from bench.neighbor import NeighborResult
from bench.push_results import PushResults
from bench.put_cost import PutCost
from bench.standby import PairResult
from bench.subscription_results import SubscriptionResults


class LoadResult(msgspec.Struct, frozen=True):
    """One load on a daemon. ``put_ratio`` is PUTs a second over their optimum."""

    load: Load
    cpu_s: float
    generator_busy: float
    others_share: float
    puts_per_s: float
    put_optimum_per_s: float
    put_ratio: float
    side_cpu_ms_per_put: float | None


class TailResult(msgspec.Struct, frozen=True):
    """A reader that follows a topic during a load."""

    gets: int
    records_written: int
    records_read: int
    lag_max: int


class DaemonResult(msgspec.Struct, frozen=True):
    """One case on a daemon."""

    name: str
    store: str
    shards: int
    size: str
    body_format: str
    body_bytes: int
    records_a_body: int
    cpus_shared: bool
    saturated: LoadResult
    light: LoadResult | None
    half: LoadResult | None
    tail: TailResult | None
    memory_peak_bytes: int
    memory_bound_bytes: int


class OtherResult(msgspec.Struct, frozen=True):
    """One load on the null responder or on a peer."""

    name: str
    size: str
    body_bytes: int
    load: Load
    cpu_s: float
    generator_busy: float
    others_share: float


class CompactionResult(msgspec.Struct, frozen=True):
    """The Spark job and plain pyarrow on one shape of L0. Seconds are medians of the turns.

    ``plain_s`` is with the encodings of the compaction, ``plain_default_s`` with the defaults of
    pyarrow except for the compression. A turn is (Spark, plain, plain with defaults). ``cpu_s``
    is of all processes. ``first_job_s`` is a small job directly after the start of the session.
    """

    name: str
    topics: int
    l0_bytes: int
    rows: int
    spark_s: float
    plain_s: float
    plain_default_s: float
    spark_cpu_s: float
    plain_cpu_s: float
    turns: list[tuple[float, float, float]]
    session_s: float
    first_job_s: float
    files: int
    lake_bytes: int
    bytes_read_ratio: float
    requests: int
    memory_peak_bytes: int
    shuffled: bool


class ScaleResult(msgspec.Struct, frozen=True):
    """Medians of the CPU of one process with this many shards."""

    shards: int
    pull_ms: float
    look_ms: float
    tick_ms: float


class LeftOut(msgspec.Struct, frozen=True):
    """A case that was not measured, and why."""

    name: str
    why: str


class Machine(msgspec.Struct, frozen=True):
    """What the figures were measured on."""

    cpu_model: str
    cpus: int
    python: str
    generator: str


class Results(msgspec.Struct):
    """One run of the benchmark."""

    machine: Machine
    started: str
    daemons: list[DaemonResult] = []
    ceilings: list[OtherResult] = []
    peers: list[OtherResult] = []
    put_cost: PutCost | None = None
    compactions: list[CompactionResult] = []
    scale: list[ScaleResult] = []
    access: list[AccessResult] = []
    neighbor: list[NeighborResult] = []
    standby: PairResult | None = None
    hot: list[HotResult] = []
    kafka: list[KafkaResult] = []
    hot_before: list[HotResult] = []  # of the last run that was kept
    delivery: DeliveryResults = msgspec.field(default_factory=DeliveryResults)
    subscriptions: SubscriptionResults = msgspec.field(default_factory=SubscriptionResults)
    push: PushResults = msgspec.field(default_factory=PushResults)
    governor: GovernorResults = msgspec.field(default_factory=GovernorResults)
    left_out: list[LeftOut] = []
    case_seconds: dict[str, float] = {}
