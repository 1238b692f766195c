"""The limit of the daemon's memory: the sum of the limits of its buffers (invariant I8).

It is logged at the start and shown by ``status``. Each part is a limit that some module keeps.
"""

from __future__ import annotations

from daemon.config import Config
from daemon.governor.cgroup import CgroupMemory
from daemon.governor.costs.billing import target_max_bytes
from daemon.http.limits import HttpLimits, http_limits
from daemon.http.request_budget import (
    DECODED,
    LARGE_BYTES_MAX,
    PROBES_BYTES_MAX,
    REQUESTS_BYTES_MAX,
)
from daemon.intake import admission, caps, commit_feed, topic_cache
from daemon.intake.foreign import requests as foreign
from daemon.tls import transport
from delivery import filters
from delivery.pipes import buffers as pipe_buffers
from delivery.pipes import client as pipe_client
from delivery.pipes import connection as pipe_connection
from delivery.pipes import server as pipe_server
from delivery.push import attempts
from delivery.push import sender as push_sender
from delivery.push.posts import client as push_client
from delivery.reading import blocks, followed
from delivery.reading import lake as lake_reader
from delivery.reading import tail as tail_reader
from delivery.reading.objects import CACHE_BYTES_MAX
from delivery.routers import shard_routers as routers
from delivery.scheduler import scheduler, settings
from delivery.schemas import BYTES_MAX
from delivery.subscriptions import budget
from delivery.subscriptions import runtime as subscriptions
from delivery.subscriptions.window import members
from delivery.watch import hub, tail_encoder
from ledger.types import SUBSCRIPTIONS_MAX
from shards import ring
from shards.journal import JOURNAL_BYTES
from shards.layout import Layout
from uploader.ownership.image import PART_BYTES

# Interpreter, libraries and small caches (heads, names): a new shard has 60 MB, a busy one was
# measured at 90.
PROCESS_BYTES = 128 << 20
# What a busy process takes without bodies, without files (which the kernel can drop) and without
# room for the unexpected. A shard has 27 MiB at rest, 10 more under load, and 7 more if
# it sends push.
BUSY_BYTES = 48 << 20
# A connection (1.7 KB) and a watcher of 64 partitions (8.3 KB; of one, 1.7 KB), as measured.
STREAM_BYTES = 12 << 10
# A request without its body and its head, what its commit needs, and its place in three queues.
OUTSTANDING_BYTES = 768
ANSWERS_BYTES_MAX = HttpLimits().answers_unsent_bytes_max
ANSWERS_BYTES_MIN = 2 * BYTES_MAX
READ_BYTES = 256 << 10  # most that the loop reads from a connection in a turn
READERS_AT_ONCE = 4  # threads that read the store, each with an extent and an answer


def layout_of(config: Config) -> Layout:
    """The shape of the shared segment for a configuration."""
    return Layout(
        config.shards, config.ring_bytes, config.uploads_in_flight_max, journal_bytes=JOURNAL_BYTES
    )


