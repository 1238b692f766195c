"""The balancer of push subscriptions, in the supervisor: divides their rates among their senders.

Each tick, of each subscription that is offered::

    look at the words of its senders -> if they have changed, or a negotiation is due: ask the
    shares what to grant -> store the grants

Most of the time nothing has changed: then a subscription costs a copy and a comparison of 64 bytes
a shard (1,024 subscriptions of 64 shards: 0.5 ms a tick). If much has, a tick does part of it, and
the next one goes on after that. ``delivery/push/rates/balancer.py`` decides;
``shards/boards/pushgrants.py`` has what a sender may be using. A slot of the shared segment has at
most one of these.
"""

from __future__ import annotations

from daemon.config import Config
from delivery.push.rates.balancer import BalancerSettings, ShareRow, Shares
from shards import layout as at
from shards.boards.pushboard import PushBoard, PushOffer
from shards.boards.pushgrants import SlotGrants
from shards.segment import Segment

# Subscriptions and senders of a tick: 15 to 30 ms. All senders of 64 shards x 1,024 subscriptions
# would take half a second, in which no shard is watched.
WORK_MAX = 2_000


def balancer_settings(config: Config) -> BalancerSettings:
    """One constant of the balancer can be configured."""
    return BalancerSettings(balance_interval_s=config.push_balance_interval_s)


class PushBalance:
    """The shares of all push subscriptions."""

    def __init__(self, segment: Segment, settings: BalancerSettings) -> None:
        self._segment = segment
        self._settings = settings
        self._board = PushBoard(segment)
        first = segment.layout.offer(0) * at.WORD_BYTES
        stop = segment.layout.offer(at.SUBSCRIPTION_SLOTS) * at.WORD_BYTES
        self._offers = segment.data[first:stop]
        self._seen = b""
        self._balanced: dict[int, _Balanced] = {}
        self._withdrawn: dict[int, SlotGrants] = {}
        self._next = 0  # where the next tick begins

    def tick(self, now_ns: int) -> None:
        """To be called every 100 ms."""
        seen = bytes(self._offers)
        if seen != self._seen:
            self._seen = seen
            self._follow({offer.slot: offer for offer in self._board.offers()}, now_ns)
        work, every = 0, list(self._balanced.values())
        for index in range(self._next, self._next + len(every)):
            work += every[index % len(every)].tick(now_ns)
            if work >= WORK_MAX:
                self._next = (index + 1) % len(every)
                return

    def died(self, shard: int) -> None:
        """The process of a shard has ended; ``waitpid`` has said so."""
        for grants in self._withdrawn.values():
            grants.died(shard)
        for balanced in self._balanced.values():
            balanced.grants.died(shard)

    def _follow(self, offers: dict[int, PushOffer], now_ns: int) -> None:
        for slot, balanced in list(self._balanced.items()):
            offer = offers.get(slot)
            if offer is None or offer.subscription_id != balanced.offer.subscription_id:
                # Its senders may not have noticed yet. They may die, too.
                balanced.grants.look()
                balanced.grants.withdraw()
                self._withdrawn[slot] = balanced.grants
                del self._balanced[slot]
        for slot, offer in offers.items():
            found = self._balanced.get(slot)
            if found is None:
                self._withdrawn.pop(slot, None)
                grants = SlotGrants(self._segment, slot, offer.subscription_id)
                self._balanced[slot] = _Balanced(grants, self._settings, offer, now_ns)
            elif found.offer != offer:
                found.follow(offer)


class _Balanced:
    """One subscription."""

    def __init__(
        self, grants: SlotGrants, settings: BalancerSettings, offer: PushOffer, now_ns: int
    ) -> None:
        self.offer = offer
        self.grants = grants
        self._shares = Shares(settings, now_ns)
        self._is_changed = False

    def follow(self, offer: PushOffer) -> None:
        """Takes another rate."""
        self.offer = offer
        self._is_changed = True

    def tick(self, now_ns: int) -> int:
        """Does what is to be done now; returns how much that was. After a grant or an answer to
        it, words have changed, so the next tick goes on."""
        grants = self.grants
        if not grants.look() and not self._is_changed and now_ns < self._shares.due_ns:
            return 0
        self._is_changed = False
        rows = {
            shard: ShareRow(sender.granted, sender.held, sender.use)
            for shard, sender in grants.senders.items()
        }
        for shard, rate in self._shares.step(self.offer.rate_max, rows, now_ns).items():
            grants.grant(shard, rate)
        return 1 + len(rows)
