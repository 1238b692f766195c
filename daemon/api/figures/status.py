"""``/v0/status``: what the daemon is doing, read from the shared segment by any shard.

Pure: segment and configuration in, a Struct of ``daemon/schemas/status.py`` out.

The counts of the ``bill`` are words, its dollars are computed here from the configured prices; the
supervisor computes what needs a past: rates and alternatives
(``daemon/governor/costs/billing.py``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from daemon import memory
from daemon.alarms import alarms
from daemon.alarms import standing as standstills
from daemon.api.figures import kafka_figures, push_figures, router_figures, subscription_figures
from daemon.api.figures.metric_kinds import OTHERS, TokenSeries, TopicSeries
from daemon.config import Config
from daemon.config.sensors import SENSORS
from daemon.governor import board, ladder
from daemon.governor.costs.bill import Usage
from daemon.governor.producers_gate import ClosedBy
from daemon.intake.refused import BY_CODE
from daemon.schemas import api as schemas
from daemon.schemas.bill import BillStatus, BudgetStatus, StoreCost
from daemon.schemas.kafka import KafkaStatus
from daemon.tls.certificate import Certificate
from delivery.subscriptions.shown.inspection import consumers_wanted
from shards import latency
from shards import layout as at
from shards.boards import namecounts, pushtotals
from shards.boards.figures import words_of
from shards.boards.pushtotals import PushTotal
from shards.boards.rowboard import (
    KafkaGroupRow,
    Placed,
    RouterRow,
    RowPhase,
    SubscriptionRow,
    kafka_group_board,
    router_board,
    subscription_board,
)
from shards.clock import boottime_ns
from shards.doubles import double_of
from shards.latency import Counted, Stage
from shards.segment import Segment
from uploader.groups.buddy import Group
from uploader.groups.puller import GroupTable
from uploader.stores.prices import GIB

STANDING_SHOWN = 100
# A tick is 0.1 s. After so long the prefix may not be ours any more (uploader/ownership).
SUPERVISOR_SILENT_NS = 15_000_000_000
_REFUSED = {code: at.S_REFUSED + reason for code, reason in BY_CODE.items()}
_GROUP_TOTALS = {"splits": at.P_SPLITS, "merges": at.P_MERGES}


def version() -> str:
    """The installed version of the distribution."""
    try:
        return metadata.version("headgate")
    except metadata.PackageNotFoundError:
        return f"unknown (not installed; python {sys.version_info[0]}.{sys.version_info[1]})"


class StatusBuilder:
    """Builds the document."""

    def __init__(
        self, segment: Segment, config: Config, certificate: Certificate | None = None
    ) -> None:
        self._segment = segment
        self._words = segment.words
        self._layout = segment.layout
        self._config = config
        self._certificate = certificate
        self._groups = GroupTable(segment)
        self._subscriptions = subscription_board(segment)
        self._routers = router_board(segment)
        self._kafka_groups = kafka_group_board(segment)
        self._version = version()
        self._memory_bound_bytes = sum(memory.bounds(config).values())

    def obstacles(self, now_ns: int) -> list[str]:
        """Why the daemon is not ready; empty when it is."""
        return self._obstacles(alarms.active(self._segment, self._config, now_ns), now_ns)

    def _obstacles(self, active: list[schemas.AlarmStatus], now_ns: int) -> list[str]:
        found = ["the daemon is stopping"] if self._words[at.G_DRAINING] else []
        silent_ns = now_ns - int(self._words[at.G_TICKED_NS] or now_ns)
        if silent_ns > SUPERVISOR_SILENT_NS:
            found.append(
                f"the supervisor has not run for {silent_ns // 1_000_000_000} s, and without it"
                " another daemon may take the store over"
            )
        starting = [
            str(s) for s in range(self._layout.shards) if not self._shard_word(s, at.S_READY)
        ]
        if starting:
            found.append(f"shards that do not serve yet: {', '.join(starting)}")
        # /readyz is open to everybody: with tokens, what an alarm says is in the status only.
        is_told = self._config.auth_file is None
        return found + [
            alarm.message if is_told else f"{alarm.alarm}, see the status"
            for alarm in active
            if alarm.not_ready
        ]

    def document(
        self,
        now_ns: int,
        stages: Mapping[Stage, Counted] | None = None,
        subscriptions: Sequence[Placed[SubscriptionRow]] | None = None,
        push: Sequence[PushTotal] | None = None,
        routers: Sequence[Placed[RouterRow]] | None = None,
        kafka_groups: Sequence[Placed[KafkaGroupRow]] | None = None,
    ) -> schemas.Status:
        """The whole status; ages are milliseconds. ``stages`` and what follows: if they were read
        already. Groups of Kafka that have no row count if ``kafka_groups`` is None."""
        rows = self.subscriptions() if subscriptions is None else subscriptions
        totals = list(pushtotals.totals(self._segment)) if push is None else push
        words = self._words
        took = {stage.name.lower(): _latency(c) for stage, c in (stages or self.stages()).items()}
        # One look: its owner may change it meanwhile, and the alarm would name another.
        still = standstills.standing(self._segment, self._config, now_ns)
        active = alarms.active(self._segment, self._config, now_ns, still)
        return schemas.Status(
            version=self._version,
            uptime_s=(now_ns - words[at.G_STARTED_NS]) // 1_000_000_000,
            ready=not self._obstacles(active, now_ns),
            alarms=active,
            standing=still[:STANDING_SHOWN],
            incarnation=words[at.G_INCARNATION],
            epoch=words[at.G_EPOCH],
            commits=words[at.G_COMMITS],
            store=schemas.StoreStatus(
                self._config.store_url, **self._sums(words_of(schemas.StoreStatus))
            ),
            window_ms=words[at.G_WINDOW_NS] / 1e6,
            object_bytes_target=words[at.G_TARGET_BYTES],
            pressure=self._pressure(),
            bill=bill_of(self._segment, self._config, now_ns),
            memory_bound_bytes=self._memory_bound_bytes,
            retention=schemas.RetentionStatus(words[at.G_RECORDS_EVICTED], self._clock_jump_ms()),
            certificate=self._certificate_status(),
            gates=[self._producers_gate(now_ns), self._routers_gate(now_ns)],
            scheduler=self._scheduler(),
            delivery=schemas.DeliveryStatus(
                took["delivered"].count,
                took["delivered"].p50_ms,
                took["delivered"].p99_ms,
                **self._sums(words_of(schemas.DeliveryStatus)),
            ),
            subscriptions=subscription_figures.status_of(rows),
            push=push_figures.status_of(totals, rows, now_ns),
            routers=router_figures.status_of(self.routers() if routers is None else routers),
            latency=took,
            shards=[self._shard(s, now_ns) for s in range(self._layout.shards)],
            groups=[self._group(group, now_ns) for group in self._groups.map.groups()],
            totals=schemas.Totals(
                **self._sums(words_of(schemas.Totals)),
                **self._group_sums(_GROUP_TOTALS),
                rejected_by=self._sums(_REFUSED),
            ),
            standbys=self._standbys(),
            kafka=self._kafka(kafka_groups),
        )

    def _kafka(self, rows: Sequence[Placed[KafkaGroupRow]] | None) -> KafkaStatus | None:
        if self._config.kafka_listen is None:
            return None
        unplaced = (0, 0) if rows is not None else self.unplaced_kafka_groups()
        return kafka_figures.status_of(
            self.kafka_groups() if rows is None else rows, *unplaced,
            **self._sums(words_of(KafkaStatus)),
        )  # fmt: skip

    def _standbys(self) -> schemas.StandbysStatus:
        words = self._words
        seen_ns = words[at.G_STANDBY_SEEN_NS]
        return schemas.StandbysStatus(
            known=words[at.G_STANDBYS],
            seen_ms=_age_ms(seen_ns, boottime_ns()) if seen_ns else None,
            commits=words[at.G_STANDBY_COMMITS],
        )

    def _pressure(self) -> schemas.Pressure:
        words = self._words
        rungs = ladder.names_of(words[at.G_RUNGS])
        sensed = board.sensed(words)
        return schemas.Pressure(
            level=words[at.G_PRESSURE_PPM] / 1e6,
            rung=rungs[-1] if rungs else "none",
            inputs={each.sensor.name: each.pressure for each in sensed},
            hard_level=words[at.G_HARD_PPM] / 1e6,
            rungs=rungs,
            sensors=[
                schemas.SensorStatus(
                    sensor=each.sensor.name,
                    raw=each.reading.raw if math.isfinite(each.reading.raw) else None,
                    unit=each.sensor.unit,
                    pressure=each.pressure,
                    weight=each.weight,
                    hard=each.sensor.hard,
                    shard=each.reading.shard,
                    source=each.sensor.source,
                )
                for each in sensed
            ],
            steady_level=words[at.G_STEADY_PPM] / 1e6,
            coalesce_ms=words[at.G_COALESCE_NS] / 1e6,
            deferring=bool(words[at.G_DEFERRING]),
            scaling=round(words[at.G_SCALING_PPM] / 1e4),
            memory_left_bytes=left - 1 if (left := words[at.G_MEMORY_LEFT_BYTES]) else None,
            entered={
                rung.name: words[at.G_RUNGS_ENTERED + index]
                for index, rung in enumerate(ladder.RUNGS)
            },
        )

    def scaling(self, imports: list[schemas.ImportScaling] | None) -> schemas.Scaling:
        """How much more CPU and more consumers would help, and what that follows from."""
        pressure, names = self._pressure(), {each.name for each in SENSORS if each.by_cpu}
        counted = {name: each for name, each in pressure.inputs.items() if name in names}
        left_out = {name: each for name, each in pressure.inputs.items() if name not in names}
        subscriptions = [_subscription_scaling(each.row) for each in self.subscriptions()]
        subscriptions.sort(key=lambda each: (each.topic, each.subscription))
        return schemas.Scaling(
            pressure.scaling, counted, left_out, self._layout.shards, subscriptions, imports,
            kafka_figures.scaling_of(self.kafka_groups()),
        )  # fmt: skip

    def _producers_gate(self, now_ns: int) -> schemas.GateStatus:
        why, since_ns, pauses = self._words[at.G_GATE : at.G_GATE + at.GATE_WORDS]
        return schemas.GateStatus(
            gate="producers",
            paused_shards=self._layout.shards if why else 0,
            paused_ms=_age_ms(since_ns, now_ns) if why else None,
            pauses=pauses,
            reasons=[str(bit.name).lower() for bit in ClosedBy(why)],
        )

    def _routers_gate(self, now_ns: int) -> schemas.GateStatus:
        """Each shard has one."""
        whys, since_ns = self._column(at.S_GATE), self._column(at.S_GATE + at.GATE_SINCE_NS)
        paused = [since for since, why in zip(since_ns, whys, strict=True) if why]
        return schemas.GateStatus(
            gate="routers",
            paused_shards=len(paused),
            paused_ms=_age_ms(min(paused), now_ns) if paused else None,
            pauses=sum(self._column(at.S_GATE + at.GATE_PAUSES)),
            reasons=[SENSORS[why - 1].name for why in sorted({*whys} - {0})],
        )

    def _scheduler(self) -> schemas.SchedulerStatus:
        bands = self._sums({str(band): at.S_BANDS + band for band in range(at.BANDS)})
        deferred = self._sums(words_of(schemas.SchedulerStatus))
        return schemas.SchedulerStatus([*bands.values()], **deferred)

    def stages(self) -> dict[Stage, Counted]:
        """How long each stage took, over all shards."""
        return {stage: latency.counted(self._segment, stage) for stage in Stage}

    def subscriptions(self) -> list[Placed[SubscriptionRow]]:
        """What the owners of subscriptions told last."""
        return self._subscriptions.rows()

    def routers(self) -> list[Placed[RouterRow]]:
        """What the owners of routers told last."""
        return self._routers.rows()

    def kafka_groups(self) -> list[Placed[KafkaGroupRow]]:
        """How far groups of Kafka's consumers are, as the supervisor told last."""
        return self._kafka_groups.rows()

    def unplaced_kafka_groups(self) -> tuple[int, int]:
        """Those that have no row: how many, and their lag."""
        return self._words[at.G_GROUPS_UNPLACED], self._words[at.G_GROUPS_UNPLACED_LAG]

    async def push(self, clock_ns: Callable[[], int]) -> list[PushTotal]:
        """What senders of push subscriptions do, read in slices."""
        return await push_figures.in_slices(self._segment, clock_ns)

    @property
    def commits(self) -> int:
        """Commits in the ledger."""
        return self._words[at.G_COMMITS]

    def topics(self) -> list[TopicSeries]:
        """What topics' producers were acknowledged, over all shards."""
        found = namecounts.counted(namecounts.TOPICS, self._segment)
        return [TopicSeries(name or OTHERS, each.records, each.bytes) for name, each in found]

    def tokens(self) -> list[TokenSeries]:
        """The traffic of tokens, over all shards."""
        return [
            TokenSeries(name or OTHERS, each.requests, each.bytes_in, each.bytes_out, each.refused)
            for name, each in namecounts.counted(namecounts.TOKENS, self._segment)
        ]

    def _certificate_status(self) -> schemas.CertificateStatus | None:
        if self._certificate is None:
            return None
        shown = self._certificate.in_force
        return schemas.CertificateStatus([*shown.names], int(shown.expires.timestamp() * 1000))

    def _clock_jump_ms(self) -> int | None:
        """How far the wall clock jumped, back is negative; None while its time is trusted."""
        stopped = self._words[at.G_CLOCK_STOPPED]
        jump_ms = int(self._words[at.G_CLOCK_JUMP_MS])
        return None if not stopped else jump_ms if stopped == 1 else -jump_ms

    def _shard_word(self, shard: int, word: int) -> int:
        return int(self._words[self._layout.shard(shard) + word])

    def _column(self, word: int) -> memoryview[int]:
        """A word of all shards."""
        first, stop = self._layout.shard(0), self._layout.shard(self._layout.shards)
        return self._words[first + word : stop : at.SHARD_WORDS]

    def _sums(self, names: Mapping[str, int]) -> dict[str, int]:
        return {name: sum(self._column(word)) for name, word in names.items()}

    def _group_sums(self, names: dict[str, int]) -> dict[str, int]:
        """Over all slots: those of former groups keep their counts."""
        slots = range(self._layout.shards)
        return {
            name: sum(self._groups.word(slot, word) for slot in slots)
            for name, word in names.items()
        }

    def _shard(self, shard: int, now_ns: int) -> schemas.ShardStatus:
        pid = self._shard_word(shard, at.S_PID)
        head = self._shard_word(shard, at.S_HEAD)
        return schemas.ShardStatus(
            shard=shard,
            pid=pid or None,
            ready=bool(self._shard_word(shard, at.S_READY)),
            group=self._groups.map.group_of(shard).group,
            heartbeat_age_ms=_age_ms(self._shard_word(shard, at.S_HEARTBEAT_NS), now_ns),
            cpu_ms=self._shard_word(shard, at.S_CPU_NS) // 1_000_000,
            ring_bytes=self._layout.ring_bytes,
            ring_used_bytes=head - self._shard_word(shard, at.S_COMMITTED),
            journal_bytes=self._layout.journal_bytes,
            journal_used_bytes=max(
                0,
                self._shard_word(shard, at.S_JOURNAL_HEAD)
                - self._shard_word(shard, at.S_JOURNAL_TAIL),
            ),
            **{
                name: self._shard_word(shard, word)
                for name, word in words_of(schemas.ShardStatus).items()
            },
        )

    def _group(self, group: Group, now_ns: int) -> schemas.GroupStatus:
        table = self._groups
        return schemas.GroupStatus(
            group=group.group,
            shards=list(table.map.members(group)),
            turn=table.upload_turn(group),
            backlog_bytes=table.backlog_bytes(group),
            last_upload_age_ms=_age_ms(table.word(group.group, at.P_LAST_PULL_NS), now_ns),
            last_change_age_ms=_age_ms(table.word(group.group, at.P_LAST_CHANGE_NS), now_ns),
            splits=table.word(group.group, at.P_SPLITS),
            merges=table.word(group.group, at.P_MERGES),
        )


