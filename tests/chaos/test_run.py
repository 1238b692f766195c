"""Short chaos runs with fixed seeds; ``make chaos`` makes long ones.

Most end as soon as they have met what they are about; their seconds only end a hang. Each uses all
CPUs, so one worker has them all; tests of the others wait more than they compute.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.chaos.kafka import MEMBERS
from tests.chaos.plan import OF_PAIR
from tests.chaos.pressure import RUNGS
from tests.chaos.pushes import KINDS
from tests.chaos.run import (
    only_kafka,
    only_library,
    only_push,
    only_soak,
    only_subscriptions,
    run,
    under_pressure,
    with_pair,
    with_recreation,
)
from tests.chaos.watchers import WANTED
from tests.chaos.world import Options
from tests.minio import Bucket

pytestmark = pytest.mark.xdist_group("chaos")

RENEWALS = [f"{what} renewed" for what in ("subscription", "push", "router", "topic")]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_and_store_faults_contradict_nothing_that_was_said(tmp_path: Path) -> None:
    report = run(Options(tmp_path, seed=4, seconds=1_200, kills=15, pause_s=0.02))
    assert report.contradictions == []
    assert report.kills >= 15
    assert report.acknowledged and report.unknown, "the kills did not meet the load"
    assert report.rows_compacted and report.objects_collected, "nothing was in the lake"
    assert report.streams > len(WANTED), "no watcher resumed"
    assert report.records_watched > report.records_kept, "watchers saw little"
    assert report.records_evicted and report.whole_readings, "nothing was evicted, or read whole"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_under_pressure_contradict_nothing_that_was_said(tmp_path: Path) -> None:
    """Rows T10 and T12: windows widen and rings are full, and nothing acknowledged is lost."""
    options = under_pressure(Options(tmp_path, seed=9, seconds=1_200, kills=15, lake=False))
    report = run(options)
    assert report.contradictions == []
    assert report.kills >= 15
    assert report.acknowledged and report.unknown, "the kills did not meet the load"
    assert report.refused[429], "no ring was full"
    assert set(report.rungs) >= set(RUNGS)
    assert max(report.windows_ms) > 4 * min(report.windows_ms), "the commit window stayed"
    assert report.records_watched > report.records_kept, "watchers saw little"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_subscriptions_under_kills_lose_and_reorder_nothing(tmp_path: Path) -> None:
    """Rows K4 to K10: what is sent again has a reason, and each key keeps its order."""
    report = run(only_subscriptions(Options(tmp_path, seed=2, seconds=1_200, kills=15)))
    assert report.contradictions == []
    assert report.kills >= 15
    consumed = report.consumed
    assert consumed["acknowledged"] > report.records_kept, "consumers saw little"
    assert consumed["again"], "the kills did not meet consumers"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_while_pushing_lose_and_reorder_nothing(tmp_path: Path) -> None:
    """Each record arrives, those of a key in order, and repetitions under the same id."""
    report = run(only_push(Options(tmp_path, seed=3, seconds=1_200, kills=15)))
    assert report.contradictions == []
    assert report.kills >= 15
    pushed = report.pushed
    assert pushed["answered 200"] > report.records_kept / 2, "little was pushed"
    assert set(pushed) >= KINDS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_lose_double_and_reorder_nothing_of_kafkas_clients(tmp_path: Path) -> None:
    """Idempotent producers, and a group that skips nothing and forgets no commit."""
    options = only_kafka(Options(tmp_path, seed=1, seconds=1_200, kills=15, lake=False))
    report = run(options)
    assert report.contradictions == []
    assert report.kills >= 15
    assert report.kafka["stored"] and report.kafka["read"] >= report.kafka["stored"]
    assert report.kafka["joins"] > 2 * MEMBERS, "the group was left alone"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_lose_double_and_reorder_nothing_of_the_python_client(tmp_path: Path) -> None:
    """Row N15; ``make chaos CHAOS="--library --kills 100 --seconds 900"`` is the whole of it."""
    report = run(only_library(Options(tmp_path, seed=2, seconds=1_200, kills=15, lake=False)))
    assert report.contradictions == []
    assert report.kills >= 15
    assert report.library["stored"] == report.library["watched"] > 0
    assert report.library["worked on"]


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_take_overs_lose_and_reorder_nothing(tmp_path: Path, bucket: Bucket) -> None:
    """Row L24, and what watchers, routers, consumers and push make of it. The run ends when each
    act of a pair was done."""
    options = Options(tmp_path, seed=24, seconds=1_200, kills=2, shards=2)
    options = replace(only_push(with_pair(options, bucket)), read=True, subscribe=True)
    report = run(options)
    assert report.contradictions == []
    assert all(report.acts[act.value] for act in OF_PAIR)
    assert report.acknowledged and report.unknown, "the acts did not meet the load"
    assert report.streams > len(WANTED), "no watcher resumed"
    assert report.pushed["answered 200"]
    assert report.consumed["acknowledged"] and report.consumed["again"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_deleted_and_created_again_while_it_is_used_keeps_its_promises(
    tmp_path: Path,
) -> None:
    """Each life of a topic, subscription, router or cursor is judged as if it were the first."""
    least = dict.fromkeys(RENEWALS, 1)
    report = run(with_recreation(Options(tmp_path, seed=5, seconds=60, least=least)))
    assert report.contradictions == []
    for what in RENEWALS:
        assert report.acts[what], report.acts
    assert report.consumed["acknowledged"] and report.pushed["answered 200"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_subscriptions_account_for_every_record_within_the_printed_memory(
    tmp_path: Path,
) -> None:
    """Gaps, trims, seeks, retention, full and deleted topics of dead letters; for longer by
    ``make chaos CHAOS=--soak SECONDS=600``."""
    least = {"gap": 1, "trimmed": 5, "sought": 2, "retried": 2, "letters renewed": 2}
    report = run(only_soak(Options(tmp_path, seed=6, seconds=180, least=least)))
    assert report.contradictions == []
    assert all(report.acts[what] >= times for what, times in least.items()), report.acts
    assert report.records_evicted and report.consumed["acknowledged"] > report.records_kept
    assert report.pushed["answered 200"]
