"""The letters of one origin in one partition of their topic: each is sent back, and waited for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Struct

from commands.client.http import Client, Refused, Unreachable, decoded
from commands.client.subscriptions import subscription_of, subscription_path
from commands.redriving.cursors import LetterCursors
from commands.redriving.letters import Letter, LetterReader, OriginName, name_of
from commands.redriving.progress import LetterProgress
from delivery.subscriptions.schemas import ResentMessage
from shards.clock import monotonic_ns

PAUSE_MIN_S = 0.05  # between two rounds of requests; doubles while nothing is finished
PAUSE_MAX_S = 2.0
NOTE_EVERY_S = 0.5  # noting is a transaction of the ledger
NAMED_MAX = 100  # letters of an origin whose messages are evicted, as many in quarantine

Outcome = Literal["redriven", "unfinished", "evicted", "quarantined"]


class LetterPlace(Struct, frozen=True):
    """A letter in its topic."""

    partition: int
    seq: int


class OriginReport(Struct):
    """What became of the letters of one origin that were not dealt with before.

    ``redriven``: finished again. ``unfinished``: their messages are not finished, so they are
    delivered anyway. ``evicted``: their messages are gone from the topic. ``left``: neither of
    these, for ``reason``. Named are the first hundred whose messages are gone, or in quarantine,
    which are left."""

    topic: str
    subscription: str
    letters: int = 0
    redriven: int = 0
    unfinished: int = 0
    evicted: int = 0
    left: int = 0
    reason: str = ""
    evicted_letters: list[LetterPlace] = []
    quarantined_letters: list[LetterPlace] = []


class Stop:
    """Ends a run early, and the calls that wait for the daemon."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether the run is to end."""
        return self.asked.is_set()

    def signaled(self, number: int, _: object) -> None:
        """SIGINT or SIGTERM; the next one ends the process."""
        signal.signal(number, signal.SIG_DFL)
        self.asked.set()

    def sleep_ms(self, client: Client, wait_ms: float) -> None:
        """Raises Unreachable if the run is to end."""
        if self.asked.wait(wait_ms / 1000):
            raise Unreachable(client.url, "stopped while it was waited for")


class OriginLeft(Exception):
    """Nothing more can be done for the letters of an origin now."""


class Quota:
    """How many letters a run may take."""

    def __init__(self, most: int | None) -> None:
        self._left = most

    @property
    def is_used(self) -> bool:
        """Whether no more may be taken."""
        return self._left == 0

    def take(self) -> None:
        """A letter is taken."""
        if self._left is not None:
            self._left -= 1

    def put_back(self) -> None:
        """It could not be sent back: another one may be."""
        if self._left is not None:
            self._left += 1


class RedriveRules(Struct, frozen=True):
    """What is the same for all origins. ``parallel``: letters that are waited for at a time;
    ``idle_s``: how long none of them may be finished."""

    parallel: int
    quota: Quota
    patience_ms: float
    idle_s: float
    stop: Stop


class OriginLetters:
    """The letters of one origin that a run has found."""

    def __init__(self, name: OriginName) -> None:
        self.name = name
        self.counts: dict[int, int] = {}  # letters that are not dealt with, by partition
        self.progress: dict[int, LetterProgress] = {}


def check(client: Client, name: OriginName, patience_ms: float) -> None:
    """Raises OriginLeft if nothing can be sent back there."""
    topic, _, subscription = name
    try:
        shown = subscription_of(client, topic, subscription, patience_ms).config
    except Refused as error:
        raise _left(error) from error
    if not shown.reliable:
        raise OriginLeft(f"{topic}/{subscription} is not reliable: it finishes nothing")
    if shown.paused:
        raise OriginLeft(f"{topic}/{subscription} is paused")


