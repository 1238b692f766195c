"""Addresses: every word its own, hot words on lines of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards import layout as at
from shards.layout import LINE_WORDS, WORD_BYTES, Layout

HOT = {
    "G_DRAINING", "G_WINDOW_NS", "G_COMMITS", "G_TOPICS", "G_DEATHS", "S_RESERVED", "S_HEAD",
    "S_COMMITTED", "S_PULLED", "S_HEARTBEAT", "S_PID", "P_SIZE", "P_UPLOAD_TURN", "L_STATE",
}  # fmt: skip

layouts = st.builds(
    Layout,
    shards=st.integers(1, 40),
    ring_bytes=st.integers(64, 1024).map(lambda lines: 64 * lines),
    lease_slots=st.integers(1, 6),
    commit_slots=st.integers(4, 20),
    commit_log_bytes=st.sampled_from([64, 1024, 16_384]),
    commit_bytes_max=st.integers(1, 32),
    journal_bytes=st.sampled_from([4096, 8200]),
)


def names(prefix: str) -> dict[str, int]:
    return {name: value for name, value in vars(at).items() if name.startswith(prefix)}


def words(layout: Layout) -> list[tuple[str, int]]:
    """(name, index) of every word of a segment."""
    found = list(names("G_").items())
    for shard in range(layout.shards):
        found += [(name, layout.shard(shard) + word) for name, word in names("S_").items()]
        found += [(name, layout.group(shard) + word) for name, word in names("P_").items()]
        for slot in range(layout.lease_slots):
            base = layout.lease(shard, slot)
            found += [
                (name, base + word) for name, word in names("L_").items() if name != "L_RANGES"
            ]
            sources = at.RANGE_WORDS * layout.shards
            found += [("L_RANGES", base + at.L_RANGES + index) for index in range(sources)]
    for process in range(layout.shards + 1):
        for kind in range(at.ALARM_KINDS_MAX):
            row = layout.alarm(process, kind)
            found += [("A_", row + word) for word in range(at.ALARM_WORDS)]
    for board, slots in (
        ("routers", at.ROUTER_SLOTS),
        ("subscriptions", at.SUBSCRIPTION_SLOTS),
        ("kafka groups", at.KAFKA_GROUP_SLOTS),
    ):
        for slot in (0, slots - 1):
            first = layout.board(board) + slot * at.BOARD_ROW_WORDS
            found += [("B_", first + word) for word in range(at.BOARD_ROW_WORDS)]
    for subscription_slot in (0, at.SUBSCRIPTION_SLOTS - 1):
        first = layout.offer(subscription_slot)
        found += [("O_", first + word) for word in range(at.OFFER_WORDS)]
    for shard in range(layout.shards):
        for stage in range(at.LATENCY_STAGES_MAX):
            start = layout.latency(shard, stage)
            found += [("H_", start + word) for word in range(at.LATENCY_BUCKETS)]
            found.append(("H_SUM_NS", start + at.H_SUM_NS))
    found += [("RECENCY", layout.recency), ("RECENCY", layout.recency + at.RECENCY_WORDS - 1)]
    for shard in range(layout.shards):
        for row in (0, at.TOPIC_ROWS - 1):
            base = layout.topic_row(shard, row)
            found += [("TOPIC_ROW", base + word) for word in range(at.TOPIC_ROW_WORDS)]
    for slot in (0, at.TOPIC_SLOTS - 1, at.TOPIC_SLOTS, at.TOPIC_SLOTS + at.TOKEN_SLOTS - 1):
        first = layout.name_slot(slot)
        found += [("NAME_SLOT", first + word) for word in range(at.NAME_SLOT_WORDS)]
    for shard in range(layout.shards):
        first = layout.topic_counts(shard)
        counts = at.TOPIC_COUNTS * at.TOPIC_COUNT_WORDS
        found += [("TOPIC_COUNT", first + word) for word in range(counts)]
        first = layout.token_counts(shard)
        counts = at.TOKEN_COUNTS * at.TOKEN_COUNT_WORDS
        found += [("TOKEN_COUNT", first + word) for word in range(counts)]
    for number in range(layout.commit_slots):
        slot = layout.commit_slot(number)
        found += [("C_", slot + word) for word in range(at.SLOT_WORDS)]
    return found


@given(layouts)
def test_no_two_words_share_an_address_and_all_lie_before_the_bytes(layout: Layout) -> None:
    indices = [index for _, index in words(layout)]
    assert len(set(indices)) == len(indices)
    assert max(indices) < layout.words


@given(layouts)
def test_a_hot_word_begins_a_line_that_holds_words_of_one_writer_only(layout: Layout) -> None:
    found = words(layout)
    assert {name for name, _ in found} >= HOT
    for name, index in found:
        if name in HOT:
            assert index % LINE_WORDS == 0


def test_the_words_that_other_shards_watch_are_alone_on_their_lines() -> None:
    layout = Layout(3, 4096)
    by_line: dict[int, set[str]] = {}
    for name, index in words(layout):
        by_line.setdefault(index // LINE_WORDS, set()).add(name)
    alone = {"S_RESERVED", "S_HEAD", "S_COMMITTED", "S_PULLED", "P_SIZE", "L_STATE", "G_COMMITS"}
    for line_names in by_line.values():
        line_names -= {"L_DUE_NS", "L_DEATHS"}  # stored when a holder has died, with the state
        assert len(line_names) == 1 or not line_names & alone


@given(layouts)
def test_log_slots_and_rings_are_aligned_and_follow_each_other_to_the_end(layout: Layout) -> None:
    assert layout.words % LINE_WORDS == 0
    slots = [layout.commit_slot(number) for number in range(layout.commit_slots)]
    assert slots == list(range(slots[0], layout.words, at.SLOT_WORDS))
    assert layout.commit_slot(layout.commit_slots) == slots[0]
    rings = [layout.ring(shard) for shard in range(layout.shards)]
    assert layout.commit_log == layout.words * WORD_BYTES
    assert rings[0] == layout.commit_log + layout.commit_log_bytes
    assert rings == [rings[0] + shard * layout.ring_bytes for shard in range(layout.shards)]
    assert all(ring % 64 == 0 for ring in rings)
    journals = [layout.journal(shard) for shard in range(layout.shards)]
    end = rings[-1] + layout.ring_bytes
    assert journals == [end + shard * layout.journal_bytes for shard in range(layout.shards)]
    assert 0 <= layout.sparse - (journals[-1] + layout.journal_bytes) < at.PAGE_BYTES
    assert layout.sparse % at.PAGE_BYTES == 0
    assert layout.size_bytes == layout.sparse + layout.sparse_words * WORD_BYTES


@given(layouts)
def test_words_of_senders_and_limits_share_no_address_and_fill_the_end(layout: Layout) -> None:
    slots, shards = (0, 1, at.SUBSCRIPTION_SLOTS - 1), range(layout.shards)
    taken = [
        index
        for slot in slots
        for shard in shards
        for start, words in (
            (layout.share(slot, shard), at.SHARE_WORDS),
            (layout.figures(slot, shard), at.FIGURES_WORDS),
        )
        for index in range(start, start + words)
    ]
    assert len(set(taken)) == len(taken)
    assert all(layout.share(slot, shard) % LINE_WORDS == 0 for slot in slots for shard in shards)
    assert max(taken) == layout.push_rules - 1
    rules = (layout.endpoint_holds - layout.push_rules) * WORD_BYTES
    assert rules == 2 * at.PUSH_RULES_BYTES and layout.endpoint_holds % LINE_WORDS == 0
    assert layout.limit(0, 0) - layout.endpoint_holds == at.HOLD_LINES * LINE_WORDS
    assert layout.limit(at.LIMIT_SLOTS, 0) == layout.sparse_words
    assert layout.limit(1, 0) - layout.limit(0, layout.shards - 1) == at.LIMIT_WORDS
    assert at.X_COUNTS + at.COUNTS_MAX == at.LIMIT_WORDS
    assert at.F_LATENCIES + at.PUSH_LATENCIES == at.FIGURES_WORDS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shards": 0, "ring_bytes": 4096}, "shards is 0; it must be between 1 and 512"),
        ({"shards": 513, "ring_bytes": 4096}, "shards is 513"),
        ({"shards": 1, "ring_bytes": 4088}, "ring_bytes is 4088"),
        ({"shards": 1, "ring_bytes": 4097}, "multiple of 8"),
        ({"shards": 1, "ring_bytes": 4096, "lease_slots": 0}, "at least 1 lease slot"),
        ({"shards": 1, "ring_bytes": 4096, "commit_log_bytes": 65}, "multiple of a 64-byte line"),
        ({"shards": 1, "ring_bytes": 4096, "commit_log_bytes": 64}, "half of commit_log_bytes"),
        ({"shards": 1, "ring_bytes": 4096, "journal_bytes": 4095}, "journal_bytes is 4095"),
        ({"shards": 1, "ring_bytes": 4096, "journal_bytes": 4100}, "multiple of 8 and at least"),
    ],
)
def test_an_impossible_layout_is_refused_with_its_value(
    arguments: dict[str, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Layout(**arguments)
