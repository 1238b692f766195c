"""The push senders of a shard, wired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daemon.config import Config
from delivery.cursors.flush import CursorFlush
from delivery.ledger_thread import LedgerThread
from delivery.push.addresses import AllowList
from delivery.push.client import PushClient
from delivery.push.learned import LearnedRates
from delivery.push.limiter import LimiterSettings
from delivery.push.runtime import PushSenders
from delivery.push.secrets import SecretsFile
from delivery.push.sender import QUEUED_BYTES_MAX, SenderTools
from delivery.subscriptions.budget import QueuedBudget
from delivery.subscriptions.owners import Owners
from shards.clock import monotonic_ns, wall_ms
from shards.endpointholds import EndpointHolds
from shards.segment import Segment


def push_senders(
    segment: Segment,
    shard: int,
    config: Config,
    ledger: LedgerThread,
    owners: Owners,
    version: Callable[[], int],
    may_deliver: Callable[[], bool],
    flush: CursorFlush,
    failed: Callable[[Exception], None],
) -> PushSenders:
    """The senders of one shard; ``failed`` ends the process."""
    learned = LearnedRates()
    flush.add_rates(learned)
    limits = LimiterSettings(
        period_s=config.push_limiter_period_s,
        speedup_tolerance=config.push_speedup_tolerance,
        tolerance=config.push_tolerance,
        convergence_factor=config.push_convergence_factor,
        slow_delay_s=config.push_slow_delay_s,
        heartbeat_delay_s=config.push_heartbeat_delay_s,
        update_interval_s=config.push_update_interval_s,
        significant_change=config.push_use_change_min_percent / 100,
    )
    client = PushClient(AllowList(config.push_allow, config.push_deny), config.push_ca_file)
    tools = SenderTools(
        owners, client, limits, learned, QueuedBudget(QUEUED_BYTES_MAX), EndpointHolds(segment),
        monotonic_ns, wall_ms, may_deliver, failed,
    )  # fmt: skip
    secrets = SecretsFile(Path(config.data_dir))
    return PushSenders(segment, shard, ledger, version, secrets, tools)
