"""The printed tables of Results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import (
    access,
    delivery_report,
    governor_report,
    hot,
    kafka,
    neighbor,
    push_report,
    standby,
    subscription_report,
)
from bench.figures import GIB, MIB, NONE, Target, cpu_s_per_gib, mib_per_s, number, ratio
from bench.plan import EMBEDDED, MINIO, STORES
from bench.results import (
    CompactionResult,
    DaemonResult,
    LoadResult,
    OtherResult,
    Results,
    ScaleResult,
)
from commands.output import table

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

REQUESTS_PER_S_MIN = 50_000  # at 1 KiB, a shard core, embedded
MIB_PER_S_MIN = 300  # at 64 KiB, a shard core, embedded
PEER_REQUESTS_RATIO_MIN = 2.5
PEER_MIB_RATIO_MIN = 8.0
FEW_TOPICS = 10
FEW_TOPICS_RATIO_MIN = 1.0  # MB/s of the compaction over MB/s of plain pyarrow
MANY_TOPICS_RATIO_MIN = 0.5
READ_RATIO_MAX = 1.05  # bytes read over bytes compacted
PUT_RATIO_MAX = 1.25  # PUTs a second over the optimum
PUT_CPU_RATIO_MAX = 1.2
LIGHT_OVER_PUT_MS_MAX = 10.0  # p50 at light load over the p50 of a bare PUT
GENERATOR_BUSY_MAX = 0.95
OTHERS_SHARE_MAX = 0.05
PULL_GROWTH_MAX = 1.5  # CPU of a pull with 64 shards over that with 2
TICK_MS_MAX = 5.0  # of the supervisor, with 128 shards


def text(results: Results) -> str:
    """All that is printed at the end of a run."""
    machine = results.machine
    head = f"{machine.cpu_model}, {machine.cpus} CPUs, Python {machine.python}"
    sections = [f"{head}; load by {machine.generator}"]
    if results.ceilings:
        sections.append(_section("Generator's ceiling: a null responder on one core",
                                 *_others(results.ceilings)))  # fmt: skip
    if results.daemons:
        sections.append(_section("Saturated", *_throughput(results)))
        if any(daemon.cpus_shared or daemon.store == MINIO for daemon in results.daemons):
            sections.append("* shares cores with the generator (MinIO: the store does)")
        sections.append(
            _section("Latency in ms, and PUTs over the optimum", *_latency(results.daemons))
        )
    if results.peers:
        sections.append(_section("s2-lite on a local directory, one core", *_others(results.peers)))
    if results.scale:
        sections.append(_section("CPU in ms by the number of shards", *_scale(results.scale)))
    if results.access:
        sections.append(_section("Tokens and TLS, on one core", *access.table(results.access)))
    if results.neighbor:
        sections.append(
            _section("A guest and its neighbor, four shards", *neighbor.table(results.neighbor))
        )
    if results.standby:
        sections.append(_section("A pair of daemons on MinIO", *standby.table(results.standby)))
    if results.hot:
        sections.append(
            _section(
                "A known request by step, in one process",
                *hot.table(results.hot, results.hot_before),
            )
        )
    if results.kafka:
        sections.append(
            _section(
                "Kafka's protocol, one shard on the embedded store", *kafka.table(results.kafka)
            )
        )
    for title, (heads, rows) in delivery_report.sections(results.delivery):
        sections.append(_section(title, heads, rows))
    for title, (heads, rows) in subscription_report.sections(results.subscriptions):
        sections.append(_section(title, heads, rows))
    for title, (heads, rows) in push_report.sections(results.push):
        sections.append(_section(title, heads, rows))
    for title, (heads, rows) in governor_report.sections(results.governor):
        sections.append(_section(title, heads, rows))
    if results.compactions:
        sections.append(
            _section("Compaction: Spark and plain pyarrow in two processes",
                     *_compactions(results.compactions))
        )  # fmt: skip
    rows = [
        (target.name, _bound(target), number(target.measured) + target.unit, target.verdict)
        for target in targets(results)
    ]
    if rows:
        sections.append(_section("Targets", ("target", "bound", "measured", "verdict"), rows))
    notes = list(_notes(results))
    if notes:
        sections.append("\n".join(notes))
    return "\n\n".join(sections)


def targets(results: Results) -> list[Target]:
    """All targets whose both sides were measured."""
    return [
        *_embedded_targets(results),
        *_peer_targets(results),
        *_row_targets(results),
        *_compaction_targets(results),
        *_scale_targets(results),
        *access.targets(results.access),
        *neighbor.targets(results.neighbor),
        *standby.targets(results.standby),
        *kafka.targets(results.kafka),
        *delivery_report.targets(results.delivery),
        *subscription_report.targets(results.subscriptions),
        *push_report.targets(results.push),
        *governor_report.targets(results.governor),
    ]


def _embedded_targets(results: Results) -> Iterator[Target]:
    small = _case(results, f"{EMBEDDED}/1/1KiB/ndjson")
    if small is not None:
        yield Target("embedded, 1 KiB: acknowledged/s a core", REQUESTS_PER_S_MIN,
                     small.saturated.load.acked_per_s)  # fmt: skip
    middle = _case(results, f"{EMBEDDED}/1/64KiB/ndjson")
    if middle is not None:
        yield Target("embedded, 64 KiB: MiB/s a core", MIB_PER_S_MIN, _mib(middle))


def _peer_targets(results: Results) -> Iterator[Target]:
    for peer in results.peers:
        ours = _case(results, f"{EMBEDDED}/1/{peer.size}/ndjson")
        if ours is None or not peer.load.acked:
            continue
        if peer.size == "1KiB":
            measured = ours.saturated.load.acked_per_s / peer.load.acked_per_s
            name, bound = "acknowledged/s", PEER_REQUESTS_RATIO_MIN
        else:
            measured = _mib(ours) / mib_per_s(peer.load.acked, peer.body_bytes, peer.load.seconds)
            name, bound = "MiB/s", PEER_MIB_RATIO_MIN
        yield Target(f"over s2-lite, {peer.size}: {name}", bound, measured, unit=" x")


def _row_targets(results: Results) -> Iterator[Target]:
    for store in STORES:
        ours = [daemon for daemon in results.daemons if daemon.store == store]
        loads = [load for daemon in ours for load in _loads(daemon)]
        if loads:
            worst = max(load.put_ratio for load in loads)
            yield Target(f"{store}: PUTs over the optimum, worst load", PUT_RATIO_MAX, worst,
                         at_least=False, unit=" x")  # fmt: skip
        for daemon in ours:
            if daemon.tail is not None:
                yield Target(f"{store}: GETs by a reader at the tail", 0, daemon.tail.gets,
                             at_least=False)  # fmt: skip
        if ours:
            share = max(each.memory_peak_bytes / each.memory_bound_bytes for each in ours)
            yield Target(f"{store}: memory's high-water over its bound", 1, share, at_least=False,
                         unit=" x")  # fmt: skip
    cost = results.put_cost
    if cost is not None:
        yield Target("CPU of a 4 MiB PUT by our store over bare boto3", PUT_CPU_RATIO_MAX,
                     cost.store_cpu_ms / cost.bare_cpu_ms, at_least=False, unit=" x")  # fmt: skip
        small = _case(results, f"{MINIO}/1/1KiB/ndjson")
        if small is not None and small.light is not None:
            over_ms = small.light.load.p50_ms - cost.small_put_p50_ms
            yield Target("minio, 1 KiB: p50 at light load over one bare PUT",
                         LIGHT_OVER_PUT_MS_MAX, over_ms, at_least=False, unit=" ms")  # fmt: skip


def _scale_targets(results: Results) -> Iterator[Target]:
    by_shards = {each.shards: each for each in results.scale}
    if by_shards:
        growth = by_shards[64].pull_ms / by_shards[2].pull_ms
        yield Target("a pull's CPU, 64 shards over 2", PULL_GROWTH_MAX, growth,
                     at_least=False, unit=" x")  # fmt: skip
        yield Target("supervisor's tick, 128 shards", TICK_MS_MAX, by_shards[128].tick_ms,
                     at_least=False, unit=" ms")  # fmt: skip


def _compaction_targets(results: Results) -> Iterator[Target]:
    for each in results.compactions:
        bound = FEW_TOPICS_RATIO_MIN if each.topics <= FEW_TOPICS else MANY_TOPICS_RATIO_MIN
        yield Target(f"{each.name}: MB/s over plain pyarrow", bound, each.plain_s / each.spark_s,
                     unit=" x")  # fmt: skip
        yield Target(f"{each.name}: bytes read over bytes compacted", READ_RATIO_MAX,
                     each.bytes_read_ratio, at_least=False, unit=" x")  # fmt: skip


def _compactions(compactions: list[CompactionResult]) -> Table:
    heads = ("case", "L0 MB", "Spark MB/s", "plain", "defaults", "ratio", "CPU s/GiB", "plain's",
             "files", "zstd", "read", "GETs", "worker MiB", "session s", "first job s")  # fmt: skip
    rows = []
    for each in compactions:
        size_mb = each.l0_bytes / 1e6
        gib = each.l0_bytes / GIB
        rows.append((
            each.name,
            number(size_mb),
            number(size_mb / each.spark_s),
            number(size_mb / each.plain_s),
            number(size_mb / each.plain_default_s),
            number(each.plain_s / each.spark_s),
            number(each.spark_cpu_s / gib),
            number(each.plain_cpu_s / gib),
            str(each.files),
            number(each.l0_bytes / each.lake_bytes),
            number(each.bytes_read_ratio),
            str(each.requests),
            number(each.memory_peak_bytes / MIB),
            number(each.session_s),
            number(each.first_job_s),
        ))  # fmt: skip
    return heads, rows


def _throughput(results: Results) -> Table:
    heads = ("case", "acked/s", "MiB/s", "records/s", "CPU s/GiB", "acked/CPU s", "not 2xx",
             "errors", "of ceiling", "generator", "others", "memory MiB", "CPU ms/PUT")  # fmt: skip
    ceilings = {ceiling.size: ceiling.load.acked_per_s for ceiling in results.ceilings}
    rows = []
    for daemon in results.daemons:
        saturated = daemon.saturated
        load = saturated.load
        shared = daemon.cpus_shared or daemon.store == MINIO
        of_ceiling = ratio(load.acked_per_s, ceilings.get(daemon.size))
        rows.append((
            daemon.name + (" *" if shared else ""),
            number(load.acked_per_s),
            number(_mib(daemon)),
            number(load.acked_per_s * daemon.records_a_body),
            number(cpu_s_per_gib(saturated.cpu_s, load.acked, daemon.body_bytes)),
            number(ratio(load.acked, saturated.cpu_s)),
            str(load.not_2xx),
            str(load.socket_errors),
            _percent(of_ceiling),
            _percent(saturated.generator_busy),
            _percent(saturated.others_share),
            f"{daemon.memory_peak_bytes / MIB:.0f}",
            number(saturated.side_cpu_ms_per_put),
        ))  # fmt: skip
    return heads, rows


def _latency(daemons: list[DaemonResult]) -> Table:
    heads = ("case", "light p50", "p99", "half acked/s", "p50", "p99", "saturated p50", "p99",
             "PUT/s", "optimum", "PUT ratio light", "half", "saturated")  # fmt: skip
    rows = []
    for daemon in daemons:
        light, half, saturated = daemon.light, daemon.half, daemon.saturated
        rows.append((
            daemon.name,
            *_p50_p99(light),
            number(half.load.acked_per_s if half else None),
            *_p50_p99(half),
            *_p50_p99(saturated),
            number(saturated.puts_per_s),
            number(saturated.put_optimum_per_s),
            number(light.put_ratio if light else None),
            number(half.put_ratio if half else None),
            number(saturated.put_ratio),
        ))  # fmt: skip
    return heads, rows


def _scale(scale: list[ScaleResult]) -> Table:
    rows = [
        (str(each.shards), *(f"{ms:.3f}" for ms in (each.pull_ms, each.look_ms, each.tick_ms)))
        for each in scale
    ]
    return ("shards", "pull", "look", "supervisor's tick"), rows


def _others(others: list[OtherResult]) -> Table:
    heads = ("case", "acked/s", "MiB/s", "CPU s/GiB", "acked/CPU s", "not 2xx", "errors",
             "p50 ms", "p99 ms", "generator", "others")  # fmt: skip
    rows = []
    for other in others:
        load = other.load
        rows.append((
            other.name,
            number(load.acked_per_s),
            number(mib_per_s(load.acked, other.body_bytes, load.seconds)),
            number(cpu_s_per_gib(other.cpu_s, load.acked, other.body_bytes)),
            number(ratio(load.acked, other.cpu_s)),
            str(load.not_2xx),
            str(load.socket_errors),
            number(load.p50_ms),
            number(load.p99_ms),
            _percent(other.generator_busy),
            _percent(other.others_share),
        ))  # fmt: skip
    return heads, rows


def _notes(results: Results) -> Iterator[str]:
    shares = [load.others_share for daemon in results.daemons for load in _loads(daemon)]
    shares += [other.others_share for other in [*results.ceilings, *results.peers]]
    shares += [results.delivery.others_share, results.subscriptions.others_share]
    shares.append(results.push.others_share)
    if max(shares, default=0.0) > OTHERS_SHARE_MAX:
        yield (
            f"Other programs used up to {max(shares):.0%} of all CPUs during a load: figures per"
            " second and latencies suffer as much; figures per CPU-second suffer less."
        )
    if results.put_cost is not None:
        cost = results.put_cost
        yield (
            f"A 4 MiB PUT costs {cost.store_cpu_ms:.2f} ms of CPU by our store,"
            f" {cost.bare_cpu_ms:.2f} ms by a bare boto3 loop; a bare PUT of 2 KiB has a p50 of"
            f" {cost.small_put_p50_ms:.1f} ms."
        )
    for daemon in results.daemons:
        if daemon.tail is not None:
            tail = daemon.tail
            yield (
                f"Tail on {daemon.store}: {tail.records_read} of {tail.records_written} records"
                f" read while they were written, lag at most {tail.lag_max}, {tail.gets} GETs."
            )
        if daemon.saturated.generator_busy > GENERATOR_BUSY_MAX and not daemon.cpus_shared:
            yield f"{daemon.name}: the generator was saturated; the daemon may do more."
    if not results.peers and any("s2-lite" in left.name for left in results.left_out):
        yield "s2-lite is left out: no binary; give one with --s2-lite PATH."
    yield from (f"{left.name} is left out: {left.why}." for left in results.left_out
                if "s2-lite" not in left.name)  # fmt: skip


def _section(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n{table(heads, rows)}"


def _case(results: Results, name: str) -> DaemonResult | None:
    return next((daemon for daemon in results.daemons if daemon.name == name), None)


def _loads(daemon: DaemonResult) -> list[LoadResult]:
    return [load for load in (daemon.light, daemon.half, daemon.saturated) if load is not None]


def _mib(daemon: DaemonResult) -> float:
    load = daemon.saturated.load
    return mib_per_s(load.acked, daemon.body_bytes, load.seconds)


def _p50_p99(result: LoadResult | None) -> tuple[str, str]:
    if result is None:
        return NONE, NONE
    return number(result.load.p50_ms), number(result.load.p99_ms)


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"


def _bound(target: Target) -> str:
    return f"{'>=' if target.at_least else '<='} {number(target.bound)}{target.unit}"
