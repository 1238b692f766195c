"""The table of configuration keys, and the Config that holds their values.

A *derived* default depends on other keys (windows on the kind of store, the store on the data
directory). This module reads neither files nor the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from daemon.config.composed_values import ALLOWED, DENIED, LIMITS, PRICES, WEIGHTS
from daemon.config.values import (
    ADDRESS,
    BYTES,
    COUNT,
    ENDPOINT_URL,
    FILE,
    FOLDER,
    HOSTS,
    NETWORKS,
    NUMBER,
    ORIGINS,
    STORE_URL,
    SWITCH,
    TEXT,
    ValueCheck,
    ValueType,
    above_zero,
    between,
    one_of,
    optional,
    size_text,
)
from daemon.schemas.api import ACK_TIMEOUT_MS_MAX, ACK_TIMEOUT_MS_MIN
from ledger.dedupe import DedupeLimits
from ledger.types import PARTITIONS_MAX
from uploader.stores.base import Encryption
from uploader.stores.prices import DEFAULT_PRICES, Prices, default_class

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RING_FACTOR = 4  # a ring holds 4 objects or 4 bodies; else a pull may wait for a write it blocks
SHARDS_MAX = 512  # the largest machines have this many hardware threads
# Values of s3_sse, and what S3 calls them.
SSE = {"aes256": "AES256", "aws:kms": "aws:kms", "aws:kms:dsse": "aws:kms:dsse"}
ENVIRONMENT_PREFIX = "HEADGATE_"


class ConfigError(ValueError):
    """The configuration cannot be used. ``problems`` are sentences."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Override(msgspec.Struct, frozen=True):
    """One KEY=VALUE of the command line; ``origin`` is the option that was used."""

    key: str
    value: str
    origin: str = "--set"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon runs with. Names end in their units.

    The last three fields are not keys: where each value came from, and what to load again.
    """

    listen: str
    data_dir: str
    store_url: str
    s3_endpoint_url: str | None
    s3_region: str | None
    s3_sse: str | None
    s3_sse_kms_key_id: str | None
    shards: int
    ring_bytes: int
    object_bytes_target: int
    commit_window_min_ms: float
    commit_window_max_ms: float
    uploads_in_flight_max: int
    prices: dict[str, Prices]
    store_class: str
    put_budget_usd_per_month: float | None
    hedge_puts: bool
    lake_url: str
    catalog_uri: str
    catalog_name: str | None
    compact_run_bytes: int
    snapshot_keep_ms: int
    gc_grace_ms: int
    dedupe_window_ms: int
    dedupe_entries_max: int
    retention_interval_ms: int
    body_bytes_max: int
    record_bytes_max: int
    records_max: int
    partitions_max: int
    auto_create_topics: bool
    ack_timeout_ms: int
    store_down_not_ready_ms: int
    standstill_after_ms: int
    streams_max: int
    connections_per_address_max: int | None
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    admin_over_tcp: bool
    auth_file: str | None
    insecure_open: bool
    limits: dict[str, float]
    tls_listen: str | None
    tls_certificate: str | None
    tls_key: str | None
    tls_client_ca: str | None
    kafka_listen: str | None
    kafka_advertised: str | None
    kafka_partitions: int
    audit_log: str | None
    trusted_proxies: tuple[str, ...]
    governor: str
    pressure_weights: dict[str, float]
    gate_pause_above: float
    gate_resume_below: float
    push_allow: tuple[str, ...]
    push_deny: tuple[str, ...]
    push_ca_file: str | None
    push_limiter_period_s: float
    push_slow_delay_s: float
    push_balance_interval_s: float
    log_level: str
    log_format: str
    origins: dict[str, str]
    config_file: str | None = None
    overrides: tuple[Override, ...] = ()

    @property
    def listen_host(self) -> str:
        """The host without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def tls_host(self) -> str:
        """The host of ``tls_listen``, which is set."""
        assert self.tls_listen is not None
        return self.tls_listen.rpartition(":")[0].strip("[]")

    @property
    def tls_port(self) -> int:
        """The port of ``tls_listen``, which is set."""
        assert self.tls_listen is not None
        return int(self.tls_listen.rpartition(":")[2])

    @property
    def kafka_address(self) -> tuple[str, int]:
        """Host and port of ``kafka_listen``, which is set."""
        assert self.kafka_listen is not None
        host, _, port = self.kafka_listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def ledger_path(self) -> str:
        return os.path.join(self.data_dir, "ledger", "ledger.db")

    @property
    def store_prices(self) -> Prices:
        """What the store charges."""
        return self.prices[self.store_class]

    @property
    def s3_encryption(self) -> Encryption | None:
        """How S3 encrypts what is put; None as the bucket says."""
        if self.s3_sse is None:
            return None
        return Encryption(SSE[self.s3_sse], self.s3_sse_kms_key_id)

    @property
    def dedupe_limits(self) -> DedupeLimits:
        return DedupeLimits(self.dedupe_window_ms, self.dedupe_entries_max)