def _latency(counted: Counted) -> schemas.LatencyStatus:
    p50_us, p99_us = (latency.quantile_us(counted.buckets, share) for share in (0.5, 0.99))
    return schemas.LatencyStatus(counted.total, _ms(p50_us), _ms(p99_us))


def _ms(us: float | None) -> float | None:
    return None if us is None else us / 1e3


def _age_ms(then_ns: int, now_ns: int) -> int | None:
    """Milliseconds since; None for what has not happened yet."""
    return max(0, now_ns - then_ns) // 1_000_000 if then_ns else None


def _subscription_scaling(row: SubscriptionRow) -> schemas.SubscriptionScaling:
    return schemas.SubscriptionScaling(
        topic=row.topic,
        subscription=row.subscription,
        value=consumers_wanted(row.drainable_lag, row.consumers, row.consumer_max),
        drainable_lag=row.drainable_lag,
        lag=row.lag,
        in_flight=row.in_flight,
        blocked_keys=row.blocked_keys,
        consumers=row.consumers,
        consumer_max=row.consumer_max,
        held="" if row.phase is RowPhase.RUNNING else row.reason or row.phase.name.lower(),
    )


_OWN = (at.G_OWN_PUTS, at.G_OWN_PUT_BYTES, at.G_OWN_GETS, at.G_OWN_GET_BYTES, at.G_OWN_LISTS)
_SHARDS = (at.S_PUTS, at.S_PUT_BYTES, at.S_GETS, at.S_GET_BYTES, at.S_LISTS)


