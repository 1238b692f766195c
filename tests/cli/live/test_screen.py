"""The screen of top: everything on 80x24, whatever the number of shards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.live.screen import Size, View, bar, dollars_text, plain, screen, strip
from commands.live.spans import rate_text
from daemon.schemas.overview import StatusSample, between
from tests.cli.live.documents import RECORDED, seen, with_shards
from tests.long import examples

SSH = Size(80, 24)
KEYS = "q quit  space pause  every 1.0 s"


def view(document: dict[str, Any], *notes: str) -> View:
    status = seen(document)
    return View(status, between(None, StatusSample(0.0, status)), list(notes), KEYS)


def shown(document: dict[str, Any], size: Size = SSH, *notes: str) -> list[str]:
    return plain(screen(view(document, *notes), size)).split("\n")


TWO_SHARDS = """\
headgate 0.4.0  ready  up 1 h 6 min, rates since the start  s3://lake/headgate

acked     2k requests/s  20k records/s  4.0 MiB/s  0.01 rejected/s
latency   acknowledged p50 176 ms, p99 352 ms   streamed p50 0.5 ms, p99 2 ms
p99 ms    published 0.3  pulled 210  put 140  committed 2  answered 0.12
store     2.5 PUT/s  optimum 2.5  fill 75%  window 640 ms  $43.22/month
watchers  10 streams  17.5 writes/s  40 connections
pressure  0.62 [###########-------]  hard 0.33  rungs: widen, coalesce
inputs    ready 0.12  scheduling 0.40  busy 0.62  uploads 0.25  store 0.00
          ledger 0.01  hard: ring 0.33  memory 0.20  disk 0.00

shards 0-1  2 groups of 1, backlog 6.0 MiB
├─ shard 0  group 0 [0*]  backlog 3.0 MiB, put 20 ms ago
└─ shard 1  group 1 [1*]  backlog 3.0 MiB, put 20 ms ago

shard  cpu  busy  ring            requests/s  records/s   bytes/s conns streams
    0    0   15%  [##----]  25%         1k        10k   2.0 MiB    20       5
    1    1   30%  [##----]  25%         1k        10k   2.0 MiB    20       5





q quit  space pause  every 1.0 s"""

MANY_SHARDS = """\
shards 0-63         4 groups of 16, backlog 12.0 MiB
├─ shards 0-31      2 groups of 16, backlog 6.0 MiB
│  ├─ shards 0-15   group 0 [0..15, 0*]  backlog 3.0 MiB, put 20 ms ago
│  └─ shards 16-31  group 16 [16..31, 16*]  backlog 3.0 MiB, put 20 ms ago
└─ shards 32-63     2 groups of 16, backlog 6.0 MiB
   ├─ shards 32-47  group 32 [32..47, 32*]  backlog 3.0 MiB, put 20 ms ago
   └─ shards 48-63  group 48 [48..63, 48*]  backlog 3.0 MiB, put 20 ms ago
busy  ▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇███████ most 98%
ring  ▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇███████ most 98%
shard  cpu  busy  ring            requests/s  records/s   bytes/s conns streams
   63   63   98%  [######]  98%         1k        10k   2.0 MiB    20       5
   62   62   97%  [######]  97%         1k        10k   2.0 MiB    20       5
   61   61   95%  [######]  95%         1k        10k   2.0 MiB    20       5
q quit  space pause  every 1.0 s"""


def test_two_shards_fit_into_80x24_with_every_detail() -> None:
    assert "\n".join(shown(RECORDED)) == TWO_SHARDS


def test_64_shards_are_a_tree_that_stops_two_strips_and_the_busiest() -> None:
    lines = shown(with_shards(64, 16))
    assert len(lines) == 24 and lines[:6] == TWO_SHARDS.split("\n")[:6]
    assert "\n".join(lines[10:]) == MANY_SHARDS


def test_stages_that_take_seconds_fit_too() -> None:
    slow = {name: stage | {"p99_ms": 536_870.912} for name, stage in RECORDED["latency"].items()}
    line = shown(RECORDED | {"latency": slow})[4]
    assert line.startswith("p99 ms    published 537k  pulled 537k  put 537k")
    assert line.endswith("answered 537k")


SUBSCRIPTIONS = """\
watchers  10 streams  17.5 writes/s  40 connections
consumers 12 in 7 subscriptions  lag 1.23M  1 held  40 blocked keys  99 acked/s
          orders billing           lag 1.2M  4 consumers  oldest 12.0 s  held: t
          orders a-name-that-is-l… lag 30k  1,000 consumers  40 blocked
          orders at-night          lag 4  0 consumers  paused
pressure  0.62 [###########-------]  hard 0.33  rungs: widen, coalesce"""


def test_subscriptions_show_lag_blocked_keys_and_what_stands() -> None:
    long = "a-name-that-is-longer-than-its-column"
    shown_first = [
        {"topic": "orders", "subscription": "billing", "state": "held", "lag": 1_200_000,
         "reason": "the store does not answer", "consumers": 4,
         "oldest_unacknowledged_ms": 12_000},
        {"topic": "orders", "subscription": long, "state": "running", "lag": 30_000,
         "blocked_keys": 40, "consumers": 1_000},
        {"topic": "orders", "subscription": "at-night", "state": "paused", "lag": 4},
        {"topic": "orders", "subscription": "fourth", "state": "running", "lag": 3},
    ]  # fmt: skip
    together = {
        "count": 7, "held": 1, "lag": 1_230_004, "blocked_keys": 40, "consumers": 12,
        "delivered": 400_000, "acknowledged": 396_000, "first": shown_first,
    }  # fmt: skip
    lines = shown(RECORDED | {"subscriptions": together})
    assert "\n".join(lines[6:12]) == SUBSCRIPTIONS
    wide = shown(RECORDED | {"subscriptions": together}, Size(120, 24))
    assert wide[8].endswith("held: the store does not answer")
    assert wide[7].endswith("40 blocked keys  99 acked/s  100 sent/s")
    idle = shown(RECORDED | {"subscriptions": {"count": 1, "first": [{"topic": "t"}]}})
    assert idle[7] == "consumers 0 in 1 subscriptions  lag 0  0 acked/s  0 sent/s"
    assert idle[8].startswith("pressure"), "one without a lag needs no look"


PUSHED = """\
watchers  10 streams  17.5 writes/s  40 connections
push      3 to receivers  100 POST/s of 1.1k  1 slow  0.25 failed/s  p99 16 ms
          orders billing           0.02 of 100 POST/s  slow
          orders audit             80 of 1k POST/s  held for 12.0 s
pressure  0.62 [###########-------]  hard 0.33  rungs: widen, coalesce"""


def test_push_shows_rates_and_the_receivers_that_fail() -> None:
    shown_first = [
        {"topic": "orders", "subscription": "billing", "mode": "slow", "rate": 1 / 60,
         "rate_max": 100.0},
        {"topic": "orders", "subscription": "audit", "mode": "normal", "rate": 80.0,
         "rate_max": 1_000.0, "held_ms": 12_000},
        {"topic": "orders", "subscription": "fine", "mode": "normal"},
    ]  # fmt: skip
    push = {
        "count": 3, "slow": 1, "rate_max": 1_100.0, "attempts": 400_000, "failures": 1_000,
        "records": 399_000, "p99_ms": 16.0, "first": shown_first,
    }  # fmt: skip
    lines = shown(RECORDED | {"push": push})
    assert "\n".join(lines[6:11]) == PUSHED
    wide = shown(RECORDED | {"push": push}, Size(120, 24))
    assert wide[7].endswith("p99 16 ms  99.8 records/s")


def test_a_tall_terminal_shows_all_shards_and_the_whole_tree() -> None:
    lines = shown(with_shards(64, 1), Size(120, 300))
    assert len(lines) == 300 and lines[-1] == KEYS
    assert sum(" group " in line for line in lines) == 64
    assert sum(line.split()[:1] == [str(n)] for n, line in enumerate(lines[140:204])) == 64


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(1, 100), st.integers(0, 5), st.integers(1, 200), st.integers(1, 70),
    st.lists(st.text(max_size=200).map(lambda text: text.replace("\n", " ")), max_size=3),
)  # fmt: skip
def test_no_line_is_longer_than_the_terminal_and_there_are_exactly_its_lines(
    count: int, size: int, width: int, height: int, notes: list[str]
) -> None:
    lines = screen(view(with_shards(count, 1 << size), *notes), Size(width, height))
    assert len(lines) == height
    assert all(sum(len(span.text) for span in line) <= width for line in lines)


def test_what_a_daemon_of_another_version_does_not_say_is_shown_as_nothing() -> None:
    old = {"version": "0.0.1", "uptime_s": 9, "ready": True}
    lines = shown(old)
    assert len(lines) == 24 and "$" not in "".join(lines)
    assert lines[3:5] == ["latency   -", "store     0 PUT/s  optimum 0  fill -  window 0 ms"]
    part = {key: RECORDED[key] for key in (*old, "shards", "groups", "totals", "store")}
    part["shards"] = [{"shard": 0}, {"shard": 1, "pid": 3}]
    lines = shown(part | {"pressure": {"level": 0.5}, "a_field_of_the_future": [1]})
    assert lines[4] == "store     2.5 PUT/s  optimum 2.5  fill -  window 0 ms"
    assert lines[6] == "pressure  0.50 [#########---------]  hard 0.00  rungs: none"


def test_a_budget_is_shown_next_to_what_is_spent_and_is_red_if_it_does_not_hold() -> None:
    budget = {"usd_per_month": 50.0, "window_ms": 1_250.0, "target_bytes": 1, "holds": False}
    document = RECORDED | {"bill": RECORDED["bill"] | {"budget": budget}}
    line = screen(view(document), SSH)[5]
    assert plain([line]).endswith("window 640 ms  $43.22 of $50.00/mo")
    assert line[-1].style == "bold red"


def test_a_daemon_that_is_not_ready_says_so_with_the_first_reason_and_how_many_more() -> None:
    lines = shown(RECORDED | {"ready": False}, SSH, "x" * 100, "second", "third")
    assert "NOT READY" in lines[0]
    assert lines[1].endswith("x (and 2 more: headgate status)") and len(lines[1]) == 79


def test_what_a_status_says_does_nothing_to_the_terminal() -> None:
    lines = shown(with_shards(1, 1), SSH, "a\x9b2Jb\u202ec")
    assert any("a\ufffd2Jb\ufffdc" in line for line in lines)


def test_a_shard_that_is_down_comes_before_the_busiest() -> None:
    document = with_shards(64, 16)
    document["shards"][5] = document["shards"][5] | {"pid": None, "restarts": 2}
    document["shards"][9] = document["shards"][9] | {"ready": False}
    lines = shown(document)
    at = next(n for n, line in enumerate(lines) if line.startswith("shard  cpu"))
    assert lines[at + 1] == "    5    5  has no process, restart 2"
    assert any(
        line.endswith(" 9    9  starts, restart 0") for line in shown(document, Size(80, 200))
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (-1, "0"), (0.251, "0.25"), (1, "1"), (9.994, "9.99"), (9.996, "10"),
        (99.96, "100"), (100, "100"), (999.4, "999"), (999.6, "1k"), (12_345, "12.3k"),
        (123_456, "123k"), (1_234_567, "1.23M"), (2e9, "2G"), (0.001, "0"),
    ],
)  # fmt: skip
def test_a_rate_has_three_digits(value: float, text: str) -> None:
    assert rate_text(value) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(0, "$0"), (0.0012, "$0.0012"), (43.215, "$43.22"), (12e4, "$120,000")]
)
def test_dollars_have_cents_only_where_they_matter(usd: float, text: str) -> None:
    assert dollars_text(usd) == text


def test_bars_and_strips_show_shares_and_stay_in_their_bounds() -> None:
    assert [bar(share, 6) for share in (-1, 0, 0.5, 1, 2)] == [
        "[----]", "[----]", "[##--]", "[####]", "[####]"
    ]  # fmt: skip
    assert strip([0, 0.01, 0.5, 1, 1.5], 9) == " ▁▄██"
    assert strip([0.0] * 63 + [1.0] + [0.0] * 64, 64) == " " * 31 + "█" + " " * 32
