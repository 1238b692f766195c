"""A standby: what it has seen of an owner's log, and when it may take the prefix over.

Pure: decisions from what was seen and the time of the standby's own clock, which also runs while
the machine is suspended (``shards.clock.boottime_ns``). No clock of another machine counts.

Vocabulary (protocol 5). A *look* asks the store for the entry after the last one that was found. A
*sign of life* of the owner is a new entry, or an *answer*: the owner has removed the standby's
*question*. *Silence* is the time since the last sign of life in which the standby itself could see
the store: it grows from one look that found nothing to the next one. If two such looks are more
than LOOK_GAP_NS apart, since the standby was stopped, cut off, or the store failed or was slow,
the silence begins again, and the standby first *surveys* the log: a LIST tells whether it still
stands at the end.

    surveying --at the end--> looking --silence of QUESTION_NS--> asking --answer--> looking
        ^                        |                                   |
        +--a gap, or not taken---+      silence of TAKE_OVER_NS, and no answer: taking

Two things are decided here, and they are independent.

- *Safety*: the take-over seals the log, so no entry follows the last one that was found. The owner
  sent that one before it was found, so TAKE_OVER_NS later its ownership is over, whatever its
  clocks did (``ownership.py``). Silence is never longer than the time since.
- *Life*: an owner that lives is left alone. An idle one writes no entries, so it is asked.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ledger.log.entry import Owner
from uploader.ownership.ownership import ANSWER_NS, NEVER, SECOND_NS, TAKE_OVER_NS

LOOK_NS = 2 * SECOND_NS  # 1,296,000 GETs a month, $0.52
# While the owner hands over, for at most so long.
EAGER_LOOK_NS = SECOND_NS // 20
EAGER_NS = 60 * SECOND_NS
LOOK_GAP_NS = 5 * SECOND_NS
# A busy owner writes an entry per 5 s and is not asked, but to be told of its standby.
QUESTION_NS = 7 * SECOND_NS
HELLO_NS = 60 * SECOND_NS  # 43,200 PUTs a month, $0.22
# An owner that knows of its standby looks for its question every 3 s: time for a slow GET and a
# slow DELETE, and for one failure of each. One that has never answered looks every 10 s.
KNOWN_ANSWER_NS = 12 * SECOND_NS
KNOWN_NS = 150 * SECOND_NS  # since its last answer: owners forget later (KNOWN_STANDBY_NS)
# Another start has sealed the log. It may have to rebuild a large ledger before its first entry.
# It counts from the first seal: a start that fails and seals again must not hold all others up.
SEALED_NS = 120 * SECOND_NS
RETRY_NS = SECOND_NS


class LogEnd(Enum):
    """What the last entry that was found is."""

    EMPTY = "empty"  # nobody has ever owned the prefix
    OWNED = "owned"
    SEALED = "sealed"  # another start takes over
    SEALED_HERE = "sealed here"  # by an earlier start on our directory, which is over
    RELEASED = "released"


_SEALS = (LogEnd.SEALED, LogEnd.SEALED_HERE)


class StandbyAction(Enum):
    """What the standby does next."""

    SURVEY = "survey"  # LIST the log and follow it to its end: ``surveyed`` or ``failed``
    LOOK = "look"  # for the next entry: ``found``, ``empty`` or ``failed``
    ASK = "ask"  # put a question: ``asked`` or ``failed``
    READ_QUESTION = "read question"  # ``stands``, ``answered`` or ``failed``
    TAKE = "take"  # seal the log; if it goes on, ``not_taken``; or ``failed``
    WAIT = "wait"


class StandbyStep(Struct, frozen=True):
    """A decision: with WAIT, decide again at ``at_ns``."""

    do: StandbyAction
    at_ns: int = NEVER


class StandbyView(Struct, frozen=True):
    """What a standby knows. ``caught_up_ns``: when a look last found nothing new. ``trouble``: why
    it could not take over now."""

    owner: Owner | None = None
    commits: int = 0
    entries: int = 0  # that it has applied since its start
    caught_up_ns: int = 0
    silent_ns: int = 0
    answered_ns: int = 0
    trouble: str = "it has not read the owner's log yet"


class Standby:
    """What one standby knows of its owner."""

    def __init__(self) -> None:
        self.end = LogEnd.EMPTY
        self.silent_ns = 0
        self.unanswered_ns: int | None = None  # of the silence, how long a question has stood
        self._asked_ns = 0
        self._is_surveyed = False
        self._seen_ns = 0  # when the store was last seen: the silence is counted up to here
        self._found_ns = 0  # when the last entry was found, but for seals after a seal
        self._next_look_ns = 0
        self._read_due = False  # whether the question stands; once per look
        self._retry_ns = 0  # a call has failed: nothing is written until then
        self._hello_ns = 0  # when the owner is to be told of us
        self.answered_ns = 0  # 0: this owner has not
        self.blind_ns = 0  # how far the last two looks were apart, if too far; else 0
        self._eager_until_ns = 0

    def decide(self, now_ns: int) -> StandbyStep:
        """What to do now."""
        # What a look has shown is acted on before the next one: that is always due already when a
        # look takes as long as the pause between two.
        if self._is_surveyed and now_ns - self._seen_ns <= LOOK_GAP_NS:
            if self._read_due and self.unanswered_ns is not None:
                return StandbyStep(StandbyAction.READ_QUESTION)
            if self._may_take() and now_ns >= self._retry_ns:
                return StandbyStep(StandbyAction.TAKE)
            if self._should_ask(now_ns):
                return StandbyStep(StandbyAction.ASK)
        if now_ns >= self._next_look_ns:
            return StandbyStep(StandbyAction.LOOK if self._is_surveyed else StandbyAction.SURVEY)
        return StandbyStep(StandbyAction.WAIT, self._next_look_ns)

    def surveyed(self, end: LogEnd, now_ns: int, *, is_new: bool) -> None:
        """The log was followed to its end. ``is_new``: there were entries to follow."""
        self._is_surveyed, self.end = True, end
        self._seen_ns = now_ns
        self._next_look_ns = now_ns + self._look_ns(now_ns)
        if is_new:
            self._found_ns = now_ns
            self._another_owner()  # perhaps
            self._sign(now_ns)

    def found(self, end: LogEnd, now_ns: int, *, is_first: bool, hands_over: bool) -> None:
        """A look has found the next entry. ``is_first``: of an incarnation, so of a new owner."""
        is_sealed_again = self.end in _SEALS and end in _SEALS
        self.end = end
        self._next_look_ns = now_ns  # there may be more
        if is_sealed_again:  # no owner has written since
            return
        self._found_ns = now_ns
        if is_first:
            self._another_owner()
        if hands_over:
            self._eager_until_ns = now_ns + EAGER_NS
            self._hello_ns = self._retry_ns = 0
        self._sign(now_ns)

    def empty(self, began_ns: int, now_ns: int) -> None:
        """A look that began then has found no entry: at that moment there was none."""
        self._next_look_ns = began_ns + self._look_ns(now_ns)
        gap_ns = max(began_ns - self._seen_ns, now_ns - began_ns)
        self.blind_ns = gap_ns if gap_ns > LOOK_GAP_NS else 0
        if self.blind_ns:
            self._blinded(now_ns)
            return
        passed_ns = began_ns - self._seen_ns
        self._seen_ns = began_ns
        self.silent_ns += passed_ns
        if self.unanswered_ns is not None:
            self.unanswered_ns += max(0, min(passed_ns, began_ns - self._asked_ns))
        self._read_due = True
        if self.end is LogEnd.OWNED and self.silent_ns < TAKE_OVER_NS:  # not a moment too late
            left_ns = TAKE_OVER_NS - self.silent_ns
            self._next_look_ns = min(self._next_look_ns, began_ns + left_ns)

    def failed(self, now_ns: int) -> None:
        """A call of the store has failed: what it would have told is not known."""
        self._next_look_ns = self._retry_ns = now_ns + RETRY_NS
        self._read_due = False
        if now_ns - self._seen_ns > LOOK_GAP_NS:
            self._blinded(now_ns)

    def asked(self, now_ns: int, *, is_ours: bool) -> None:
        """A question stands in the store: ours, or one that another process has put before."""
        self.unanswered_ns, self._asked_ns = 0, now_ns
        self._read_due = False
        if is_ours:
            self._hello_ns = now_ns + HELLO_NS

    def stands(self) -> None:
        """The question was not answered yet."""
        self._read_due = False

    def answered(self, now_ns: int) -> None:
        """The question is gone: the owner has seen it."""
        self.answered_ns = now_ns
        self.unanswered_ns = None
        self._sign(now_ns)

    def not_taken(self, now_ns: int) -> None:
        """The log does not end where we stand, or its next number was taken."""
        self._next_look_ns = now_ns
        self._blinded(now_ns)

    def is_eager(self, now_ns: int) -> bool:
        """Whether the owner has said that it hands over."""
        return now_ns < self._eager_until_ns

    def _look_ns(self, now_ns: int) -> int:
        return EAGER_LOOK_NS if self.is_eager(now_ns) else LOOK_NS

    def _may_take(self) -> bool:
        if self.end in (LogEnd.EMPTY, LogEnd.RELEASED):
            return True
        if self.end is LogEnd.SEALED:
            return self.silent_ns >= SEALED_NS
        if self.end is LogEnd.SEALED_HERE:  # the owner before it may still own what it had
            return self.silent_ns >= TAKE_OVER_NS
        if self.unanswered_ns is None or self.silent_ns < TAKE_OVER_NS:
            return False
        return self.unanswered_ns >= (KNOWN_ANSWER_NS if self._is_known() else ANSWER_NS)

    def _is_known(self) -> bool:
        """Whether the owner knew of a standby when the silence began, and so looks more often."""
        began_ns = self._seen_ns - self.silent_ns
        return bool(self.answered_ns) and began_ns - self.answered_ns < KNOWN_NS

    def _should_ask(self, now_ns: int) -> bool:
        if self.end is not LogEnd.OWNED or self.unanswered_ns is not None:
            return False
        is_due = self.silent_ns >= QUESTION_NS or now_ns >= self._hello_ns
        return is_due and now_ns >= self._retry_ns

    def _another_owner(self) -> None:
        """The present owner was not asked yet."""
        self.answered_ns = self._hello_ns = 0
        self.unanswered_ns = None

    def _sign(self, now_ns: int) -> None:
        """A sign of life was seen: the silence begins again."""
        self._seen_ns = now_ns
        self._silence_begins()

    def _blinded(self, now_ns: int) -> None:
        """Nothing is known of the time since the store was last seen."""
        self._seen_ns = now_ns
        self._is_surveyed = False
        self._silence_begins()

    def _silence_begins(self) -> None:
        self.silent_ns = 0
        self._read_due = False
        if self.unanswered_ns is not None:
            self.unanswered_ns = 0

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert self.silent_ns >= 0
        # What safety needs: the last entry was found before the silence began.
        assert self.silent_ns <= self._seen_ns - self._found_ns
        assert self.unanswered_ns is None or 0 <= self.unanswered_ns <= self.silent_ns
