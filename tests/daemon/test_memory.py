"""The memory bound is the sum of its parts, and each part follows the keys that make it."""

from __future__ import annotations

from pathlib import Path

from daemon import memory
from daemon.config import Config, Override, load
from daemon.governor.cgroup import CgroupMemory
from delivery.reading import lake as lake_reader
from delivery.reading.objects import CACHE_BYTES_MAX
from tests.daemon.governor.cgroups import FakeMachine

MIB = 1 << 20


def config(**settings: object) -> Config:
    """A configuration with these keys."""
    return load(None, {}, [Override(key, str(value)) for key, value in settings.items()])


def test_the_segment_is_counted_as_large_as_it_is() -> None:
    made = config(shards=3, ring_bytes="64MiB")
    assert memory.bounds(made)["segment"] == memory.layout_of(made).size_bytes
    assert memory.layout_of(made).shards == 3
    assert memory.layout_of(made).journal_bytes == 4 * MIB
    assert memory.bounds(made)["segment"] > 3 * (64 + 4) * MIB


def test_every_part_but_the_supervisors_share_grows_with_the_shards() -> None:
    one, four = memory.bounds(config(shards=1)), memory.bounds(config(shards=4))
    for part in (
        "bodies",
        "requests",
        "outstanding",
        "unread",
        "uploads",
        "reads",
        "lake",
        "scheduler",
        "streams",
    ):
        assert four[part] == 4 * one[part]
    assert four["processes"] - one["processes"] == 3 * memory.PROCESS_BYTES
    assert all(size > 0 for size in four.values())
    assert [part for part, size in one.items() if not size] == ["pipes"]  # there is no other shard


def test_the_parts_follow_their_keys() -> None:
    usual = memory.bounds(config(shards=2))
    larger_ring = memory.bounds(config(shards=2, ring_bytes="128MiB"))
    assert larger_ring["bodies"] - usual["bodies"] == 2 * 64 * MIB
    assert larger_ring["segment"] - usual["segment"] == 2 * 64 * MIB
    more_uploads = memory.bounds(config(shards=2, uploads_in_flight_max=8))
    assert more_uploads["uploads"] == 2 * usual["uploads"]
    more_streams = memory.bounds(config(shards=2, streams_max=20_000))
    assert more_streams["streams"] - usual["streams"] == 2 * 10_000 * memory.STREAM_BYTES
    larger_objects = memory.bounds(config(shards=2, object_bytes_target="8MiB"))
    assert larger_objects["uploads"] == 2 * usual["uploads"]
    assert usual["reads"] > 2 * CACHE_BYTES_MAX


def test_what_reading_compacted_records_keeps_is_counted() -> None:
    kept = lake_reader.ROWS_BYTES_MAX + lake_reader.BLOCKS_BYTES_MAX + lake_reader.FOOTERS_BYTES_MAX
    fetched = lake_reader.FETCHES_AT_ONCE * lake_reader.FETCH_BYTES
    bound = memory.bounds(config(shards=1))["lake"]
    assert bound == kept + fetched + lake_reader.LIBRARY_BYTES


def test_the_losers_of_hedged_puts_are_counted() -> None:
    usual = memory.bounds(config(shards=2, store_url="s3://bucket/x"))
    hedged = memory.bounds(config(shards=2, store_url="s3://bucket/x", hedge_puts="true"))
    assert hedged["uploads"] == 2 * usual["uploads"]


def test_bounds_above_the_control_groups_limit_are_told_with_what_to_do(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.v2("/h")
    machine.group_v2("/h", used_mib=10)
    made = config(shards=2)
    assert memory.above_limit(made, CgroupMemory(tmp_path)) is None, "no limit"
    machine.group_v2("/h", used_mib=10, max_mib=64_000)
    assert memory.above_limit(made, CgroupMemory(tmp_path)) is None
    machine.group_v2("/h", used_mib=10, max_mib=1000)
    said = memory.above_limit(made, CgroupMemory(tmp_path))
    bound_mib = sum(memory.bounds(made).values()) >> 20
    assert said is not None
    assert f"are {bound_mib} MiB together, but the memory limit of the control group" in said
    assert "leaves 850 MiB" in said and "lower shards, ring_bytes or streams_max" in said


def test_bodies_under_way_have_half_of_what_a_limit_leaves_in_each_shard() -> None:
    made = config(shards=2, ring_bytes="64MiB", uploads_in_flight_max=1)
    taken = memory.bounds(made)["segment"] + memory.bounds(made)["uploads"] + 3 * memory.BUSY_BYTES
    assert memory.bodies_bytes(made, taken + 40 * MIB) == 10 * MIB
    assert memory.bodies_bytes(made, 64 << 30) == made.ring_bytes, "promises are within the ring"
    assert memory.bodies_bytes(made, None) == made.ring_bytes
    assert memory.bodies_bytes(made, taken) == memory.bodies_bytes(made, 1) == 1
