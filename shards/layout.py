"""Where each word of the shared segment is, and who may write it.

The segment is one piece of memory that the supervisor owns and all shards map. All words are
native-endian u64. Each hot word has a 64-byte line of its own, so that a store by one core does not
slow down reads of its neighbors by others. **Every word has one writer at any time:**

=====================  =========================================================================
word                   writer
=====================  =========================================================================
global: incarnation,   supervisor
epoch, draining, log
level, deaths, gate,
push rules and their
text
global: owned, entry   supervisor's owner thread
number, superseded,
backed up, standbys
global: age offset,    supervisor
ticked
global: clock, records supervisor's upkeep thread
evicted, unplaced
groups
global: window,        supervisor (its governor)
object target, pressure
and its sensors, bodies,
bill
global: commits,       the holder of the ledger lock
commits reserved, the
commit log, topics,
cursors, routers,
grown, evicted
shard: reserved, head  that shard
shard: committed       the holder of the lease that starts there; for voids, where none does, the
                       holder of the lock of the shard's group
shard: pulled          the holder of the lock of the shard's group
shard: heartbeat,      that shard
counters, cpu, seen,
heard
shard: latencies       that shard; of PUT and COMMITTED, its uploads under their mutex
shard: what it senses, that shard
handover wanted, lease
counter, epoch, owns,
gate, lagged, audited,
of Kafka's protocol
shard: pid, restarts   supervisor
shard: journal head,   that shard
tail, waits, and the
journal's bytes
group: all words       the holder of the group's lock (a merge: both locks)
lease: state           its present holder; the supervisor, after ``waitpid``, for a dead one
lease: deaths, due     supervisor, before it makes the lease an orphan
lease: all others      the slot's own shard, while the state is free; the adopter its holder word
alarm: all words       the process of the row (shards/alarms.py)
router, subscription:  the shard that owns it (shards/boards/rowboard.py)
all words
Kafka group: all words supervisor's upkeep thread (daemon/upkeep/group_lags.py)
push offer: all words  the shard that owns the subscription (shards/boards/pushboard.py)
push share: granted    supervisor (its balancer)
push share: joins, in  the shard of the row; the supervisor, after ``waitpid``, for a dead one
use
push share: all        the shard of the row
others; push sender:
all words
endpoint hold          any shard, any time (shards/boards/endpointholds.py)
recency                any shard, any time: see below
topic row: all words   the shard of the row (shards/boards/topicrows.py)
name slot: all words   the holder of the lock of the slots, once (shards/boards/namecounts.py)
counts of names        the shard
limits                 the shard of the line (shards/boards/limits.py)
=====================  =========================================================================

The words of recency are the exception: when a topic was last consumed, by a hash of its id. Each
shard stores its own clock there, without a lock. If two shards, or two topics, meet in a word, the
later time wins or is lost. Only the order of deliveries follows from them.

A group's words are in the slot of its first shard. This module only computes addresses.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate

from msgspec import Struct

from ledger.types import ROUTERS_MAX, SUBSCRIPTIONS_MAX

WORD_BYTES = 8
LINE_WORDS = 8

MAGIC = 0x6865616467617465  # "headgate"
VERSION = 1

# Global lines.
G_MAGIC = 0
G_VERSION = 1
G_INCARNATION = 1 * LINE_WORDS
G_EPOCH, G_STARTED_NS = G_INCARNATION + 1, G_INCARNATION + 2
G_DRAINING, G_LOG_LEVEL = 2 * LINE_WORDS, 2 * LINE_WORDS + 1
G_WINDOW_NS = 3 * LINE_WORDS
G_TARGET_BYTES = G_WINDOW_NS + 1  # the object target in force
G_COALESCE_NS, G_DEFERRING = G_WINDOW_NS + 2, G_WINDOW_NS + 3  # how long pushes wait for others
G_PRESSURE_PPM = 4 * LINE_WORDS
G_HARD_PPM = G_PRESSURE_PPM + 1  # of hard sensors alone
G_RUNGS = G_PRESSURE_PPM + 2  # those in force, a bit each (daemon/governor/ladder.py)
G_STEADY_PPM = G_PRESSURE_PPM + 3  # the level that the window follows
G_SCALING_PPM, G_MEMORY_LEFT_BYTES = G_PRESSURE_PPM + 4, G_PRESSURE_PPM + 5  # 0: unknown, 1: none
G_COMMITS = 5 * LINE_WORDS
G_TOPICS = 6 * LINE_WORDS
G_DELIVERY = G_TOPICS + 2  # the change number when routers or subscriptions last changed
G_CURSORS = G_TOPICS + 1  # the change number when cursors were last created, set or deleted
G_DEATHS = 7 * LINE_WORDS
G_PUSH_RULES = G_DEATHS + 1  # counts changes of whom push may call (shards/boards/pushrules.py)
G_OWNED_SENT_NS = 8 * LINE_WORDS
G_SUPERSEDED, G_ENTRY_NUMBER = G_OWNED_SENT_NS + 1, G_OWNED_SENT_NS + 2
G_OWNED_CLOCKS_NS = G_OWNED_SENT_NS + 3  # at that sending (uploader/ownership/ownership.py)
G_BACKED_UP_NS = G_OWNED_SENT_NS + 4  # an accepted entry covers the ledger as it was then
# Of standbys that ask: how many, when one last did, the best one's commit.
G_STANDBYS, G_STANDBY_SEEN_NS, G_STANDBY_COMMITS = range(12 * LINE_WORDS, 12 * LINE_WORDS + 3)
G_HANDED_OVER_NS = G_STANDBYS + 3  # since when a standby waits for the last entry; 0: none does
G_TICKED_NS = G_STANDBYS + 4  # when the supervisor has last looked at everything
G_COMMITS_RESERVED = 9 * LINE_WORDS  # of the commit log's bytes (shards/commitlog.py)
G_CLOCK_STOPPED = 10 * LINE_WORDS  # 0, or 1: the wall clock jumped ahead, 2: back
G_CLOCK_JUMP_MS, G_RECORDS_EVICTED = G_CLOCK_STOPPED + 1, G_CLOCK_STOPPED + 2
G_AGE_OFFSET_MS = G_CLOCK_STOPPED + 3  # age time less the time since the boot (ledger/ages.py)
G_GROUPS_UNPLACED = G_CLOCK_STOPPED + 4  # groups of Kafka in topics, without a row; their lag
G_GROUPS_UNPLACED_LAG = G_CLOCK_STOPPED + 5
# A gate (daemon/governor/board.py): why it is closed, or 0; since when; how often it has closed.
GATE_WHY = 0
GATE_SINCE_NS = 1
GATE_PAUSES = 2
GATE_WORDS = 3
G_GATE = 11 * LINE_WORDS  # of producers
G_BODIES_BYTES = G_GATE + GATE_WORDS  # all, on their way to a shard (daemon/memory.py); 0: unknown
# By sensor (daemon/config/sensors.py): raw value (a double), pressure, its shard plus 1, weight.
G_SENSORS = 13 * LINE_WORDS
SENSORS_MAX = 16
SENSOR_RAW = 0
SENSOR_PPM = 1
SENSOR_SHARD = 2
SENSOR_WEIGHT_PPM = 3
SENSOR_WORDS = 4
# The bill (daemon/governor/costs/billing.py), first the supervisor's own requests, of all its
# threads. Rates and dollars are the bits of doubles.
G_OWN_PUTS = G_SENSORS + SENSORS_MAX * SENSOR_WORDS
G_OWN_PUT_BYTES, G_OWN_GETS, G_OWN_GET_BYTES, G_OWN_LISTS = range(G_OWN_PUTS + 1, G_OWN_PUTS + 5)
G_PUT_RATE, G_OPTIMUM_PUT_RATE = G_OWN_PUTS + 5, G_OWN_PUTS + 6
G_USD_PER_MONTH = G_OWN_PUTS + 7
G_PER_SHARD_PUTS = G_OWN_PUTS + 8  # what uploading without groups would have put
G_SINGLE_STREAM_PUTS = G_OWN_PUTS + 9
G_BUDGET_USD = G_OWN_PUTS + 10  # a month; 0: there is none
G_BUDGET_WINDOW_NS = G_OWN_PUTS + 11  # the least window that it allows
G_BUDGET_HOLDS = G_OWN_PUTS + 12
G_PER_SHARD_USD_PER_MONTH, G_SINGLE_STREAM_USD_PER_MONTH = G_OWN_PUTS + 13, G_OWN_PUTS + 14
G_RUNGS_ENTERED = G_OWN_PUTS + 2 * LINE_WORDS  # how often each rung came into force
RUNGS_MAX = LINE_WORDS
# The version of topics after the last eviction or trim of any topic with this hash.
G_EVICTED = G_RUNGS_ENTERED + RUNGS_MAX
EVICTED_WORDS = 1_024  # a round that evicts from ten topics concerns readers of one topic in 100
# Likewise: the change number when such a topic last grew, if it has subscriptions.
G_GROWN = G_EVICTED + EVICTED_WORDS
GLOBAL_WORDS = G_GROWN + EVICTED_WORDS

# Lines of a shard.
S_RESERVED = 0 * LINE_WORDS
S_HEAD = 1 * LINE_WORDS
S_COMMITTED = 2 * LINE_WORDS
S_PULLED = 3 * LINE_WORDS
S_HEARTBEAT = 4 * LINE_WORDS
S_HEARTBEAT_NS = S_HEARTBEAT + 1
S_CPU_NS = S_HEARTBEAT + 2
S_READY = S_HEARTBEAT + 3
S_SEEN = S_HEARTBEAT + 4  # the last commit that the shard has followed, as of its heartbeat
S_QUEUED = S_HEARTBEAT + 5  # requests that wait for admission, as of its heartbeat
# Up to which changes of topics, and of routers and subscriptions, the shard knows them, likewise.
S_HEARD_TOPICS = S_HEARTBEAT + 6
S_HEARD_DELIVERY = S_HEARTBEAT + 7
S_PID = 5 * LINE_WORDS
S_RESTARTS, S_CPU = S_PID + 1, S_PID + 2
S_AUDITED = S_PID + 3  # a count: its lines of the audit log
S_HANDOVER_WANTED_NS = S_PID + 4
S_LEASE_COUNTER = 6 * LINE_WORDS
S_REQUEST_ID = S_LEASE_COUNTER + 1
S_ENTRY_WANTED_NS = S_LEASE_COUNTER + 2
S_BACKUP_WANTED_NS = S_LEASE_COUNTER + 3  # until G_BACKED_UP_NS is as late
S_EPOCH = S_LEASE_COUNTER + 4  # the shard's next leases have this epoch or a later one
S_OWNS = S_LEASE_COUNTER + 5  # how many routers the shard owns
S_URGENT_NS = S_LEASE_COUNTER + 6  # when its urgent requests are due (uploader/groups/urgent.py)
S_URGENT_END = S_LEASE_COUNTER + 7  # until this is pulled
# Counters of a shard: only it adds to them, and they outlive its restarts.
S_REQUESTS_ACKED = 7 * LINE_WORDS
S_RECORDS_ACKED = S_REQUESTS_ACKED + 1
S_BYTES_ACKED = S_REQUESTS_ACKED + 2
S_REJECTED = S_REQUESTS_ACKED + 3
S_OBJECTS_COMMITTED = S_REQUESTS_ACKED + 4
S_ORPHANS_ADOPTED = S_REQUESTS_ACKED + 5
S_CONNECTIONS = S_REQUESTS_ACKED + 6  # as of its heartbeat; streams are counted by themselves
S_STREAMS = S_REQUESTS_ACKED + 7
S_PUTS = 8 * LINE_WORDS
S_PUT_BYTES = S_PUTS + 1
S_PUT_FAILURES = S_PUTS + 2
S_GETS = S_PUTS + 3
S_GET_BYTES = S_PUTS + 4
S_LISTS = S_PUTS + 5
S_REFUSED = 9 * LINE_WORDS  # by reason (daemon/intake/refused.py): the parts of S_REJECTED
REFUSED_MAX = LINE_WORDS
# What the shard senses, as of its heartbeat: doubles (shards/doubles.py, daemon/governor/).
S_READY_MS = 10 * LINE_WORDS
S_SCHEDULING_MS = S_READY_MS + 1
S_STORE_SLOWDOWN = S_READY_MS + 2
S_COMMIT_MS = S_READY_MS + 3
S_SLOTS_USED = S_READY_MS + 4
S_ALLOCATED_BYTES = S_READY_MS + 5
S_PROMISED_BYTES = S_READY_MS + 6
S_RING_FULL = S_READY_MS + 7  # a count, not a double: how many requests found no ring space
S_BANDS = 11 * LINE_WORDS  # as of its heartbeat: entries that are ready, by band
BANDS = 5
S_DEFERRED = S_BANDS + BANDS  # those of them that are deferred
S_JOURNAL_HEAD = 12 * LINE_WORDS  # shards/journal.py
S_JOURNAL_TAIL = S_JOURNAL_HEAD + 1
S_JOURNAL_WAITS = S_JOURNAL_HEAD + 2  # a count: acknowledgments that waited for space
S_GATE = S_JOURNAL_HEAD + 3  # of the shard's routers
S_LAGGED = S_GATE + GATE_WORDS  # as of its heartbeat: watchers that have lagged
S_LAGS = S_LAGGED + 1  # a count: how often watchers have
S_KAFKA_CONNECTIONS = 13 * LINE_WORDS  # at heartbeats, as are groups with members, and these
S_KAFKA_GROUPS, S_KAFKA_MEMBERS, S_KAFKA_FAILURES = range(13 * LINE_WORDS + 1, 13 * LINE_WORDS + 4)
SHARD_WORDS = 14 * LINE_WORDS

# Lines of a group slot. The size has its own line: every shard reads it to find its group.
P_SIZE = 0 * LINE_WORDS
P_UPLOAD_TURN = 1 * LINE_WORDS
P_LAST_PULL_NS = P_UPLOAD_TURN + 1
P_LAST_CHANGE_NS = P_UPLOAD_TURN + 2
P_MARK = P_UPLOAD_TURN + 3
P_SPLITS = P_UPLOAD_TURN + 4
P_MERGES = P_UPLOAD_TURN + 5
P_LAST_FULL_NS = P_UPLOAD_TURN + 6
GROUP_WORDS = 2 * LINE_WORDS

# Lines of a lease slot; the sources follow, three words each.
L_STATE = 0
L_DUE_NS = 1  # of an orphan: not adopted before
L_DEATHS = 2  # of its holders
L_INCARNATION = 1 * LINE_WORDS
L_EPOCH = L_INCARNATION + 1
L_SHARD = L_INCARNATION + 2
L_COUNTER = L_INCARNATION + 3
L_CREATED_MS = L_INCARNATION + 4
L_HOLDER = L_INCARNATION + 5
L_RANGE_COUNT = L_INCARNATION + 6
L_COMMITS_SEEN = L_INCARNATION + 7
L_RANGES = 2 * LINE_WORDS
RANGE_WORDS = 3

# A row of the alarms: one per process and kind. The version is odd while the row is written.
A_VERSION = 0
A_SINCE_NS = 1
A_COUNT = 2
A_LENGTH = 3
A_TEXT = 4
ALARM_WORDS = 4 * LINE_WORDS
A_TEXT_BYTES = (ALARM_WORDS - A_TEXT) * WORD_BYTES
ALARM_KINDS_MAX = 16

# A row of a board (shards/boards/rowboard.py), one per slot. The version is odd while it is
# written. The texts follow each other; all but the last have at most 255 bytes.
B_VERSION = 0
B_ID = 1  # 0: free
B_NUMBERS = 2
B_NUMBERS_MAX = 25
B_LENGTHS = B_NUMBERS + B_NUMBERS_MAX  # of the texts
B_TEXTS_MAX = 5
B_TEXT = B_LENGTHS + B_TEXTS_MAX
BOARD_ROW_WORDS = 24 * LINE_WORDS
B_TEXT_BYTES = (BOARD_ROW_WORDS - B_TEXT) * WORD_BYTES
ROUTER_SLOTS = ROUTERS_MAX  # 1.5 MiB
SUBSCRIPTION_SLOTS = SUBSCRIPTIONS_MAX  # 1.5 MiB
KAFKA_GROUP_SLOTS = 512  # of groups of Kafka in topics; 0.75 MiB

# What the owner of a push subscription offers to its senders: one per slot, as above. 64 KiB.
O_SUBSCRIPTION = 0  # 0: there is no push subscription. Stored last, and taken back first
O_RATE = 1  # in millionths
O_SENDERS = 2
O_RESUMED_NS = 3  # when slow mode was last ended by an operator; any shard may say so
OFFER_WORDS = 1 * LINE_WORDS

# What a sender may use of that: one line per slot and shard. The lines of a slot are together, so
# that the balancer sees with one comparison that nothing has changed.
V_JOINS = 0  # odd: a sender is there. One more with each join and each leave
V_SUBSCRIPTION = 1  # whose sender is there, or was the last
V_IN_USE = 2  # the grant that it obeys, as it was read; 0: none
V_USE = 3  # what it made of it in the last update interval: a double
V_GRANTED = 4  # (rate, number, joins): shards/boards/pushboard.py
SHARE_WORDS = 1 * LINE_WORDS

# What a sender does and has done: 448 bytes per slot and shard. The version is odd while more than
# one word is written.
F_VERSION = 0
F_SUBSCRIPTION = 1
F_MODE = 2
F_RATE = 3  # doubles
F_CEILING = 4
F_CHANGED_NS = 5  # when mode or rate last changed
F_HELD_UNTIL_NS = 6
F_NEXT_NS = 7  # when the next attempt may begin
F_IN_FLIGHT = 8
F_ATTEMPTS = 9
F_RECORDS = 10
F_LATENCY_SUM_NS = 11
F_OUTCOMES = 2 * LINE_WORDS  # a count for each kind
OUTCOMES_MAX = 16
F_LATENCIES = F_OUTCOMES + OUTCOMES_MAX  # a histogram
PUSH_LATENCIES = 24
FIGURES_WORDS = 7 * LINE_WORDS
# Of two texts: each has two lists of 1,000 entries, of at most 256 characters.
PUSH_RULES_BYTES = 1 << 20
# Of eight pauses that receivers asked for (shards/boards/endpointholds.py); 32 KiB.
HOLD_LINES = 512
# What is used of limits: for each slot 128 bytes a shard, 2 MiB a shard. Slot 0 is the daemon's,
# the others are of tokens, of which a file has about 10,000 (daemon/access/token_file.py).
LIMIT_SLOTS = 16_384
X_USED = 0  # of each rate, as nanoseconds
RATES_MAX = 5
X_BASES = X_USED + RATES_MAX  # of each rate: shards/boards/limits.py
X_COUNTS = X_BASES + RATES_MAX  # what there is now
COUNTS_MAX = 6
LIMIT_WORDS = 2 * LINE_WORDS
PAGE_BYTES = 4096

# When topics were last consumed: 512 KiB. Ids are consecutive, so 65,536 topics share no word.
RECENCY_WORDS = 65_536

# A row of a topic that a shard's streams watch. A topic has a place in one set of rows, so that
# finding it needs one look per shard. 1,024 rows a shard: 40 KiB.
T_TOPIC_ID = 0  # 0: free. Stored last, and taken back first
T_WATCHERS = 1
T_BAND = 2  # the band of a push that is ready, plus 1; 0 if there is none
T_ENQUEUED_NS = 3  # since when it has been ready
T_LAGGED = 4  # those of its watchers that have lagged
TOPIC_ROW_WORDS = 5
TOPIC_SETS = 128
TOPIC_WAYS = 8
TOPIC_ROWS = TOPIC_SETS * TOPIC_WAYS

# A slot of the commit log. The entry's bytes are at its position of the log's bytes; length 0: they
# are not there.
C_NUMBER = 0
C_POSITION = 1
C_LENGTH = 2
C_PUBLISHED_NS = 3
SLOT_WORDS = 1 * LINE_WORDS

# A latency histogram: one per shard and stage (shards/latency.py). Counts, and the sum of times.
LATENCY_WORDS = 4 * LINE_WORDS
H_SUM_NS = LATENCY_WORDS - 1
LATENCY_BUCKETS = H_SUM_NS
LATENCY_STAGES_MAX = 12  # 3 KiB a shard

# What topics' producers were acknowledged, and the traffic of tokens (shards/boards/namecounts.py).
# The names of the slots: 60 KiB.
TOPIC_SLOTS = 128
TOKEN_SLOTS = 64
M_LENGTH = 0  # 0: free. Stored last
M_TEXT = 1
NAME_SLOT_WORDS = 5 * LINE_WORDS
M_TEXT_BYTES = (NAME_SLOT_WORDS - M_TEXT) * WORD_BYTES
# The counts of a shard: of all other names, then of each slot. 2 KiB a shard each.
TOPIC_COUNT_WORDS = 2  # records, bytes
TOPIC_COUNTS = 1 + TOPIC_SLOTS
TOKEN_COUNT_WORDS = 4  # requests, bytes in, bytes out, refused
TOKEN_COUNTS = 1 + TOKEN_SLOTS

SHARDS_MAX = 512  # a lease must fit its sources; the largest machines have that many threads


def evicted(topic_id: int) -> int:
    """Index of the word that tells of evictions and trims of a topic, and of some others."""
    return G_EVICTED + topic_id % EVICTED_WORDS


def grown(topic_id: int) -> int:
    """Index of the word that tells of growth of a topic, and of some others."""
    return G_GROWN + topic_id % EVICTED_WORDS


def sensor(index: int) -> int:
    """Index of the first word of a sensor."""
    return G_SENSORS + index * SENSOR_WORDS


def _lines(words: int) -> int:
    return -(-words // LINE_WORDS) * LINE_WORDS


class Layout(Struct, frozen=True):
    """The shape of a segment and the addresses that follow from it.

    ``ring_bytes`` is one shard's ring and a multiple of 8. The commit log has ``commit_slots``
    slots and ``commit_log_bytes`` for their entries, of which one may take ``commit_bytes_max`` (a
    larger commit is read from the ledger instead). ``journal_bytes`` is one shard's journal; a
    daemon gives it more (daemon/memory.py).
    """

    shards: int
    ring_bytes: int
    lease_slots: int = 4
    commit_slots: int = 512
    commit_log_bytes: int = 8 << 20
    commit_bytes_max: int = 256 << 10
    journal_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= SHARDS_MAX:
            raise ValueError(f"shards is {self.shards}; it must be between 1 and {SHARDS_MAX}")
        if self.ring_bytes < 4096 or self.ring_bytes % 8:
            raise ValueError(
                f"ring_bytes is {self.ring_bytes}; it must be a multiple of 8 and at least 4096"
            )
        if self.lease_slots < 1 or self.commit_slots < 4:
            raise ValueError("a segment needs at least 1 lease slot and 4 commit slots")
        if self.commit_log_bytes % (WORD_BYTES * LINE_WORDS):
            raise ValueError("commit_log_bytes must be a multiple of a 64-byte line")
        if not 1 <= self.commit_bytes_max <= self.commit_log_bytes // 2:
            raise ValueError("commit_bytes_max must be at most half of commit_log_bytes")
        if self.journal_bytes < 4096 or self.journal_bytes % WORD_BYTES:
            raise ValueError(
                f"journal_bytes is {self.journal_bytes}; it must be a multiple of 8 and at least"
                " 4096"
            )

    @property
    def lease_words(self) -> int:
        """Words of one lease slot."""
        return L_RANGES + _lines(RANGE_WORDS * self.shards)

    # The index of the first word of a row.

    def shard(self, shard: int) -> int:
        """Where a shard's lines begin."""
        return GLOBAL_WORDS + shard * SHARD_WORDS

    def group(self, group: int) -> int:
        """Where a group's slot begins."""
        return GLOBAL_WORDS + self.shards * SHARD_WORDS + group * GROUP_WORDS

    def lease(self, shard: int, slot: int) -> int:
        """Where a lease slot begins."""
        return _regions(self)["leases"] + (shard * self.lease_slots + slot) * self.lease_words

    def alarm(self, process: int, kind: int) -> int:
        """Where an alarm's row begins; the supervisor is process ``shards``."""
        return _regions(self)["alarms"] + (process * ALARM_KINDS_MAX + kind) * ALARM_WORDS

    def board(self, kind: str) -> int:
        """Where the rows of a board begin: ``routers``, ``subscriptions`` or ``kafka groups``."""
        return _regions(self)[kind]

    def offer(self, slot: int) -> int:
        """Where what a push subscription offers begins."""
        return _regions(self)["offers"] + slot * OFFER_WORDS

    def latency(self, shard: int, stage: int) -> int:
        """Where a shard's latency histogram of a stage begins."""
        return _regions(self)["latencies"] + (shard * LATENCY_STAGES_MAX + stage) * LATENCY_WORDS

    @property
    def recency(self) -> int:
        """Where recency begins."""
        return _regions(self)["recency"]

    def topic_row(self, shard: int, row: int) -> int:
        """Where a topic's row begins."""
        return _regions(self)["topic rows"] + (shard * TOPIC_ROWS + row) * TOPIC_ROW_WORDS

    def name_slot(self, slot: int) -> int:
        """Where a name's slot begins: first those of topics, then those of tokens."""
        return _regions(self)["name slots"] + slot * NAME_SLOT_WORDS

    def topic_counts(self, shard: int) -> int:
        """Where a shard's counts of topics begin."""
        return _regions(self)["topic counts"] + shard * _lines(TOPIC_COUNTS * TOPIC_COUNT_WORDS)

    def token_counts(self, shard: int) -> int:
        """Where a shard's counts of tokens begin."""
        return _regions(self)["token counts"] + shard * _lines(TOKEN_COUNTS * TOKEN_COUNT_WORDS)

    def commit_slot(self, number: int) -> int:
        """Where the slot of commit ``number`` begins."""
        return _regions(self)["commit slots"] + (number % self.commit_slots) * SLOT_WORDS

    # The same among the sparse words.

    def share(self, slot: int, shard: int) -> int:
        """Where a sender's share begins."""
        return (slot * self.shards + shard) * SHARE_WORDS

    def figures(self, slot: int, shard: int) -> int:
        """Where a sender's figures begin."""
        return _sparse_regions(self)["figures"] + (slot * self.shards + shard) * FIGURES_WORDS

    @property
    def push_rules(self) -> int:
        """Where the rules of whom push may call begin."""
        return _sparse_regions(self)["push rules"]

    @property
    def endpoint_holds(self) -> int:
        """Where the pauses that receivers asked for begin."""
        return _sparse_regions(self)["endpoint holds"]

    def limit(self, slot: int, shard: int) -> int:
        """Where what a shard uses of a limit begins; the lines of all shards are together."""
        first = _sparse_regions(self)["limits"]
        return first + (slot * self.shards + shard) * LIMIT_WORDS

    # Byte offsets.

    @property
    def commit_log(self) -> int:
        """Where the commit log's bytes begin."""
        return self.words * WORD_BYTES

    def ring(self, shard: int) -> int:
        """Where a shard's ring begins."""
        return self.commit_log + self.commit_log_bytes + shard * self.ring_bytes

    def journal(self, shard: int) -> int:
        """Where a shard's journal begins."""
        return self.ring(self.shards) + shard * self.journal_bytes

    @property
    def sparse(self) -> int:
        """Where the sparse words begin, of senders and of limits: they take memory only where they
        were touched. All before them is allocated at the start."""
        return -(-self.journal(self.shards) // PAGE_BYTES) * PAGE_BYTES

    # Sizes.

    @property
    def words(self) -> int:
        """All words but the sparse ones; the commit log's bytes, the rings, the journals and those
        follow."""
        return _regions(self)[_END]

    @property
    def sparse_words(self) -> int:
        """How many those are: 2.5 MiB a shard, and 2 MiB."""
        return _sparse_regions(self)[_END]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole segment."""
        return self.sparse + self.sparse_words * WORD_BYTES


_END = ""


@cache
def _regions(layout: Layout) -> dict[str, int]:
    """Where each region of words begins, in their order; they end at ``_END``."""
    shards = layout.shards
    return _summed(
        {
            "global": GLOBAL_WORDS,
            "shards": shards * SHARD_WORDS,
            "groups": shards * GROUP_WORDS,
            "leases": shards * layout.lease_slots * layout.lease_words,
            "alarms": (shards + 1) * ALARM_KINDS_MAX * ALARM_WORDS,
            "routers": ROUTER_SLOTS * BOARD_ROW_WORDS,
            "subscriptions": SUBSCRIPTION_SLOTS * BOARD_ROW_WORDS,
            "kafka groups": KAFKA_GROUP_SLOTS * BOARD_ROW_WORDS,
            "offers": SUBSCRIPTION_SLOTS * OFFER_WORDS,
            "latencies": shards * LATENCY_STAGES_MAX * LATENCY_WORDS,
            "recency": RECENCY_WORDS,
            "topic rows": shards * TOPIC_ROWS * TOPIC_ROW_WORDS,
            "name slots": (TOPIC_SLOTS + TOKEN_SLOTS) * NAME_SLOT_WORDS,
            "topic counts": shards * _lines(TOPIC_COUNTS * TOPIC_COUNT_WORDS),
            "token counts": shards * _lines(TOKEN_COUNTS * TOKEN_COUNT_WORDS),
            "commit slots": layout.commit_slots * SLOT_WORDS,
        }
    )


@cache
def _sparse_regions(layout: Layout) -> dict[str, int]:
    """The same of the sparse words."""
    return _summed(
        {
            "shares": SUBSCRIPTION_SLOTS * layout.shards * SHARE_WORDS,
            "figures": SUBSCRIPTION_SLOTS * layout.shards * FIGURES_WORDS,
            "push rules": 2 * PUSH_RULES_BYTES // WORD_BYTES,
            "endpoint holds": HOLD_LINES * LINE_WORDS,
            "limits": LIMIT_SLOTS * layout.shards * LIMIT_WORDS,
        }
    )


def _summed(sizes: dict[str, int]) -> dict[str, int]:
    return dict(zip([*sizes, _END], accumulate(sizes.values(), initial=0), strict=True))
