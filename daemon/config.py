"""The configuration: one table of typed fields, and how a Config comes of it.

A *key* is a field's name. Its value comes from the highest of four *layers* that has one: flags
and ``--set KEY=VALUE``, the environment (``HEADGATE_<KEY>``), the TOML file, the default. The
*origin* says which, for ``headgate config show --origin`` and for every refusal. A *derived*
default follows from other keys (windows from the kind of store, the store from the folder).

All problems are found before anything is refused, and a refusal names key, value, limit and
origin. Environment names that are no key (HEADGATE_URL, HEADGATE_MINIO) are ignored, for they
belong to other programs; unknown keys anywhere else are refused.

A Config is immutable and carries what it was made of, so that SIGHUP can make it again. This
module starts nothing and applies nothing; the supervisor does.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from daemon.config_values import (
    ADDRESS,
    BYTES,
    COUNT,
    ENDPOINT_URL,
    FOLDER,
    NUMBER,
    STORE_URL,
    SWITCH,
    TEXT,
    Check,
    ValueType,
    above_zero,
    between,
    one_of,
    optional,
    size_text,
)
from daemon.intake.formats.limits import ACK_TIMEOUT_MS_MAX, ACK_TIMEOUT_MS_MIN
from ledger.dedupe import DedupeLimits

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RING_FACTOR = 4  # a ring holds 4 objects or 4 bodies, or a pull would wait for the write it blocks
SHARDS_MAX = 512  # the largest machines have that many hardware threads
ENVIRONMENT_PREFIX = "HEADGATE_"


class ConfigError(ValueError):
    """A configuration that cannot be used. ``problems`` are whole sentences, one each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Override(msgspec.Struct, frozen=True):
    """One KEY=VALUE from the command line; ``origin`` is how the user wrote it."""

    key: str
    value: str
    origin: str = "--set"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon runs with. Bytes, milliseconds and dollars as the names say.

    The last three fields are no keys: where each value came from, and what to load again.
    """

    listen: str
    data_dir: str
    store_url: str
    s3_endpoint_url: str | None
    s3_region: str | None
    shards: int
    ring_bytes: int
    object_bytes_target: int
    commit_window_min_ms: float
    commit_window_max_ms: float
    uploads_in_flight_max: int
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
    ack_timeout_ms: int
    store_down_not_ready_ms: int
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
    def ledger_path(self) -> str:
        return os.path.join(self.data_dir, "ledger", "ledger.db")

    @property
    def dedupe_limits(self) -> DedupeLimits:
        return DedupeLimits(self.dedupe_window_ms, self.dedupe_entries_max)


class Derived(NamedTuple):
    """A default that follows from the values known so far; ``text`` says how."""

    text: str
    of: Callable[[Mapping[str, Any]], object]


class Field(NamedTuple):
    """One key. ``why`` is the sentence in docs/configuration.md."""

    name: str
    type: ValueType
    default: object
    unit: str
    why: str
    reloadable: bool = False
    check: Check | None = None


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


def _no_budget_yet(value: object) -> None:
    if value is not None:
        raise ValueError("is not supported yet: the window does not follow a budget; leave it out")


def _whole_pages(value: object) -> None:
    between(64 * KIB, 64 * GIB, size_text).test(value)
    if isinstance(value, int) and value % 4096:
        raise ValueError("is no multiple of 4096: a ring is made of whole memory pages")


FIELDS: tuple[Field, ...] = (
    Field("listen", ADDRESS, "127.0.0.1:7440", "",
          "where producers and readers connect; every shard listens there; port 0 takes a free one,"
          " which the log names"),
    Field("data_dir", FOLDER, "./headgate-data", "",
          "the ledger, locks and, on the embedded store, the objects; relative to the working"
          " folder of the daemon"),
    Field("store_url", STORE_URL, Derived("`file://<data_dir>/store`", _store), "",
          "where objects go: `s3://BUCKET/PREFIX`, or `file:///FOLDER` on this machine"),
    Field("s3_endpoint_url", optional(ENDPOINT_URL), None, "",
          "an S3 that is not Amazon's, e.g. MinIO; credentials come from boto3's own chain"),
    Field("s3_region", optional(TEXT), None, "",
          "the bucket's region; without it boto3's own chain decides"),
    Field("shards", COUNT, Derived("one per CPU that the process may use", _cpus), "processes",
          "each is pinned to one CPU; more than CPUs is allowed, they then share",
          check=between(1, SHARDS_MAX)),
    Field("ring_bytes", BYTES, 64 * MIB, "bytes",
          "memory of each shard for requests that wait and for the newest records; at least 4 x"
          " `object_bytes_target` and 4 x `body_bytes_max`",
          check=Check("64KiB to 64GiB, whole pages of 4096", _whole_pages)),
    Field("object_bytes_target", BYTES, 4 * MIB, "bytes",
          "an upload starts when a group has this much waiting; 8MiB is the other sensible value",
          check=between(4 * KIB, 1 * GIB, size_text)),
    Field("commit_window_min_ms", NUMBER, Derived("200 on S3, 0.5 embedded", _window_min),
          "milliseconds",
          "how long a request may wait for company before its group uploads; a request after an"
          " idle window goes at once", reloadable=True, check=above_zero(60_000)),
    Field("commit_window_max_ms", NUMBER, Derived("1000 on S3, 10 embedded", _window_max),
          "milliseconds", "how far the window may grow under pressure",
          reloadable=True, check=above_zero(60_000)),
    Field("uploads_in_flight_max", COUNT, 4, "uploads",
          "objects that one shard uploads at the same time; each holds a lease slot",
          check=between(1, 64)),
    Field("put_budget_usd_per_month", optional(NUMBER), None, "US dollars",
          "a ceiling for the bill of PUT requests, held by a longer window; not supported yet, a"
          " value is refused", check=Check("must be absent", _no_budget_yet)),
    Field("hedge_puts", SWITCH, "false", "",
          "a PUT that is slower than the recent 99th percentile is sent a second time, and the"
          " first success counts; both are billed, at most 1 in 50 on average; S3 only"),
    Field("lake_url", STORE_URL, Derived("`<store_url>/lake`", _lake), "",
          "where compaction writes the tables; a store that the daemon's credentials open too"),
    Field("catalog_uri", TEXT, Derived("`sqlite:///<data_dir>/catalog.db`", _catalog), "",
          "the Iceberg catalog: an SQL database by its SQLAlchemy address, or a REST catalog by its"
          " http(s) address"),
    Field("catalog_name", optional(TEXT), None, "",
          "a catalog as pyiceberg's own configuration (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`)"
          " names it, with all its properties; it goes before `catalog_uri`"),
    Field("compact_run_bytes", BYTES, 512 * MIB, "bytes",
          "how much of L0 one task of a compaction holds in memory; more gives larger files",
          check=between(1 * MIB, 64 * GIB, size_text)),
    Field("snapshot_keep_ms", COUNT, 86_400_000, "milliseconds",
          "a table's former snapshots are kept this long for readers; the newest always",
          check=between(0, 3650 * 86_400_000)),
    Field("gc_grace_ms", COUNT, 3_600_000, "milliseconds",
          "an object that nothing needs any more is kept this long before `gc` deletes it",
          check=between(0, 366 * 86_400_000)),
    Field("dedupe_window_ms", COUNT, 120_000, "milliseconds",
          "a request with an idempotency key is known for at least this long after it was stored",
          check=between(1_000, 30 * 86_400_000)),
    Field("dedupe_entries_max", COUNT, 1_000_000, "entries",
          "most idempotency keys that are known, 300 bytes of ledger each; more within a window"
          " shorten it, and the alarm `dedupe_window_short` says so",
          check=between(1_000, 1_000_000_000)),
    Field("retention_interval_ms", COUNT, 5_000, "milliseconds",
          "how often topics with a cap or a time to live are looked at; what is over a limit goes"
          " that much later at most", reloadable=True, check=between(100, 3_600_000)),
    Field("body_bytes_max", BYTES, 16 * MIB, "bytes",
          "largest body of a request, also after decompression; above it: 413",
          check=between(1 * KIB, 1 * GIB, size_text)),
    Field("record_bytes_max", BYTES, 1 * MIB, "bytes",
          "largest record in a request; above it: 413", check=between(1, 1 * GIB, size_text)),
    Field("records_max", COUNT, 10_000, "records",
          "most records in a request; above it: 413", check=between(1, 1_000_000)),
    Field("ack_timeout_ms", COUNT, 20_000, "milliseconds",
          "how long a request waits for its acknowledgment; then it is taken back and answered 503,"
          " or its connection is closed if its object is on the way; a request may say another",
          check=between(ACK_TIMEOUT_MS_MIN, ACK_TIMEOUT_MS_MAX)),
    Field("store_down_not_ready_ms", COUNT, 30_000, "milliseconds",
          "`/readyz` answers 503 once the store, the ledger or their disk has failed for this long;"
          " new requests are refused after 2 s",
          check=between(0, 86_400_000)),
    Field("log_level", one_of("debug", "info", "warning", "error"), "info", "",
          "the least important lines that are still written", reloadable=True),
    Field("log_format", one_of("text", "json"), "text", "",
          "lines for people, or one JSON object a line for programs"),
)  # fmt: skip
KEYS: tuple[str, ...] = tuple(field.name for field in FIELDS)
_BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}


class _Given(NamedTuple):
    """A value as somebody wrote it, and where."""

    value: object
    origin: str


def load(
    config_file: str | None, environ: Mapping[str, str], overrides: Sequence[Override] = ()
) -> Config:
    """The configuration from all layers; of several overrides of a key the last one counts.

    Raises ConfigError with every problem that was found.
    """
    problems: list[str] = []
    given: dict[str, _Given] = {}
    if config_file is not None:
        for key, value in _read_file(config_file).items():
            _take(given, key, _Given(value, f"file {config_file}"), problems)
    for key in KEYS:
        name = ENVIRONMENT_PREFIX + key.upper()
        if name in environ:
            given[key] = _Given(environ[name], f"environment {name}")
    for override in overrides:
        _take(given, override.key, _Given(override.value, override.origin), problems)
    explicit: dict[str, Any] = {}
    for key, written in given.items():
        try:
            explicit[key] = _read(_BY_NAME[key], written.value)
        except ValueError as error:
            problems.append(f"{key} = {written.value!r} ({written.origin}) {error}")
    if problems:
        raise ConfigError(problems)
    values = _with_defaults(explicit)
    origins = {key: given[key].origin if key in given else "default" for key in KEYS}
    _check_relations(values, origins)
    return Config(**values, origins=origins, config_file=config_file, overrides=tuple(overrides))


def load_again(config: Config, environ: Mapping[str, str]) -> Config:
    """What ``load`` gives now for the same file and overrides. Raises ConfigError."""
    return load(config.config_file, environ, config.overrides)


class Reload(msgspec.Struct, frozen=True):
    """``config`` holds from now on; ``applied`` keys changed, ``needs_restart`` keys did not."""

    config: Config
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reload(old: Config, new: Config) -> Reload:
    """Takes the reloadable keys from ``new`` and keeps the others of ``old``.

    Defaults are derived again from what is kept: a store that needs a restart does not bring its
    windows before it comes itself. A default that follows such a key is not reported beside it.
    """
    needs_restart = []
    kept: dict[str, Any] = {}
    origins = dict(new.origins)
    for field in FIELDS:
        before, after = getattr(old, field.name), getattr(new, field.name)
        is_default = old.origins[field.name] == new.origins[field.name] == "default"
        if field.reloadable:
            if new.origins[field.name] != "default":
                kept[field.name] = after
            continue
        kept[field.name] = before
        origins[field.name] = old.origins[field.name]
        if before != after and not is_default:
            needs_restart.append(field.name)
    values = _with_defaults(kept)
    config = msgspec.structs.replace(new, **values, origins=origins)
    applied = tuple(key for key in KEYS if getattr(old, key) != values[key])
    return Reload(config, applied, tuple(needs_restart))


def suggestion(key: str) -> str:
    """The end of a sentence that names the key that was probably meant."""
    near = difflib.get_close_matches(key.lower().replace("-", "_"), KEYS, n=1, cutoff=0.5)
    containing = [known for known in KEYS if len(key) > 3 and key.lower() in known]
    if near or containing:
        return f"; did you mean {(near or containing)[0]}?"
    return "; the keys are " + ", ".join(KEYS)


def _read_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([f"the configuration file {path} cannot be read: {reason}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"the configuration file {path} is no TOML: {error}"]) from error


def _take(given: dict[str, _Given], key: str, value: _Given, problems: list[str]) -> None:
    if key in _BY_NAME:
        given[key] = value
    else:
        problems.append(f"{key!r} ({value.origin}) is no key{suggestion(key)}")


def _read(field: Field, value: object) -> object:
    read = field.type.read(value)
    if field.check is not None:
        field.check.test(read)
    return read


def _with_defaults(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """All keys' values. Derived defaults see explicit values and, of defaults, earlier rows."""
    values = dict(explicit)
    for field in FIELDS:
        if field.name not in values:
            default = field.default
            if isinstance(default, Derived):
                values[field.name] = default.of(values)
            else:
                values[field.name] = None if default is None else field.type.read(default)
    return values


def _check_relations(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    ring_bytes = values["ring_bytes"]
    problems = [
        f"ring_bytes = {size_text(ring_bytes)} ({origins['ring_bytes']}) is less than"
        f" {RING_FACTOR} x {key} = {size_text(values[key])} ({origins[key]}): raise"
        f" ring_bytes to {size_text(RING_FACTOR * values[key])} or lower {key} to"
        f" {size_text(ring_bytes // RING_FACTOR)}"
        for key in ("object_bytes_target", "body_bytes_max")
        if ring_bytes < RING_FACTOR * values[key]
    ]
    if values["hedge_puts"] and not values["store_url"].startswith("s3://"):
        problems.append(
            f"hedge_puts = true ({origins['hedge_puts']}) is for S3: a second write to the disk"
            " that holds up the first one is no faster; leave it out"
        )
    low, high = values["commit_window_min_ms"], values["commit_window_max_ms"]
    if low > high:
        problems.append(
            f"commit_window_min_ms = {low:g} ({origins['commit_window_min_ms']}) is more than"
            f" commit_window_max_ms = {high:g} ({origins['commit_window_max_ms']})"
        )
    if problems:
        raise ConfigError(problems)
