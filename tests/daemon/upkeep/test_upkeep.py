"""The upkeep thread's rounds and answers, step by step, on a real ledger and segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from daemon.intake.commit_feed import followed_and_live
from daemon.upkeep.retention import Noted
from daemon.upkeep.upkeep import UpkeepThread
from delivery.push.secrets import ABANDONED_MS, PushSecrets, SecretsFile
from ledger import ages, epochs, notes, reads, topics
from ledger import commits as ledger_commits
from ledger import topics as ledger_topics
from ledger.checks import invariants
from ledger.dedupe import DedupeLimits
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.errors import ResultCleared
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.space import deletions, marking, retention, unreferenced
from ledger.types import LeasedRange, LeaseId, PartitionState, Topic, TopicConfig
from shards import layout as at
from shards.alarms import raised
from shards.layout import Layout
from shards.leases import DONE, LeaseTable
from shards.segment import Segment
from tests.ledger.lakes import commit
from tests.ledger.requests import Request, draft_of
from tests.ledger.requests import lease as lease_id
from uploader.l0 import object_key

HOUR_MS = 3_600_000
SHARDS = 2


class Place:
    """A ledger, a segment of two shards, and a clock that is set by hand."""

    def __init__(self, directory: Path, limits: DedupeLimits | None = None) -> None:
        self.ledger = Ledger(directory / "ledger.db", nullcontext(), dedupe_limits=limits)
        self.ledger.write(epochs.begin_incarnation, 1)
        self.segment = Segment.create(Layout(SHARDS, 4096))
        self.words = self.segment.words
        self.words[at.G_EPOCH] = self.ledger.read(epochs.current)
        self.wall_ms = self.boot_ms = 1_000_000
        self.secrets = SecretsFile(directory, now_ms=lambda: self.wall_ms)
        self.told = Mark()
        self.upkeep = self.another()

    def another(self) -> UpkeepThread:
        return UpkeepThread(
            self.segment, self.ledger, lambda: 1_000, self.now, self.secrets, lambda: self.told
        )

    def now(self) -> Noted:
        return Noted("boot", self.wall_ms, self.boot_ms)

    def topic(self, name: str, **settings: object) -> Topic:
        config = TopicConfig(**settings)  # type: ignore[arg-type]
        return self.ledger.write(ledger_topics.create, name, config, 1)[0]

    def write(self, topic: Topic, *counts: int, timestamp_ms: int = 0) -> None:
        for count in counts:
            number = self.ledger.read(ledger_commits.latest_number) + 1
            request = Request(topic.topic_id, ((0, count),), timestamp_ms=timestamp_ms)
            commit(self.ledger, number, request)

    def state(self, topic: Topic) -> PartitionState:
        return self.ledger.read(reads.partition_states, topic.topic_id)[0]

    def passed(self, passed_ms: int) -> None:
        self.wall_ms += passed_ms
        self.boot_ms += passed_ms

    def seen(self, *commits: int) -> None:
        """Up to where each shard has followed the log, whose end is the ledger's."""
        self.words[at.G_COMMITS] = self.ledger.read(ledger_commits.latest_number)
        for shard, number in enumerate(commits):
            self.words[self.segment.layout.shard(shard) + at.S_SEEN] = number

    def heard(self, *shards: int) -> None:
        """These shards know all changes."""
        mark = self.ledger.read(backup.mark)
        for shard in shards:
            base = self.segment.layout.shard(shard)
            self.words[base + at.S_HEARD_TOPICS] = mark.catalog_version
            self.words[base + at.S_HEARD_DELIVERY] = mark.change_number

    def close(self) -> None:
        self.ledger.read(invariants.check)
        self.ledger.close()
        self.segment.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with closing(Place(tmp_path)) as made:
        yield made