class Derived(NamedTuple):
    """A default that depends on the values known so far; ``text`` says how."""

    text: str
    of: Callable[[Mapping[str, Any]], object]


class Field(NamedTuple):
    """One key. ``why`` is the sentence in docs/configuration.md.

    ``reloadable``: ``headgate reload`` takes it, in the supervisor. Whoever reads the key asks the
    supervisor's ``config`` each time, or is told in ``Supervisor._reload``; a shard learns of it
    only by the shared memory.
    """

    name: str
    type: ValueType
    default: object
    unit: str
    why: str
    reloadable: bool = False
    check: ValueCheck | None = None


def _cpus(_: Mapping[str, Any]) -> int:
    return min(len(os.sched_getaffinity(0)), SHARDS_MAX)


def _store(values: Mapping[str, Any]) -> str:
    return "file://" + quote(os.path.join(values["data_dir"], "store"))


def _lake(values: Mapping[str, Any]) -> str:
    return str(values["store_url"]).rstrip("/") + "/lake"


def _catalog(values: Mapping[str, Any]) -> str:
    return "sqlite:///" + os.path.join(values["data_dir"], "catalog.db")


def _window_min(values: Mapping[str, Any]) -> float:
    usual = 200.0 if values["store_url"].startswith("s3://") else 0.5
    return min(usual, float(values.get("commit_window_max_ms", usual)))


def _window_max(values: Mapping[str, Any]) -> float:
    usual = 1000.0 if values["store_url"].startswith("s3://") else 10.0
    return max(usual, float(values["commit_window_min_ms"]))


def _class(values: Mapping[str, Any]) -> str:
    return default_class(values["store_url"])


def _default_prices(_: Mapping[str, Any]) -> dict[str, Prices]:
    return dict(DEFAULT_PRICES)


def _whole_pages(value: object) -> None:
    between(64 * KIB, 64 * GIB, size_text).test(value)
    if isinstance(value, int) and value % 4096:
        raise ValueError("must be a multiple of 4096, the size of a memory page")


