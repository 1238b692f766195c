"""Sends dead letters back to the subscriptions that they came from, each once.

    the topic is read up to its heads -> which origins have letters that are not dealt with
    origin by origin, partition by partition:
        a letter is taken -> its message is asked for again (``resend``), with an id of the letter
        -> the request is repeated until the answer says that the message is finished
        -> the letter is dealt with, and a cursor notes it (``progress.py``)

What a ``resend`` has asked for is in the memory of the subscription's owner only. If that dies, the
repeated request asks its successor; if this command dies, the next one goes on after what is noted,
and an owner that lives sends nothing twice, because it knows the ids.

Letters that come meanwhile, those that the messages leave when they fail again among them, are for
the next run.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from commands.client.http import Client, Unreachable
from commands.client.topics import state_of
from commands.redriving.cursors import LetterCursors
from commands.redriving.letters import LetterFilter, LetterReader, OriginName, name_of
from commands.redriving.origins import (
    OriginLeft,
    OriginLetters,
    OriginPartition,
    OriginReport,
    RedriveRules,
    check,
)
from commands.shell.exits import CommandFailed

ORIGINS_MAX = 10_000
MAX_TAKEN = "--max letters were taken"
IN_QUARANTINE = "their messages are in quarantine; see `headgate quarantine`"
OUTCOMES = ("redriven", "unfinished", "evicted", "left")


class RedriveReport(Struct):
    """A whole run. ``others``: records of the topic that name no origin."""

    topic: str
    stopped: bool = False
    redriven: int = 0
    unfinished: int = 0
    evicted: int = 0
    left: int = 0
    others: int = 0
    origins: list[OriginReport] = []


class Redrive:
    """One run. ``where``: patterns for ``topic`` and ``subscription`` of the origins."""

    def __init__(
        self, client: Client, topic: str, rules: RedriveRules, where: dict[str, str],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        state = state_of(client, topic, rules.patience_ms)
        self._client = client
        self._rules = rules
        self._has_filter = bool(where)
        self._matches = LetterFilter(where)
        self._heads = {each.partition: each.head_seq for each in state.partitions}
        self._reader = LetterReader(client, topic, state.topic_id, rules.patience_ms, say)
        self._cursors = LetterCursors(client, topic, state.topic_id, rules.patience_ms)
        self._floors = self._cursors.floors()
        self.report = RedriveReport(topic)

    def run(self) -> None:
        """Redrives what can be redriven. How it went is in ``report``."""
        report, stop = self.report, self._rules.stop
        try:
            self._cursors.forget_former()
            origins = self._find()
            for origin in origins.values():
                if origin.counts:
                    self._redrive(origin)
            if not self._has_filter and not stop.is_asked:
                self._raise_floors([*origins.values()])
        except Unreachable:
            if not stop.is_asked:
                raise
        finally:
            report.stopped = stop.is_asked
            for outcome in OUTCOMES:
                setattr(report, outcome, sum(getattr(each, outcome) for each in report.origins))

    def _find(self) -> dict[OriginName, OriginLetters]:
        """The origins of the letters from the floors on, and how many are not dealt with."""
        found: dict[OriginName, OriginLetters] = {}
        for partition, head in self._heads.items():
            for _, letter in self._reader.read(partition, self._floors.get(partition, 0), head):
                if letter is None:
                    self.report.others += 1
                    continue
                if not self._matches(letter):
                    continue
                name = name_of(letter)
                if name not in found and len(found) == ORIGINS_MAX:
                    raise CommandFailed(
                        f"the letters of {self.report.topic} have more than {ORIGINS_MAX:,}"
                        " origins",
                        hint="--where topic=... and --where subscription=... choose some",
                    )
                origin = found.setdefault(name, OriginLetters(name))
                progress = origin.progress.get(partition)
                if progress is None:
                    progress = origin.progress[partition] = self._cursors.progress(partition, name)
                if not progress.is_done(letter.seq):
                    origin.counts[partition] = origin.counts.get(partition, 0) + 1
        return found

    def _raise_floors(self, origins: list[OriginLetters]) -> None:
        """The next run begins after what all origins have dealt with."""
        left = {partition for each in origins for partition, count in each.counts.items() if count}
        raised = {
            partition: head
            for partition, head in self._heads.items()
            if partition not in left and head > self._floors.get(partition, 0)
        }
        if raised:
            self._cursors.raise_floors(raised)

    def _redrive(self, origin: OriginLetters) -> None:
        topic, _, subscription = origin.name
        report = OriginReport(topic, subscription, sum(origin.counts.values()))
        self.report.origins.append(report)
        rules = self._rules
        try:
            if not rules.quota.is_used:
                check(self._client, origin.name, rules.patience_ms)
            for partition in sorted(origin.counts):
                if not rules.stop.is_asked and not rules.quota.is_used:
                    OriginPartition(
                        self._client, rules, self._cursors, self._reader, origin, partition,
                        self._heads[partition], report,
                    ).run()  # fmt: skip
        except OriginLeft as error:
            report.reason = str(error)
        finally:
            report.left = report.letters - report.redriven - report.unfinished - report.evicted
            if report.left and not report.reason:
                report.reason = self._why_left(report)

    def _why_left(self, report: OriginReport) -> str:
        if self._rules.stop.is_asked:
            return "stopped"
        if report.quarantined_letters:
            return IN_QUARANTINE
        return MAX_TAKEN if self._rules.quota.is_used else "the run has failed"