# Less says nothing about a month, or about a GiB.
ENOUGH_NS = 60_000_000_000  # the time of the mean (daemon/governor/costs/bill.py)
ENOUGH_BYTES = 16 << 20


def bill_of(segment: Segment, config: Config, now_ns: int) -> BillStatus:
    """What the store was asked for so far, and what that costs."""
    words, layout, prices = segment.words, segment.layout, config.store_prices
    first, stop = layout.shard(0), layout.shard(layout.shards)

    def total(word: int) -> int:
        return sum(words[first + word : stop : at.SHARD_WORDS])

    own = Usage(*(words[word] for word in _OWN))
    used = own + Usage(*map(total, _SHARDS))
    acked_bytes = total(at.S_BYTES_ACKED)

    is_long_enough = now_ns - words[at.G_STARTED_NS] >= ENOUGH_NS

    def per_month(word: int) -> float | None:
        return double_of(words[word]) if is_long_enough else None

    def instead(uploads: int, usd_per_month: float | None) -> StoreCost:
        """The same with another number of uploads."""
        puts = own.puts + uploads
        usd = prices.usd(puts, used.gets, used.lists, used.put_bytes, used.get_bytes)
        return StoreCost(puts, usd, usd_per_month)

    usd = used.usd(prices)
    return BillStatus(
        store_class=config.store_class,
        puts=used.puts,
        gets=used.gets,
        lists=used.lists,
        put_bytes=used.put_bytes,
        get_bytes=used.get_bytes,
        usd=usd,
        usd_per_month=per_month(at.G_USD_PER_MONTH),
        usd_per_gib=usd * GIB / acked_bytes if acked_bytes >= ENOUGH_BYTES else None,
        put_rate=double_of(words[at.G_PUT_RATE]),
        optimum_put_rate=double_of(words[at.G_OPTIMUM_PUT_RATE]),
        per_shard=instead(words[at.G_PER_SHARD_PUTS], per_month(at.G_PER_SHARD_USD_PER_MONTH)),
        single_stream=instead(
            words[at.G_SINGLE_STREAM_PUTS], per_month(at.G_SINGLE_STREAM_USD_PER_MONTH)
        ),
        budget=_budget(segment),
    )


def _budget(segment: Segment) -> BudgetStatus | None:
    words = segment.words
    budget_usd = double_of(words[at.G_BUDGET_USD])
    if not budget_usd:
        return None
    return BudgetStatus(
        usd_per_month=budget_usd,
        window_ms=words[at.G_BUDGET_WINDOW_NS] / 1e6,
        target_bytes=words[at.G_TARGET_BYTES],
        holds=bool(words[at.G_BUDGET_HOLDS]),
    )