FIELDS: tuple[Field, ...] = (
    Field("listen", ADDRESS, "127.0.0.1:7440", "",
          "where producers and readers connect; port 0 takes a free port, which the log names"),
    Field("data_dir", FOLDER, "./headgate-data", "",
          "holds the ledger, locks and, with the embedded store, the objects; relative to the"
          " working directory of the daemon"),
    Field("store_url", STORE_URL, Derived("`file://<data_dir>/store`", _store), "",
          "where objects are stored: `s3://BUCKET/PREFIX`, or `file:///FOLDER` on this machine"),
    Field("s3_endpoint_url", optional(ENDPOINT_URL), None, "",
          "an S3 server other than Amazon's, such as MinIO; boto3 finds the credentials"),
    Field("s3_region", optional(TEXT), None, "",
          "the bucket's region; by default boto3 decides"),
    Field("s3_sse", optional(one_of(*SSE)), None, "",
          "how S3 encrypts what the daemon and the compaction put; by default as the bucket says"),
    Field("s3_sse_kms_key_id", optional(TEXT), None, "",
          "the KMS key of `s3_sse`; by default the account's key for S3. The credentials need"
          " `kms:GenerateDataKey` and `kms:Decrypt` for it"),
    Field("shards", COUNT, Derived("one per CPU that the process may use", _cpus), "processes",
          "processes that serve, each pinned to one CPU; more shards than CPUs share these",
          check=between(1, SHARDS_MAX)),
    Field("ring_bytes", BYTES, 64 * MIB, "bytes",
          "memory of each shard for waiting requests and the newest records; at least 4 x"
          " `object_bytes_target` and 4 x `body_bytes_max`",
          check=ValueCheck("64KiB to 64GiB, whole pages of 4096", _whole_pages)),
    Field("object_bytes_target", BYTES, 4 * MIB, "bytes",
          "an upload starts when this much waits in a group; 8MiB is the other sensible value",
          check=between(4 * KIB, 1 * GIB, size_text)),
    Field("commit_window_min_ms", NUMBER, Derived("200 on S3, 0.5 embedded", _window_min),
          "milliseconds",
          "how long a request waits for others before its group uploads; after an idle window, a"
          " request is uploaded immediately", reloadable=True, check=above_zero(60_000)),
    Field("commit_window_max_ms", NUMBER, Derived("1000 on S3, 10 embedded", _window_max),
          "milliseconds", "the longest window under pressure",
          reloadable=True, check=above_zero(60_000)),
    Field("uploads_in_flight_max", COUNT, 4, "uploads",
          "objects that one shard uploads simultaneously; each holds a lease slot",
          check=between(1, 64)),
    Field("prices", PRICES, Derived(", ".join(f"`{name}`" for name in DEFAULT_PRICES),
                                    _default_prices), "US dollars",
          "what stores charge, by class: a table for each, with `put_usd_per_1000`,"
          " `get_usd_per_1000`, `list_usd_per_1000`, `put_usd_per_gib` and `get_usd_per_gib`;"
          " in the environment and with `--set`, JSON. There are already Amazon's S3 Standard"
          " and S3 Express One Zone in us-east-1, and one that costs nothing"),
    Field("store_class", TEXT, Derived("`standard` on S3, `free` embedded", _class), "",
          "which of the `prices` the store has"),
    Field("put_budget_usd_per_month", optional(NUMBER), None, "US dollars in 30 days",
          "what PUTs may cost in 30 days: windows, then objects grow as far as that needs,"
          " even with `governor = off`; nobody is refused"
          " ([budget](operations.md#what-it-costs))",
          reloadable=True, check=above_zero(1_000_000_000)),
    Field("hedge_puts", SWITCH, "false", "",
          "S3 only: send a PUT again that is slower than the recent 99th percentile, and take"
          " the first success; on average at most 1 in 50 PUTs is billed twice"),
    Field("lake_url", STORE_URL, Derived("`<store_url>/lake`", _lake), "",
          "where compaction writes the tables; the daemon's credentials must allow access"),
    Field("catalog_uri", TEXT, Derived("`sqlite:///<data_dir>/catalog.db`", _catalog), "",
          "the Iceberg catalog: the SQLAlchemy URL of an SQL database, or the http(s) URL of a REST"
          " catalog"),
    Field("catalog_name", optional(TEXT), None, "",
          "a catalog of pyiceberg's own configuration (`.pyiceberg.yaml`,"
          " `PYICEBERG_CATALOG__...`); overrides `catalog_uri`"),
    Field("compact_run_bytes", BYTES, 512 * MIB, "bytes",
          "bytes of L0 that one compaction task holds in memory; more makes larger files",
          check=between(1 * MIB, 64 * GIB, size_text)),
    Field("snapshot_keep_ms", COUNT, 86_400_000, "milliseconds",
          "how long old snapshots of a table are kept for readers; the newest is always kept",
          check=between(0, 3650 * 86_400_000)),
    Field("gc_grace_ms", COUNT, 3_600_000, "milliseconds",
          "how long an object that nothing needs any more is kept before `gc` deletes it",
          check=between(0, 366 * 86_400_000)),
    Field("dedupe_window_ms", COUNT, 120_000, "milliseconds",
          "a request with an idempotency key is remembered at least this long after it was stored",
          check=between(1_000, 30 * 86_400_000)),
    Field("dedupe_entries_max", COUNT, 1_000_000, "entries",
          "most idempotency keys that are remembered, at 300 bytes of ledger each; more keys"
          " shorten the window, with the alarm `dedupe_window_short`",
          check=between(1_000, 1_000_000_000)),
    Field("retention_interval_ms", COUNT, 5_000, "milliseconds",
          "how often caps and times to live are enforced", reloadable=True,
          check=between(100, 3_600_000)),
    Field("body_bytes_max", BYTES, 16 * MIB, "bytes",
          "largest body of a request, before and after decompression; a larger one gets 413",
          check=between(1 * KIB, 1 * GIB, size_text)),
    Field("record_bytes_max", BYTES, 1 * MIB, "bytes",
          "largest record in a request; a larger one gets 413",
          check=between(1, 1 * GIB, size_text)),
    Field("records_max", COUNT, 10_000, "records",
          "most records in a request; more get 413", check=between(1, 1_000_000)),
    Field("partitions_max", COUNT, 20_000, "partitions",
          "most partitions of all topics together; more get 422 `partitions_full`",
          check=between(1, 10_000_000)),
    Field("auto_create_topics", SWITCH, "true", "",
          "a request to produce creates its topic, unless it says `create=false`; with"
          " `false`, it gets 404 `unknown_topic`"),
    Field("ack_timeout_ms", COUNT, 20_000, "milliseconds",
          "how long a request waits for its acknowledgment; then it gets 503, or 504 if its"
          " upload has begun; a request may set its own",
          check=between(ACK_TIMEOUT_MS_MIN, ACK_TIMEOUT_MS_MAX)),
    Field("store_down_not_ready_ms", COUNT, 30_000, "milliseconds",
          "`/readyz` answers 503 when the store, the ledger or their disk has failed for this long;"
          " new requests are refused after 2 s of failure",
          check=between(0, 86_400_000)),
    Field("standstill_after_ms", COUNT, 30_000, "milliseconds",
          "how long a subscription or a router stands still before the alarm `stands_still`",
          check=between(1_000, 86_400_000)),
    Field("streams_max", COUNT, 10_000, "streams",
          "most streams (watches) of a shard; a further one gets 503. Each needs an open file",
          check=between(1, 1_000_000)),
    Field("connections_per_address_max", optional(COUNT), None, "connections",
          "most connections of a shard, without streams, from one address (IPv6: one network"
          " of 64 bits); by default 6,144, three quarters of all. A further one closes the one"
          " that has been idle longest, for a second at least, or gets 503",
          check=between(1, 1_000_000)),
    Field("cors_origins", ORIGINS, (), "",
          "other origins whose web pages may use the API: `https://example.org`, or `*` for all."
          " Pages of other origins get 403"),
    Field("allowed_hosts", HOSTS, (), "",
          "names under which the daemon is reached, in addition to loopback names and"
          " `listen`: host names, `*.example.org`, or `*` for all; others get 421, so that no"
          " web page can pose as the daemon's. Where `listen` is not loopback, the machine's"
          " name and all addresses are allowed too"),
    Field("admin_over_tcp", SWITCH, "false", "",
          "serve the admin API at `listen` too, for `compact` on another machine; it can"
          " destroy records"),
    Field("auth_file", optional(FILE), None, "",
          "the [tokens](access.md) that clients need. It is read again when it changes. Without"
          " one, every client that reaches the daemon may do everything"),
    Field("insecure_open", SWITCH, "false", "",
          "listen beyond loopback without an `auth_file`, where everybody may read, write and"
          " delete everything. With one, let `kafka_listen` take tokens there without TLS"),
    Field("limits", LIMITS, (), "",
          "how much all clients together may use: a table, or text like"
          " `requests=10000/s,bytes_in=100MiB/s` ([limits](access.md#limits))"),
    Field("tls_listen", optional(ADDRESS), None, "",
          "where producers and readers connect by [TLS](access.md#tls), in addition to `listen`;"
          " it needs `tls_certificate` and `tls_key`"),
    Field("tls_certificate", optional(FILE), None, "",
          "the daemon's certificate, in PEM format, and after it those of its issuers; read again"
          " when it changes. For `tls_listen` and `kafka_listen`"),
    Field("tls_key", optional(FILE), None, "",
          "the private key of that certificate, in PEM format without a password; only the"
          " daemon's user may have rights to it"),
    Field("tls_client_ca", optional(FILE), None, "",
          "certificates (PEM) of authorities whose clients may show a certificate instead of"
          " a token"),
    Field("kafka_listen", optional(ADDRESS), None, "",
          "where clients of [Kafka's protocol](kafka.md) connect first; shard N also listens on the"
          " port that is N + 1 higher. Port 0 takes free ports. With a `tls_certificate`, all of"
          " them take TLS only"),
    Field("kafka_advertised", optional(TEXT), None, "",
          "the host that clients of Kafka's protocol are told; by default the address at which"
          " each has reached the daemon"),
    Field("kafka_partitions", COUNT, 1, "partitions",
          "of a topic that a client of Kafka's protocol creates without a number: Kafka's"
          " `num.partitions`",
          check=between(1, PARTITIONS_MAX)),
    Field("audit_log", optional(FILE), None, "",
          "the [audit log](access.md#the-audit-log); if it cannot be written, changes are refused"),
    Field("trusted_proxies", NETWORKS, (), "",
          "addresses and networks of proxies whose `X-Forwarded-For` the audit log believes"),
    Field("governor", one_of("on", "off"), "on", "",
          "`on` makes the daemon slower under pressure, before it refuses anything; `off`"
          " keeps the shortest commit window and delays no push"),
    Field("pressure_weights", WEIGHTS, (), "",
          "how much each soft sensor counts, 0 to 1; 1 if it is not named. In the environment, text"
          " like `busy=0.5,store=0`",
          reloadable=True),
    Field("gate_pause_above", NUMBER, 0.80, "",
          "the pressure of memory above which producers are refused (503 `memory_short`), and of"
          " ring, memory or disk above which routers pause; 1 for never",
          check=above_zero(1)),
    Field("gate_resume_below", NUMBER, 0.65, "",
          "the pressure below which they go on; below `gate_pause_above`",
          check=above_zero(1)),
    Field("push_allow", ALLOWED, "public", "",
          "[whom push may call](push.md#who-may-be-called): `public`, host names,"
          " `*.example.com`, addresses, networks like `10.0.0.0/8`; empty for nobody",
          reloadable=True),
    Field("push_deny", DENIED, "own,metadata", "",
          "[whom push may not call](push.md#who-may-be-called): addresses, networks, `metadata`,"
          " `own`",
          reloadable=True),
    Field("push_ca_file", optional(FILE), None, "",
          "certificates (PEM) of authorities that push trusts in addition to those of the system"),
    Field("push_limiter_period_s", NUMBER, 30.0, "seconds",
          "how often a sender of a push subscription sets its rate, from what failed since"
          " (`LIMITER_PERIOD`)", check=above_zero(86_400)),
    Field("push_slow_delay_s", NUMBER, 60.0, "seconds",
          "from one attempt to the next in slow and heartbeat mode (`SLOW_DELAY`)",
          check=above_zero(86_400)),
    Field("push_balance_interval_s", NUMBER, 30.0, "seconds",
          "how often the senders of a subscription negotiate their shares of its rate"
          " (`BALANCE_INTERVAL`)",
          check=above_zero(86_400)),
    Field("log_level", one_of("debug", "info", "warning", "error"), "info", "",
          "the least severe lines that are written", reloadable=True),
    Field("log_format", one_of("text", "json"), "text", "",
          "lines for people, or one JSON object per line for programs"),
)  # fmt: skip
KEYS: tuple[str, ...] = tuple(field.name for field in FIELDS)
# Keys of earlier versions that nobody needed for themselves, and the value that each has now.
FIXED = {
    "push_speedup_tolerance": "0.01", "push_tolerance": "0.05", "push_convergence_factor": "0.2",
    "push_busy_tolerance": "0.1", "push_share_min_per_minute": "1", "push_change_min_percent": "1",
    "push_use_change_min_percent": "9", "push_heartbeat_delay_s": "push_slow_delay_s",
    "push_update_interval_s": "half of push_balance_interval_s", "scheduler": "on",
}  # fmt: skip
BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}