def bodies_bytes(config: Config, limit_bytes: int | None) -> int:
    """What all bodies on their way may take in each shard, if the kernel kills above a limit.

    They are promised before they come, and 64 MiB come within the tenth of a second between two
    looks at the memory, so no gate that looks is early enough. A body is there twice while it is
    joined, decompressed or parsed. One may always be on its way, so 1 is the least.
    """
    if limit_bytes is None:
        return config.ring_bytes
    taken = layout_of(config).size_bytes + _uploads_bytes(config)
    taken += (config.shards + 1) * BUSY_BYTES
    return max(1, min(config.ring_bytes, (limit_bytes - taken) // (2 * config.shards)))


def answers_bytes(shard_bodies_bytes: int) -> int:
    """What the answers of a shard that its clients have not taken may take: as much as bodies on
    their way, or a few answers."""
    return min(ANSWERS_BYTES_MAX, max(ANSWERS_BYTES_MIN, shard_bodies_bytes))


def pipe_frame_bytes_max(config: Config) -> int:
    """The largest frame of a pipe between shards. Requests and batches have less than 4 MiB; a
    batch may be one record, of which each byte takes up to six as JSON."""
    return min(0xFFFF_FFFF, (4 << 20) + 6 * config.record_bytes_max)


def _pipes_bytes(config: Config) -> int:
    """The pipes of one shard: as asker to all others, and as owner."""
    frame_bytes = pipe_frame_bytes_max(config)
    lines = 2 * (config.shards - 1)
    # What is written or joined is there once more than its limit has noticed.
    return (
        lines * (pipe_connection.WRITE_BUFFER_HIGH_BYTES + pipe_buffers.SMALL_FRAME_BYTES)
        + pipe_buffers.UNSENT_BYTES_MAX + frame_bytes
        + pipe_buffers.LARGE_FRAMES_BYTES_MAX + 2 * frame_bytes
        + pipe_client.OPENINGS_BYTES_MAX
        + pipe_client.ASKS_MAX * pipe_client.ASK_BYTES
        + pipe_server.ANSWERING_MAX * pipe_server.ANSWERING_BYTES
        + (pipe_server.PAYLOADS_BYTES_MAX + pipe_client.ASK_PAYLOAD_BYTES_MAX) * pipe_server.DECODED
        + pipe_server.OUTLETS_MAX * pipe_server.OUTLET_BYTES
    )  # fmt: skip


def _tls_bytes(limits: HttpLimits) -> int:
    """The TLS connections of one shard. What clients have not taken is counted as it is sent."""
    connections = limits.connections_max + limits.connections_told_max + limits.streams_max
    return (
        transport.HANDSHAKES_MAX * transport.HANDSHAKE_BYTES
        + connections * transport.CONNECTION_BYTES
        + 4 * transport.READ_BYTES
    )


def _uploads_bytes(config: Config) -> int:
    # A pull has at most slots x target bytes, cut into equal objects of less than 1.5 x the target.
    # The loser of a hedge keeps its object while its slot has the next one.
    in_flight = config.uploads_in_flight_max * (1 + config.hedge_puts)
    return config.shards * in_flight * 2 * target_max_bytes(config)


def bounds(config: Config) -> dict[str, int]:
    """What each kind of buffer may take, in bytes, over all processes."""
    shards = config.shards
    target_bytes = target_max_bytes(config)  # a budget may make objects larger
    reads = CACHE_BYTES_MAX + READERS_AT_ONCE * (2 * target_bytes + 2 * BYTES_MAX)
    # Nothing of this is taken before the first read of compacted records.
    lake_reads = (
        lake_reader.LIBRARY_BYTES
        + lake_reader.ROWS_BYTES_MAX
        + lake_reader.BLOCKS_BYTES_MAX
        + lake_reader.FOOTERS_BYTES_MAX
        + lake_reader.FETCHES_AT_ONCE * lake_reader.FETCH_BYTES
    )
    limits = http_limits(config)
    # Bodies to produce on their way and requests held back are within promises of ring space; what
    # was received of those that wait for one has its own limit (daemon/intake/admission.py).
    parts = {
        "segment": layout_of(config).size_bytes,
        "bodies": shards * config.ring_bytes,
        "queued": shards * (config.ring_bytes // admission.QUEUED_SHARE),
        # All other requests: their bodies, what these are decoded to, and the tasks that wait.
        "requests": shards * (REQUESTS_BYTES_MAX + PROBES_BYTES_MAX + LARGE_BYTES_MAX),
        # Requests that wait for their commit, or whose answers wait for earlier ones.
        "outstanding": shards * limits.all_outstanding_max * OUTSTANDING_BYTES,
        # Beginnings of heads, and what was received after a request that holds its connection back.
        # One more read is there before it is counted, twice while it is joined.
        "unread": shards * (limits.unread_bytes_max + 2 * READ_BYTES),
        "uploads": _uploads_bytes(config),
        "reads": shards * reads,
        "lake": shards * lake_reads,
        # What finds the newest records in the rings.
        "tails": shards
        * (
            followed.BYTES_MAX
            + tail_reader.BYTES_MAX
            + ring.CHAIN_BYTES_MAX
            + commit_feed.RECENT_BYTES_MAX
        ),
        # What each shard knows of the topics that are written to and read through it.
        "topics": shards
        * (
            topic_cache.ENTRIES_BYTES_MAX
            + topic_cache.NAMES_MAX * topic_cache.NAME_BYTES
            + caps.TRACKED_MAX * caps.TRACKED_BYTES
        ),
        # A page of a catch-up is there decoded and encoded, or is one record of the largest size.
        "watch": shards
        * (
            tail_encoder.CACHE_BYTES_MAX
            + filters.KEPT_BYTES_MAX
            + hub.CATCH_UPS_AT_ONCE * max(8 * hub.PAGE_BYTES, 3 * config.record_bytes_max)
        ),
        "scheduler": shards
        * (
            scheduler.ENTRIES_MAX * scheduler.ENTRY_BYTES
            + settings.TOPICS_MAX * settings.TOPIC_BYTES
        ),
        # As of a catch-up: pages that are being read, and one from the rings.
        "routers": shards
        * (
            routers.LANES_MAX * routers.LANE_BYTES
            + (routers.PAGES_AT_ONCE + 1)
            * max(8 * routers.PAGE_BYTES_MAX, 3 * config.record_bytes_max)
        ),
        # Besides, what a lot and a batch take that came last.
        "look_ahead": shards
        * (
            budget.LOOK_AHEAD_BYTES_MAX
            + budget.BESIDES_BYTES_MAX
            + budget.SENT_BYTES_MAX
            + members.HASHES_KEPT_BYTES
        )
        + SUBSCRIPTIONS_MAX * (budget.LITTLE_BYTES + budget.LITTLE_SENT_BYTES),
        "consumers": shards * budget.MEMBERS_BYTES_MAX,
        # Records that are kept, or one, of characters of four bytes; pages that are loaded; and
        # one of them, or one from the rings, is decoded and encoded for what is sent. One at a time
        # is compared with a filter, here or of a router.
        "blocks": shards
        * (
            max(blocks.BLOCKS_BYTES, 4 * config.record_bytes_max)
            + blocks.RING_HEADS_BYTES
            + filters.FIELDS_BYTES * config.record_bytes_max
            + (subscriptions.LOADS_AT_ONCE + 2)
            * (6 * max(blocks.LOAD_BYTES, config.record_bytes_max) + blocks.LOAD_HEADS_BYTES)
        ),
        # One batch at a time is decoded, whoever reads it: its bytes, and four for a character.
        "decoded": shards * 5 * config.body_bytes_max,
        # One foreign request at a time is translated.
        "foreign": shards
        * (foreign.BODY_COPIES * config.body_bytes_max + DECODED * config.record_bytes_max),
        # Nothing of this is taken before the first POST.
        "push": shards
        * (
            push_client.LIBRARY_BYTES
            + push_client.CONNECTIONS_MAX * push_client.POST_BYTES
            + push_sender.QUEUED_BYTES_MAX
            + attempts.SHARD_ATTEMPTS_MAX * attempts.ATTEMPT_BYTES
        ),
        "pipes": shards * _pipes_bytes(config) if shards > 1 else 0,
        # An answer exists before it is counted, and twice while its head is put before it.
        "answers": shards
        * (
            limits.connections_max * limits.write_buffer_high_bytes
            + limits.answers_unsent_bytes_max
            + 2 * BYTES_MAX
        ),
        "streams": shards * (limits.streams_max * STREAM_BYTES + limits.stream_unsent_bytes_max),
        # One part is read while the one before it is freed.
        "image": 2 * PART_BYTES,
        "processes": (shards + 1) * PROCESS_BYTES,
    }
    if config.tls_certificate is not None:
        # Each connection keeps what its handshake agreed on, and a record that has not come whole.
        parts["tls"] = shards * _tls_bytes(limits)
    if config.kafka_listen is not None:
        from daemon.kafka.server import bytes_max, tls_bytes_max  # no other daemon loads it

        parts["kafka"] = shards * bytes_max(config.body_bytes_max)
        if config.tls_certificate is not None:
            parts["tls"] += shards * tls_bytes_max()
    return parts


def above_limit(config: Config, cgroup: CgroupMemory) -> str | None:
    """What to say if the bounds are above the control group's limit; None if they are not."""
    try:
        limits = [group.limit_bytes for group in cgroup.groups(0)]
    except (OSError, ValueError):
        return None  # the sensor reports that
    bound_bytes = sum(bounds(config).values())
    if not limits or bound_bytes <= min(limits):
        return None
    return (
        f"the bounds of all buffers are {bound_bytes >> 20} MiB together, but the memory limit of"
        f" the control group leaves {min(limits) >> 20} MiB: under load the daemon refuses requests"
        " before the limit is reached (sensor memory); lower shards, ring_bytes or streams_max, or"
        " raise the limit"
    )
