"""A subscription as one would explain it: sets, lists and searches, without any index.

``ObviousSubscription`` says what may happen, ``test_windows.py`` asks it about all that a window
does. Where the window may choose, it says what it may choose from; where a window is lazy (what was
evicted, what nobody accepts), it says what may be finished by now.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.members import NODES, hash_of

Place = tuple[int, int]


@lru_cache(maxsize=100)
def nodes_of(name: str) -> tuple[int, ...]:
    """The nodes of a consumer on the ring."""
    return tuple(hash_of(f"{name}-{n}".encode()) for n in range(NODES))


@lru_cache(maxsize=1_000)
def owner_among(names: tuple[str, ...], key: str) -> str:
    """The consumer whose node comes first after a key."""
    place = hash_of(key.encode())
    return min(((node - place) % (1 << 32), name) for name in names for node in nodes_of(name))[1]


class ObviousSubscription:
    """Messages by place, and everything about them."""

    def __init__(self, mode: str, policy: WindowPolicy) -> None:
        self.mode = mode
        self.policy = policy
        self.members: dict[str, list[str]] = {}
        self.keys: dict[Place, str | None] = {}
        self.finished: set[Place] = set()
        self.decided: list[Place] = []  # of these, what was finished by a decision
        self.gone_before = {0: 0, 1: 0}
        self.taking: int | None = None  # the batch that is being looked at
        self.forget_deliveries()

    def forget_deliveries(self) -> None:
        """What no crash survives."""
        self.members.clear()
        self.out: dict[Place, int] = {}
        self.batches: dict[int, tuple[str, int | None]] = {}
        self.heard: dict[str, int] = {}
        self.attempts: dict[Place, int] = {}
        self.rests: dict[Place, int] = {}
        self.uncounted: set[Place] = set()  # of what rests, or did
        self.uncounted_failures: dict[Place, int] = {}
        self.stuck: set[Place] = set()

    # Who may get what

    def key_of(self, place: Place) -> str | None:
        """The key that orders a message; None if nothing does."""
        return self.keys[place] if self.mode == "key_shared" else None

    def owner(self, key: str) -> str | None:
        """Who owns a key."""
        names = tuple(
            sorted(
                name for name, patterns in self.members.items()
                if not patterns or any(fnmatchcase(key, each) for each in patterns)
            )
        )  # fmt: skip
        return owner_among(names, key) if names else None

    def unfinished(self) -> list[Place]:
        """Messages that are not finished, in the order of their offsets."""
        return sorted(self.keys.keys() - self.finished)

    def blocked(self, place: Place) -> bool:
        """Whether a message rests or is stuck."""
        return place in self.rests or place in self.stuck

    def is_evicted(self, place: Place) -> bool:
        """Whether retention removed a message."""
        return place[1] < self.gone_before[place[0]]

    def key_waits(self, key: str) -> bool:
        """Whether all messages of a key wait for one that is out or blocked."""
        return any(
            self.keys[place] == key and (place in self.out or self.blocked(place))
            for place in self.unfinished()
        )

    def may_be_sent(self, name: str, place: Place) -> bool:
        """Whether a member may get a message now."""
        if place in self.finished or place in self.out or self.blocked(place):
            return False
        if self.is_evicted(place):
            return False
        before = [each for each in self.unfinished() if each[0] == place[0] and each < place]
        if self.mode == "exclusive":
            return name == next(iter(self.members)) and all(each in self.out for each in before)
        key = self.key_of(place)
        if key is None:
            return not self.members[name]
        return (
            self.owner(key) == name
            and not self.key_waits(key)
            and not any(self.keys[each] == key and not self.is_evicted(each) for each in before)
        )

    def left(self, name: str) -> int:
        """How many more messages a member may have."""
        mine = sum(self.batches[epoch][0] == name for epoch in self.out.values())
        held = len(self.out) + len(self.uncounted & self.rests.keys())
        return min(self.policy.member_max - mine, self.policy.in_flight_max - held)

    def may_finish_by_itself(self, place: Place) -> bool:
        """Whether nobody has to decide that a message is finished."""
        if place in self.out:
            return False
        if self.is_evicted(place):
            return True
        key = self.key_of(place)
        return (
            self.policy.unmatched == "skip"
            and bool(self.members)
            and key is not None
            and self.owner(key) is None
            and not self.key_waits(key)
        )

    def drainable(self) -> int:
        """How many messages consumers could work on simultaneously."""
        left = self.unfinished()
        if self.mode == "exclusive":
            first_blocked = {
                each[0]: min(place for place in left if place[0] == each[0] and self.blocked(place))
                for each in left if self.blocked(each)
            }  # fmt: skip
            return int(any(place < first_blocked.get(place[0], (9, 9)) for place in left))
        keys = {self.key_of(place) for place in left} - {None}
        some = not self.members or any(not patterns for patterns in self.members.values())
        keyed = sum(self.could_be_worked_on(key) for key in keys if key is not None)
        return keyed + sum(
            self.key_of(place) is None and not self.blocked(place) and (some or place in self.out)
            for place in left
        )

    def could_be_worked_on(self, key: str) -> bool:
        """Whether a consumer has a message of a key, or might have one."""
        mine = [place for place in self.unfinished() if self.keys[place] == key]
        if any(self.blocked(place) for place in mine):
            return False
        is_out = any(place in self.out for place in mine)
        return is_out or not self.members or self.owner(key) is not None

    # What happens

    def send(self, name: str, epoch: int, places: list[Place]) -> None:
        """A member takes messages."""
        self.batches[epoch] = (name, None)
        self.uncounted.difference_update(places)
        for place in places:
            self.out[place] = epoch

    def in_batch(self, epoch: int) -> list[Place]:
        """What of a batch is with its member."""
        return [place for place, at in self.out.items() if at == epoch]

    def come_back(self, places: list[Place]) -> None:
        """Messages are to be sent again, or not, if retention removed them."""
        for place in places:
            del self.out[place]
            if self.is_evicted(place):
                self.finish(place, decided=False)

    def finish(self, place: Place, *, decided: bool = True) -> None:
        """A message is finished."""
        self.finished.add(place)
        for found in (self.out, self.rests, self.attempts, self.uncounted_failures):
            found.pop(place, None)
        self.stuck.discard(place)
        if decided:
            self.decided.append(place)

    def fail(
        self, place: Place, now_ns: int, asked_ns: int = 0, *, is_counted: bool = True
    ) -> None:
        """A delivery failed; if it is not counted, the message rests as if it was."""
        if place not in self.out:
            return
        if self.mode == "exclusive":
            self.come_back([each for each in self.out if each[0] == place[0] and each > place])
        if self.is_evicted(place):
            self.finish(place, decided=False)
            return
        del self.out[place]
        found = self.attempts if is_counted else self.uncounted_failures
        found[place] = found.get(place, 0) + 1
        failures = self.attempts.get(place, 0) + self.uncounted_failures.get(place, 0)
        if not is_counted:
            self.uncounted.add(place)
        if not is_counted or self.attempts[place] <= self.policy.redeliveries_max:
            self.rests[place] = now_ns + self.policy.rest_ns(failures, asked_ns)
        elif self.policy.poison == "drop":
            self.finish(place)
        else:
            self.stuck.add(place)

    def leave(self, name: str) -> None:
        """A member is gone, and has nothing any more."""
        del self.members[name]
        self.heard.pop(name, None)
        self.come_back([place for place, at in self.out.items() if self.batches[at][0] == name])

    def tick(self, now_ns: int) -> list[str]:
        """Time passes; returns the members that were taken for gone."""
        gone = []
        sent = [(sent_ns, epoch) for epoch, (_, sent_ns) in self.batches.items() if sent_ns]
        for sent_ns, epoch in sorted(sent):
            places, name = sorted(self.in_batch(epoch)), self.batches[epoch][0]
            if not places or sent_ns + self.policy.ack_timeout_ns > now_ns:
                continue
            if self.heard.get(name, 0) < sent_ns:
                gone.append(name)
                self.leave(name)
            else:
                for place in places:
                    self.fail(place, now_ns)
        self.rests = {place: due for place, due in self.rests.items() if due > now_ns}
        return gone

    def evict(self, partition: int, before: int) -> None:
        """Retention removed messages."""
        self.gone_before[partition] = max(self.gone_before[partition], before)
        for place in [*self.stuck, *self.rests]:
            if self.is_evicted(place):
                self.finish(place, decided=False)

    def set_policy(self, policy: WindowPolicy, taken: set[Place]) -> None:
        """The settings change; ``taken`` are being moved away."""
        if policy is not self.policy:
            self.uncounted_failures.clear()
        self.policy = policy
        for place in sorted(self.stuck - taken):
            if self.attempts[place] <= policy.redeliveries_max:
                self.stuck.discard(place)
            elif policy.poison == "drop":
                self.finish(place)

    def retry(self, place: Place) -> None:
        """A blocked message is sent again, as if it had never failed."""
        self.stuck.discard(place)
        for found in (self.rests, self.attempts, self.uncounted_failures):
            found.pop(place, None)


class PushedSubscription(ObviousSubscription):
    """A key-shared one that is pushed: a member may have the next messages of a key, not only the
    first."""

    def same_key(self, place: Place) -> list[Place]:
        """The messages of its key in its partition that are not finished, if it has a key."""
        key = self.key_of(place)
        if key is None:
            return []
        return [p for p in self.unfinished() if p[0] == place[0] and self.keys[p] == key]

    def may_be_sent(self, name: str, place: Place) -> bool:
        """As for others; or the messages of its key before it are in the batch that is taken."""
        if super().may_be_sent(name, place):
            return True
        before = [p for p in self.same_key(place) if p < place and not self.is_evicted(p)]
        out = [p for p in self.out if self.key_of(p) == self.key_of(place)]
        return (
            bool(before)
            and place not in self.finished
            and place not in self.out
            and not self.blocked(place)
            and not self.is_evicted(place)
            and sorted(out) == before
            and all(self.out[p] == self.taking for p in before)
            and len(out) < self.policy.run_max
        )

    def come_back(self, places: list[Place]) -> None:
        """Those after each of them come back, too, unless retention removed it."""
        more = [
            after
            for place in places if not self.is_evicted(place)
            for after in self.same_key(place) if after > place and after in self.out
        ]  # fmt: skip
        super().come_back(list(dict.fromkeys([*places, *more])))

    def fail(
        self, place: Place, now_ns: int, asked_ns: int = 0, *, is_counted: bool = True
    ) -> None:
        """What is not the first of its key only comes back."""
        if place not in self.out:
            return
        same = self.same_key(place)
        self.come_back([p for p in same if p > place and p in self.out])
        if same and same[0] != place and not self.is_evicted(place):
            self.come_back([place])
            return
        super().fail(place, now_ns, asked_ns, is_counted=is_counted)


class PushedExclusiveSubscription(ObviousSubscription):
    """An exclusive one that is pushed: nothing of a partition goes out while any of it is."""

    def may_be_sent(self, name: str, place: Place) -> bool:
        """As for others; and what is out of its partition is in the batch that is taken."""
        out = {epoch for each, epoch in self.out.items() if each[0] == place[0]}
        return out <= {self.taking} and super().may_be_sent(name, place)
