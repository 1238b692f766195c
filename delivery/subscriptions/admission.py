"""What of the next records of a topic is taken into the window of a subscription, and when.

Partitions have turns. What was added later waits for all that came before it: a key may have moved.
Nothing is admitted that no consumer waits for: the look-ahead grows only while the keys in it are
busy, and no more than the budget of the shard allows. A record that is not at hand is wanted: the
caller loads it.

A record that the filter of the subscription leaves out is finished when it is looked at: it takes
no memory, no line in the journal and no row in the ledger, and the floor passes it with what is
before it. So a successor, which goes on at the floor, may compare some records once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby

from delivery.filters import filter_of
from delivery.reading.blocks import LOAD_RECORDS, Blocks, Wanted
from delivery.reading.followed import Key
from delivery.subscriptions.budget import ADMIT_LOT, Share
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from ledger.delivery.subscriptions import PartitionGrowth, SubscriptionView
from ledger.types import INTEGER_MAX
from uploader.l0.records import Record

ADMIT_EACH = 128  # messages for each consumer, of ADMIT_CONSUMERS_MAX: 1 ms of admitting
ADMIT_CONSUMERS_MAX = 16
# Of a partition in a row: about what was loaded of it together, which is forgotten soon.
ADMIT_TURN = 2_048
# Unfinished messages after which others are far: about as many as the blocks can hold. While more
# than BUSY_MESSAGES are in flight, no more are admitted than FAR_EACH between two heartbeats, and
# one for each that is acknowledged: there is enough to do, and far ones must be read once more.
FAR_MESSAGES = 16_384
FAR_EACH = 8_192
BUSY_MESSAGES = 1_024
LOADS_EACH = 2  # partitions of which records are loaded simultaneously, to be admitted
MISSES_MAX = 16  # partitions that are looked at while no more can be loaded


class RecordAdmission:
    """The admission of one subscription. ``head`` gives a partition's last committed offset,
    ``knows_growth`` says whether a topic has not grown since its view was read."""

    def __init__(
        self,
        view: SubscriptionView,
        window: SubscriptionWindow,
        blocks: Blocks,
        share: Share,
        head: Callable[[Key], int | None],
        knows_growth: Callable[[int], bool],
    ) -> None:
        self.loading: set[int] = set()  # partitions of which records to be admitted are loaded
        self.is_crowded = False  # the budget for what is read ahead is used up
        self._is_paced = False  # what is far is left for later
        self.is_behind = False  # its topic has grown: keys may have moved
        self._blocks = blocks
        self._share = share
        self._head = head
        self._knows_growth = knows_growth
        self._turn_left = ADMIT_TURN
        self._far_left = FAR_EACH
        self._unread: OrderedDict[int, None]  # partitions that may have more to admit, in turn
        self._growth: list[tuple[PartitionGrowth, list[int]]]  # with the older ones that lag
        self.follow(view, window)

    def follow(self, view: SubscriptionView, window: SubscriptionWindow) -> None:
        """Takes settings that may have changed, partitions that were added, another window."""
        self._view, self._window = view, window
        self._filter = filter_of(view.subscription.config.filter)
        self._unread = OrderedDict.fromkeys(sorted(window.look_aheads))
        self._growth = [(each, [*range(len(each.heads))]) for each in view.growth]

    def committed(self, partition: int) -> None:
        """The head of a partition has moved."""
        if partition in self._window.look_aheads:
            self._unread[partition] = None

    def acknowledged(self, count: int) -> None:
        """Consumers have dealt with this many messages."""
        self._far_left = min(FAR_EACH, self._far_left + count)

    def tick(self) -> bool:
        """To be called with each heartbeat; returns whether more may be admitted than before."""
        self._far_left = FAR_EACH
        return self.is_crowded or self._is_paced or self.is_behind

    def unseen(self, partition: int) -> int:
        """Records that were not admitted yet and that a former process did not finish."""
        look_ahead = self._window.look_aheads[partition]
        return max(0, self.head(partition) - look_ahead.end - look_ahead.finished_ahead)

    def head(self, partition: int) -> int:
        """The last committed offset of a partition; 0 before it is known."""
        return self._head(self._key(partition)) or 0

    def admit(self, consumers: int, wanted: list[Wanted]) -> int:
        """Takes in as much as gives each consumer a batch that is worth a write; returns how many
        records. ``wanted`` gets what must be loaded first."""
        self.is_behind = not self._knows_growth(self._view.topic.topic_id)
        if self.is_behind:
            return 0
        enough = min(consumers, ADMIT_CONSUMERS_MAX) * ADMIT_EACH
        total = 0
        while total < enough:
            admitted = self._admit_some(wanted)
            if not admitted:
                break
            total += admitted
        return total

    def _admit_some(self, wanted: list[Wanted]) -> int:
        """Takes the next records into the window; returns how many, 0 if none are at hand. One that
        is compared with much counts as several."""
        window = self._window
        config = self._view.subscription.config
        self._share.note()
        self.is_crowded = self._share.left_to_admit() <= 0
        if self.is_crowded:
            return 0
        is_busy = window.in_flight > BUSY_MESSAGES and window.unfinished > FAR_MESSAGES
        self._is_paced = is_busy and config.mode_facts.is_keyed and self._far_left <= 0
        if self._is_paced:
            return 0
        unread, misses = self._unread, 0
        for _ in range(len(unread)):
            partition = next(iter(unread))
            is_loading = len(self.loading) >= LOADS_EACH
            admitted = self._admit_of(partition, wanted)
            self._share.note()
            self._turn_left -= admitted or ADMIT_TURN
            self._far_left -= admitted
            if self._turn_left <= 0:
                self._turn_left = ADMIT_TURN
                if partition in unread:
                    unread.move_to_end(partition)
            if admitted:
                return admitted
            misses += is_loading
            if misses > MISSES_MAX:
                break
        return 0

    def _admit_of(self, partition: int, wanted: list[Wanted]) -> int:
        """As ``_admit_some``, of one partition."""
        window, key = self._window, self._key(partition)
        look_ahead = window.look_aheads[partition]
        left = self.head(partition) - look_ahead.end
        if left <= 0:
            del self._unread[partition]  # until its head moves
            return 0
        left = min(left, self._admitted_max(partition) - look_ahead.end)
        if partition in self.loading or left <= 0:
            return 0
        if look_ahead.has_finished and look_ahead.finished_next:
            window.pass_over(partition, min(left, look_ahead.finished_next))
            return 1
        count = min(left, look_ahead.room, self._share.left_to_admit())
        if count <= 0:
            return 0
        config = self._view.subscription.config
        mode = config.mode_facts
        goes_in_order = mode.order == "partition" and config.reliable
        if goes_in_order and look_ahead.loose_behind >= ADMIT_TURN:
            return 0  # what is known of it waits, too
        passing = self._filter
        if passing is not None:
            count = min(count, passing.lot)
        elif not mode.is_keyed:
            window.admit_loose(partition, count)
            return count
        is_far = window.unfinished > FAR_MESSAGES
        known = self._blocks.known(key, look_ahead.end + 1, count, is_far=is_far)
        if known.gone:
            self.pass_to(partition, look_ahead.end + 1 + min(left, known.gone))
            return 1
        if known.records:
            return self._take_in(partition, known.records)
        if len(self.loading) < LOADS_EACH:
            self.loading.add(partition)
            wanted.append(Wanted(key, look_ahead.end + 1, LOAD_RECORDS))
        return 0

    def _admitted_max(self, partition: int) -> int:
        """Up to which offset a partition may be admitted. What came after partitions were added
        waits for all that came before, since a key may have moved, also to an older partition; and
        for what there is no room for yet."""
        look_aheads = self._window.look_aheads
        is_keyed = self._view.subscription.config.mode_facts.is_keyed
        for each in [*self._growth]:
            growth, lagging = each
            while lagging:
                look_ahead = look_aheads.get(lagging[-1])
                if growth.heads[lagging[-1]] > (look_ahead.end if look_ahead else 0):
                    break
                lagging.pop()
            if not lagging:
                self._growth.remove(each)
                self._window.growths = max(self._window.growths, growth.first_partition)
            elif partition >= growth.first_partition:
                return 0
            elif is_keyed:
                return growth.heads[partition]
        return INTEGER_MAX

    def _take_in(self, partition: int, records: Sequence[Record]) -> int:
        """Takes in the next records, or the first ones of them; returns the work of it, in messages
        admitted."""
        window, passing = self._window, self._filter
        if passing is None:
            return self._take_in_all(partition, records)[1]
        work = 0
        for passes, run in groupby(records, passing.matches):
            part = [*run]
            work += passing.cost(part)
            if not passes:
                window.pass_over(partition, len(part))
                window.counts.filtered += len(part)
                continue
            count, more = self._take_in_all(partition, part)
            work += more
            if count < len(part):
                break
        return work

    def _take_in_all(self, partition: int, records: Sequence[Record]) -> tuple[int, int]:
        """How many were admitted, and the work of it. One that is compared with many patterns of
        consumers now counts as several."""
        window, config = self._window, self._view.subscription.config
        if config.takes_nodes:
            keys = [each.node if each.key is None else each.key for each in records]
        else:
            keys = [each.key for each in records]
        keys = [*self._share.fitting(keys)]
        count = work = len(keys)
        if not config.reliable:  # its window finds the owner of each key now
            count, work = window.members.matched_together(keys, ADMIT_LOT)
        window.admit(partition, keys[:count])
        return count, work

    def pass_unheard(self) -> None:
        """Without a consumer, what is not tracked is for nobody: the next one gets what is new."""
        window = self._window
        for partition in self._unread:
            count = self.head(partition) - window.look_aheads[partition].end
            if count > 0:
                window.pass_over(partition, count)
                window.counts.unmatched += count
        self._unread.clear()

    def pass_to(self, partition: int, offset: int) -> None:
        """What was not admitted before an offset is gone."""
        count = offset - self._window.look_aheads[partition].end - 1
        if count > 0:
            self._window.counts.evicted += count
            self._window.pass_over(partition, count)

    def _key(self, partition: int) -> Key:
        return self._view.topic.topic_id, partition