def test_a_round_evicts_what_is_over_the_limits_and_tells_the_shards(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.upkeep.upkeep.EVICTIONS_AT_ONCE", 2)
    topics = [place.topic(f"t{number}", cap_records=2) for number in range(5)]
    other = place.topic("other")
    for topic in (*topics, other):
        place.write(topic, 5)
    done = place.upkeep.round()
    assert {one.topic for one in done} == {topic.name for topic in topics}
    assert {place.state(topic).count for topic in topics} == {2}
    assert place.state(other).count == 5
    version = place.ledger.read(ledger_topics.catalog_version)
    told = [place.words[at.evicted(topic.topic_id)] for topic in topics]
    assert 0 < min(told) <= max(told) == version
    assert place.words[at.evicted(other.topic_id)] == 0
    assert place.words[at.G_RECORDS_EVICTED] == 15
    assert place.upkeep.round() == []
    place.write(topics[0], 1)
    assert [one.records for one in place.upkeep.round()] == [1]


def test_what_one_look_does_not_reach_goes_in_the_same_round(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.space.retention.STEPS_MAX", 3)
    topic = place.topic("t", ttl_ms=10)
    place.write(topic, *([1] * 20))
    place.upkeep.round()
    assert place.state(topic).count == 0


def test_settings_hold_from_the_next_round_on(place: Place) -> None:
    topic = place.topic("t")
    place.write(topic, 5)
    assert place.upkeep.round() == []
    place.ledger.write(ledger_topics.alter, "t", TopicConfig(cap_records=3))
    assert [one.earliest_seq for one in place.upkeep.round()] == [3]
    place.ledger.write(ledger_topics.alter, "t", TopicConfig())
    place.write(topic, 5)
    assert place.upkeep.round() == []
    place.ledger.write(ledger_topics.alter, "t", TopicConfig(cap_records=1))
    place.ledger.write(ledger_topics.delete, "t", 5)
    assert place.upkeep.round() == []


def test_without_limits_no_topic_is_looked_at(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.topic("t")
    place.upkeep.round()

    def looked(*_: object) -> None:
        raise AssertionError("a look costs more than it may where nothing has a limit")

    for module, name in (
        (retention, "due_evictions"),
        (retention, "evict"),
        (marking, "mark_unreferenced"),
        (topics, "by_id"),
        (notes, "get"),
    ):
        monkeypatch.setattr(module, name, looked)
    assert place.upkeep.round() == []


def test_what_is_evicted_or_deleted_is_marked_as_free(place: Place) -> None:
    topic, gone = place.topic("t", cap_records=1), place.topic("gone")
    place.write(topic, 1, 1)
    place.write(gone, 1)
    place.write(topic, 1)
    place.upkeep.round()
    place.ledger.write(ledger_topics.delete, "gone", 5)
    place.passed(2_000)
    place.upkeep.round()
    rule = place.ledger.read(deletions.policy, place.wall_ms, 0, 1 << 60)
    found = place.ledger.read(unreferenced.page, rule, (0, 0))
    assert [(one.commit_number, one.since_ms) for one in found] == [
        (1, 1_000_000), (2, 1_000_000), (3, 1_002_000),
    ]  # fmt: skip


def test_what_retention_evicts_is_marked_as_free_in_a_round_without_news_of_topics(
    place: Place,
) -> None:
    topic = place.topic("t", cap_records=1)
    place.upkeep.round()  # learns the topic; from here on nothing of it changes but its records
    place.write(topic, 1, 1, 1)
    place.passed(1_000)
    assert [one.records for one in place.upkeep.round()] == [2]
    rule = place.ledger.read(deletions.policy, place.wall_ms, 0, 1 << 60)
    found = place.ledger.read(unreferenced.page, rule, (0, 0))
    assert [(one.commit_number, one.since_ms) for one in found] == [(1, 1_001_000), (2, 1_001_000)]


def test_a_deleted_topic_frees_its_objects_where_no_topic_has_a_limit(place: Place) -> None:
    gone = place.topic("gone")
    place.write(gone, 1, 1)
    place.upkeep.round()
    place.ledger.write(ledger_topics.delete, "gone", 5)
    place.upkeep.round()
    assert place.ledger.read(unreferenced.count) == 1  # and the last commit's


def test_records_go_when_their_time_has_come(place: Place) -> None:
    topic = place.topic("t", ttl_ms=5_000)
    place.write(topic, 2, timestamp_ms=place.wall_ms)
    place.passed(5_000)
    assert place.upkeep.round() == []
    place.passed(1)
    assert [one.reason for one in place.upkeep.round()] == ["ttl"]


@pytest.mark.parametrize(("hours", "stopped"), [(2, 1), (-2, 2)])
def test_a_clock_that_jumped_evicts_nothing_by_time_until_it_is_accepted(
    place: Place, hours: int, stopped: int
) -> None:
    old = place.topic("old", ttl_ms=1_000)
    capped = place.topic("capped", cap_records=1)
    assert place.upkeep.round() == []
    place.write(old, 1, timestamp_ms=place.wall_ms - 10 * HOUR_MS)
    place.write(capped, 2)
    place.wall_ms += hours * HOUR_MS
    assert [one.topic for one in place.upkeep.round()] == ["capped"]
    words = place.words
    assert (words[at.G_CLOCK_STOPPED], words[at.G_CLOCK_JUMP_MS]) == (stopped, 2 * HOUR_MS)

    # A restart of the daemon does not accept it.
    again = place.another()
    assert again.round() == [] and words[at.G_CLOCK_STOPPED] == stopped

    place.ledger.write(notes.put, "clock", "")
    place.passed(10_000)
    assert [one.topic for one in place.upkeep.round()] == ["old"]
    assert (words[at.G_CLOCK_STOPPED], words[at.G_CLOCK_JUMP_MS]) == (0, 0)


# Settling


def lease(place: Place, shard: int, epoch: int) -> tuple[LeaseTable, int]:
    """A live lease in a slot of the shard; the table, and its state word."""
    leases = LeaseTable(place.words, place.segment.layout)
    slot = leases.free_slots(shard)[0]
    leases.fill(shard, slot, LeaseId(1, epoch, shard, slot + 1), 1, [LeasedRange(shard, 0, 8)])
    return leases, place.segment.layout.lease(shard, slot)


def settled(place: Place) -> int:
    leases = LeaseTable(place.words, place.segment.layout)
    seen = followed_and_live(place.words, place.segment.layout, leases)
    return place.ledger.read(ledger_commits.before_leases, *seen)


def test_commits_are_settled_when_every_shard_followed_them_and_their_leases_are_over(
    place: Place,
) -> None:
    topic = place.topic("t")
    place.write(topic, 1, 1, 1)
    place.seen(3, 3)
    assert settled(place) == 3
    place.seen(3, 1)
    assert settled(place) == 1


def names_kept(place: Place) -> None:
    """An object of epoch 1 was deleted, and its name waits."""
    key = object_key(LeaseId(1, 1, 0, 99))
    place.ledger.write(deletions.name, [(key, key, deletions.COLLECTED)])


def follow(place: Place) -> None:
    for shard in range(place.segment.layout.shards):
        place.segment.follow_epoch(shard)


def test_the_floor_rises_to_the_oldest_lease_while_names_wait_for_it(place: Place) -> None:
    follow(place)
    place.upkeep.raise_epoch()
    assert (place.words[at.G_EPOCH], place.ledger.read(epochs.floor)) == (2, 1)
    follow(place)
    place.upkeep.raise_epoch()
    assert place.ledger.read(epochs.floor) == 1, "no name waits for it, and no entry tells it"
    names_kept(place)
    _, state = lease(place, 1, 1)
    place.upkeep.raise_epoch()
    assert place.ledger.read(epochs.floor) == 1, "a lease of the first epoch lives"
    place.words[state] = DONE
    place.upkeep.raise_epoch()
    assert place.ledger.read(epochs.floor) == 2
    follow(place)
    place.upkeep.raise_epoch()
    assert place.ledger.read(epochs.floor) == 2, "the name is below it by now"


def test_a_shard_that_does_not_turn_holds_the_floor(place: Place) -> None:
    follow(place)
    names_kept(place)
    place.upkeep.raise_epoch()
    place.segment.follow_epoch(0)
    place.upkeep.raise_epoch()
    assert place.ledger.read(epochs.floor) == 1
    place.segment.follow_epoch(1)
    place.upkeep.raise_epoch()
    assert place.ledger.read(epochs.floor) == 2


def test_the_epoch_rises_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.upkeep.upkeep.EPOCH_MS", 3_000)
    waits = 0

    def wait(_: float) -> bool:
        nonlocal waits
        waits += 1
        if waits == 7:
            place.upkeep._stopped.set()
        return False

    monkeypatch.setattr(place.upkeep._stopped, "wait", wait)
    place.upkeep._run()
    assert place.words[at.G_EPOCH] == place.ledger.read(epochs.current) == 3


# Ages


def test_what_is_free_is_dated_by_the_clock_of_ages(place: Place) -> None:
    place.upkeep.note_ages()
    topic = place.topic("t", cap_records=1)
    place.write(topic, 1, 1, 1)
    place.wall_ms += HOUR_MS
    place.upkeep.note_ages()
    place.upkeep.round()
    age_ms = place.ledger.read(ages.now_ms, place.now())
    assert age_ms == place.boot_ms
    rule = place.ledger.read(deletions.policy, age_ms, 1, 1 << 60)
    assert not place.ledger.read(unreferenced.page, rule, (0, 0)), "its grace has only begun"
    place.passed(1)
    rule = place.ledger.read(
        deletions.policy, place.ledger.read(ages.now_ms, place.now()), 1, 1 << 60
    )
    assert len(place.ledger.read(unreferenced.page, rule, (0, 0))) == 2


def test_a_step_of_the_wall_clock_is_noted_so_that_a_boot_goes_on_from_there(place: Place) -> None:
    place.upkeep.note_ages()
    place.wall_ms += HOUR_MS
    place.upkeep.note_ages()
    after_boot = Noted("next", place.wall_ms + 5_000, 100)
    assert place.ledger.read(ages.now_ms, after_boot) == place.boot_ms + 5_000


def test_keys_that_are_too_many_for_their_window_raise_an_alarm_until_they_are_not(
    tmp_path: Path,
) -> None:
    with closing(Place(tmp_path, DedupeLimits(window_ms=1_000, entries_max=5))) as place:
        topic = place.topic("t")

        def send(first: int, count: int) -> list[str]:
            number = place.ledger.read(ledger_commits.latest_number) + 1
            requests = [Request(topic.topic_id, key=f"k{n}") for n in range(first, first + count)]
            draft = draft_of(lease_id(number), requests)
            place.ledger.commit(draft, place.boot_ms, lambda _: None)
            place.upkeep.look_at_keys()
            return [alarm.text for alarm in raised(place.segment)]

        assert send(0, 4) == []
        place.passed(300)
        assert send(4, 4) == ["the newest are known for 0 s; raise dedupe_entries_max"]
        place.passed(1_000)
        assert send(9, 1) == []


def results(place: Place) -> list[bool]:
    """Of each commit: whether its result is there."""
    found = []
    for number in range(1, place.ledger.read(ledger_commits.latest_number) + 1):
        try:
            place.ledger.read(ledger_commits.by_number, number)
            found.append(True)
        except ResultCleared:
            found.append(False)
    return found


def test_results_are_cleared_once_all_shards_followed_and_their_lease_is_over(
    place: Place,
) -> None:
    topic = place.topic("t")
    place.write(topic, 1, 1, 1, 1)
    place.seen(4, 1)
    place.upkeep.reclaim()
    assert results(place) == [False, True, True, True]
    # Its holder died between the commit and what follows it: an adopter asks for the result.
    leases = LeaseTable(place.words, place.segment.layout)
    leases.fill(0, 0, LeaseId(1, 1, 0, 3), 1, [LeasedRange(0, 0, 8)])
    place.seen(4, 4)
    place.upkeep.reclaim()
    assert results(place) == [False, False, True, True]
    place.words[place.segment.layout.lease(0, 0)] = DONE
    place.upkeep.reclaim()
    assert results(place) == [False, False, False, False]
    place.ledger.read(invariants.check)


def test_a_commit_that_is_not_in_the_log_yet_keeps_its_result(place: Place) -> None:
    topic = place.topic("t")
    place.write(topic, 1)
    place.seen(1, 1)
    place.write(topic, 1)  # killed before it was published
    place.upkeep.reclaim()
    assert results(place) == [False, True]


def test_secrets_of_push_subscriptions_go_a_day_after_them(place: Place) -> None:
    assert not place.secrets.path.exists()
    place.upkeep.tidy_secrets()
    ids = [place.secrets.save(PushSecrets(headers={"x-token": "1"})) for _ in range(3)]
    for topic, name, secrets_id in (("a", "s", ids[0]), ("b", "s", ids[1]), ("a", "t", None)):
        place.topic(topic)
        push = PushSettings("https://example.com", secrets_id=secrets_id)
        place.ledger.write(
            subscriptions.create, topic, name, SubscriptionConfig(push=push), "earliest", 1
        )
    assert place.ledger.read(subscriptions.secrets_ids) == {ids[0], ids[1]}
    place.ledger.write(topics.delete, "b", 2)
    place.upkeep.tidy_secrets()
    assert all(place.secrets.load(each) for each in ids)
    place.wall_ms += ABANDONED_MS + 1
    place.upkeep.tidy_secrets()
    assert [place.secrets.load(each) is None for each in ids] == [False, True, True]


@pytest.mark.parametrize("last", range(4))
def test_rows_of_what_was_deleted_go_once_an_entry_all_shards_and_upkeep_know_it(
    place: Place, last: int
) -> None:
    topic = place.topic("t", cap_records=5)
    config = SubscriptionConfig()
    place.ledger.write(subscriptions.create, "t", "s", config, "latest", 1)
    alone = place.topic("alone", cap_records=5)
    for name in ("t", "alone"):
        place.ledger.write(ledger_topics.delete, name, 5)

    def rows() -> list[Topic | None]:
        return [place.ledger.read(ledger_topics.row_of, one.topic_id) for one in (topic, alone)]

    def tell() -> None:
        place.told = place.ledger.read(backup.mark)

    steps: list[Callable[[], object]] = [
        lambda: place.heard(0), tell, lambda: place.heard(1), place.upkeep.round
    ]  # fmt: skip
    for step in (*steps[last + 1 :], *steps[: last + 1]):
        place.upkeep.reclaim()
        assert None not in rows()
        step()
    place.upkeep.reclaim()
    assert rows() == [None, None]
    assert place.ledger.read(backup.mark) == place.told, "the log need not tell that rows have gone"