class OriginPartition:
    """Redrives the letters of an origin in one partition, up to ``head``."""

    def __init__(
        self, client: Client, rules: RedriveRules, cursors: LetterCursors, reader: LetterReader,
        origin: OriginLetters, partition: int, head: int, report: OriginReport,
    ) -> None:  # fmt: skip
        self._client = client
        self._rules = rules
        self._cursors = cursors
        self._reader = reader
        self._origin = origin
        self._partition = partition
        self._head = head
        self._report = report
        self._progress = origin.progress[partition]
        self._open: dict[int, Letter] = {}
        self._noted_s = _now_s()

    def run(self) -> None:
        """Until all letters are dealt with, or the run ends. Raises OriginLeft."""
        letters = self._letters()
        try:
            self._run(letters)
        finally:
            self._note()

    def _run(self, letters: Iterator[Letter]) -> None:
        rules, pause_s, changed_s = self._rules, PAUSE_MIN_S, _now_s()
        is_read = False
        while True:
            while not is_read and self._may_take:
                letter = next(letters, None)
                is_read = letter is None
                if letter is not None:
                    rules.quota.take()
                    self._open[letter.seq] = letter
            if self._ask_for_all():
                pause_s, changed_s = PAUSE_MIN_S, _now_s()
            elif _now_s() - changed_s > rules.idle_s:
                first = next(iter(self._open.values())).origin
                raise OriginLeft(
                    f"none of {len(self._open)} messages was finished for {rules.idle_s:g} s, the"
                    f" first one is {first.seq} of partition {first.partition}"
                )
            else:
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if rules.stop.is_asked or (not self._open and (is_read or not self._may_take)):
                return
            if _now_s() - self._noted_s > NOTE_EVERY_S:
                self._note()
            if self._open:
                rules.stop.asked.wait(pause_s)

    @property
    def _may_take(self) -> bool:
        rules = self._rules
        return (
            len(self._open) < rules.parallel
            and self._progress.has_room
            and not rules.quota.is_used
            and not rules.stop.is_asked
        )

    def _letters(self) -> Iterator[Letter]:
        """The origin's letters that are not dealt with; the others are taken on the way."""
        after, head = self._progress.position, self._head
        for _, letter in self._reader.read(self._partition, after, head):
            is_ours = letter is not None and name_of(letter) == self._origin.name
            if letter is not None and is_ours and self._progress.take(letter.seq):
                yield letter

    def _ask_for_all(self) -> bool:
        """Asks once more for all messages that are waited for; returns whether any is done."""
        is_changed = False
        for letter in list(self._open.values()):
            if self._rules.stop.is_asked:
                break
            outcome = self._ask(letter)
            if outcome is None:
                continue
            is_changed = True
            del self._open[letter.seq]
            report = self._report
            if outcome == "quarantined":
                _name(letter, report.quarantined_letters)
                self._rules.quota.put_back()
                continue
            self._progress.finish(letter.seq)
            self._origin.counts[self._partition] -= 1
            setattr(report, outcome, getattr(report, outcome) + 1)
            if outcome == "evicted":
                _name(letter, report.evicted_letters)
        return is_changed

    def _ask(self, letter: Letter) -> Outcome | None:
        """What has become of a letter; None: it is not finished yet."""
        topic, topic_id, subscription = self._origin.name
        origin = letter.origin
        body = {
            "partition": origin.partition,
            "seq": origin.seq,
            "topic_id": topic_id,
            "id": f"{self._reader.topic_id}:{letter.partition}:{letter.seq}",
        }
        path = subscription_path(topic, subscription, "resend")
        try:
            answer = self._client.call(
                "POST", path, msgspec.json.encode(body), patience_ms=self._rules.patience_ms
            )
        except Refused as error:
            match error.code:
                case "unknown_message" if "topic_id" in error.detail:
                    raise OriginLeft(
                        f"topic {topic} was deleted and created again: offsets in it are of other"
                        " records"
                    ) from error
                case "unknown_message":
                    return "evicted"
                case "quarantined":
                    return "quarantined"
                case "not_finished":
                    return None if error.detail.get("resent") else "unfinished"
                case "too_many_resent":
                    return None
            raise _left(error) from error
        return "redriven" if decoded(self._client, answer, ResentMessage).finished else None

    def _note(self) -> None:
        self._cursors.note(self._partition, self._origin.name, self._progress)
        self._noted_s = _now_s()


def _name(letter: Letter, named: list[LetterPlace]) -> None:
    if len(named) < NAMED_MAX:
        named.append(LetterPlace(letter.partition, letter.seq))


def _left(error: Refused) -> Exception:
    """What a refusal means for an origin; the refusal itself, if no other one would fare better."""
    is_gone = error.code in ("unknown_topic", "topic_deleted", "unknown_subscription")
    if is_gone or error.status in (403, 429) or error.status >= 500:
        return OriginLeft(error.message)
    return error


def _now_s() -> float:
    return monotonic_ns() / 1e9
