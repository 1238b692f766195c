"""Loads a Config from its layers, and reloads it.

A *key* is a field's name. Its value comes from the highest of four *layers* that has one: flags
and ``--set KEY=VALUE``, the environment (``HEADGATE_<KEY>``), the TOML file, the default. The
*origin* says which layer, for ``headgate config show --origin`` and for every message.

``load`` reports all problems together, each with key, value, limit and origin. It refuses unknown
keys, but ignores names in the environment that are not keys (HEADGATE_URL, HEADGATE_MINIO), because
they belong to other programs.

A Config is immutable and carries what it was loaded from, so that SIGHUP can load it again. This
module starts nothing and applies nothing; the supervisor does.
"""

from __future__ import annotations

import difflib
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from compaction.access.bearer import is_loopback
from compaction.access.redaction import redacted
from daemon.config.fields import (
    BY_NAME,
    ENVIRONMENT_PREFIX,
    FIELDS,
    FIXED,
    KEYS,
    RING_FACTOR,
    Config,
    ConfigError,
    Derived,
    Field,
    Override,
)
from daemon.config.values import size_text

# What was written is shown in messages, but not thousands of elements of it.
_SHOWN = reprlib.Repr()
_SHOWN.maxlist = _SHOWN.maxdict = 8
_SHOWN.maxstring = _SHOWN.maxother = 200


PORT_MAX = 65_535


class _Given(NamedTuple):
    """A value as it was written, and where."""

    value: object
    origin: str


def load(
    config_file: str | None, environ: Mapping[str, str], overrides: Sequence[Override] = ()
) -> Config:
    """Loads the configuration from all layers; the last of several overrides of a key counts.

    Raises ConfigError with all problems.
    """
    problems: list[str] = []
    given: dict[str, _Given] = {}
    if config_file is not None:
        for key, value in _read_file(config_file).items():
            _take(given, key, _Given(value, f"file {config_file}"), problems)
    for key in (*KEYS, *FIXED):
        name = ENVIRONMENT_PREFIX + key.upper()
        if name in environ:
            _take(given, key, _Given(environ[name], f"environment {name}"), problems)
    for override in overrides:
        _take(given, override.key, _Given(override.value, override.origin), problems)
    explicit: dict[str, Any] = {}
    for key, written in given.items():
        try:
            explicit[key] = _read(BY_NAME[key], written.value)
        except ValueError as error:
            value = written.value
            got = _SHOWN.repr(redacted(value) if isinstance(value, str) else value)
            problems.append(f"{key} {error}, got {got} ({written.origin})")
    if problems:
        raise ConfigError(problems)
    values = _with_defaults(explicit)
    origins = {key: given[key].origin if key in given else "default" for key in KEYS}
    _check_relations(values, origins)
    return Config(**values, origins=origins, config_file=config_file, overrides=tuple(overrides))


def load_again(config: Config, environ: Mapping[str, str]) -> Config:
    """Loads the same file and overrides again. Raises ConfigError."""
    return load(config.config_file, environ, config.overrides)


class Reload(msgspec.Struct, frozen=True):
    """``config`` is in force now. ``applied`` keys changed; ``needs_restart`` keys did not."""

    config: Config
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reload(old: Config, new: Config) -> Reload:
    """Takes the reloadable keys from ``new`` and keeps the others of ``old``.

    Derived defaults follow the values that are kept: a new store, which needs a restart, does not
    change the windows before that restart. A default derived from such a key is not reported.
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
    """The end of a sentence: which key was probably meant."""
    if key in FIXED:
        return f" any more: it is always {FIXED[key]}, so remove it"
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
        raise ConfigError([f"the configuration file {path} is not valid TOML: {error}"]) from error


def _take(given: dict[str, _Given], key: str, value: _Given, problems: list[str]) -> None:
    if key in BY_NAME:
        given[key] = value
    else:
        problems.append(f"{key!r} ({value.origin}) is not a configuration key{suggestion(key)}")


def _read(field: Field, value: object) -> object:
    read = field.type.read(value)
    if field.check is not None:
        field.check.test(read)
    return read


def _with_defaults(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all keys. A derived default sees explicit values and the defaults before it."""
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
        f"ring_bytes must be at least {RING_FACTOR} x {key} ({size_text(values[key])},"
        f" {origins[key]}), got {size_text(ring_bytes)} ({origins['ring_bytes']}): raise"
        f" ring_bytes to {size_text(RING_FACTOR * values[key])} or lower {key} to"
        f" {size_text(ring_bytes // RING_FACTOR)}"
        for key in ("object_bytes_target", "body_bytes_max")
        if ring_bytes < RING_FACTOR * values[key]
    ]
    if values["hedge_puts"] and not values["store_url"].startswith("s3://"):
        problems.append(
            f"hedge_puts must be false for a file:// store, got true ({origins['hedge_puts']}): a"
            " second write to the same disk is not faster"
        )
    problems += _encryption_problems(values, origins)
    problems += _price_problems(values, origins)
    low, high = values["commit_window_min_ms"], values["commit_window_max_ms"]
    if low > high:
        problems.append(
            f"commit_window_min_ms must be at most commit_window_max_ms ({high:g},"
            f" {origins['commit_window_max_ms']}), got {low:g} ({origins['commit_window_min_ms']})"
        )
    pause, resume = values["gate_pause_above"], values["gate_resume_below"]
    if resume >= pause:
        problems.append(
            f"gate_resume_below must be below gate_pause_above ({pause:g},"
            f" {origins['gate_pause_above']}), got {resume:g} ({origins['gate_resume_below']})"
        )
    problems += _access_problems(values, origins)
    if problems:
        raise ConfigError(problems)


def _access_problems(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    problems = _tls_problems(values, origins) + _kafka_problems(values, origins)
    if values["insecure_open"]:
        return problems
    if values["auth_file"] is not None:
        address = values["kafka_listen"]
        if values["tls_certificate"] is None and _reaches_others(address):
            problems.append(
                f"kafka_listen must be a loopback address without a tls_certificate, got {address}"
                f" ({origins['kafka_listen']}): its clients would send their tokens in clear text."
                " Set tls_certificate and tls_key, or set insecure_open = true"
            )
        return problems
    for key in ("listen", "tls_listen", "kafka_listen"):
        address = values[key]
        if _reaches_others(address):
            problems.append(
                f"{key} must be a loopback address without an auth_file, got {address}"
                f" ({origins[key]}): every client could read and delete everything. Create a"
                " token with `headgate tokens create` and set auth_file, or set insecure_open ="
                " true"
            )
    return problems


def _reaches_others(address: str | None) -> bool:
    return address is not None and not is_loopback(address.rpartition(":")[0].strip("[]"))


def _tls_problems(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    files = ("tls_certificate", "tls_key", "tls_client_ca")
    given = [key for key in files if values[key] is not None]
    if values["tls_listen"] is None and values["kafka_listen"] is None:
        return [
            f"{key} needs tls_listen or kafka_listen, got {values[key]} ({origins[key]}): set"
            f" tls_listen = HOST:PORT, or leave {key} out"
            for key in given
        ]
    missing = [key for key in files[:2] if values[key] is None]
    asking = given if values["tls_listen"] is None else ["tls_listen"]
    if not (missing and asking):
        return []
    return [
        (
            f"{asking[0]} needs {' and '.join(missing)}, got {values[asking[0]]}"
            f" ({origins[asking[0]]}): name the files, in PEM format"
        )
    ]


def _kafka_problems(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    address = values["kafka_listen"]
    if address is None:
        return []
    problems = []
    port, shards = int(address.rpartition(":")[2]), values["shards"]
    if port + shards > PORT_MAX:
        problems.append(
            f"kafka_listen needs {shards} ports after its own, up to {PORT_MAX}, got {address}"
            f" ({origins['kafka_listen']}): give a port of at most {PORT_MAX - shards}"
        )
    return problems


def _encryption_problems(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    sse, key = values["s3_sse"], values["s3_sse_kms_key_id"]
    problems = []
    on_s3 = any(values[name].startswith("s3://") for name in ("store_url", "lake_url"))
    if sse is not None and not on_s3:
        problems.append(
            f"s3_sse must be left out where nothing is on S3, got {sse} ({origins['s3_sse']}):"
            " encrypt the disk instead"
        )
    if key is not None and sse not in ("aws:kms", "aws:kms:dsse"):
        problems.append(
            "s3_sse_kms_key_id must be left out unless s3_sse is aws:kms or aws:kms:dsse, got"
            f" {key!r} ({origins['s3_sse_kms_key_id']}) with s3_sse {sse or 'not set'}"
        )
    return problems


def _price_problems(values: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    prices, name = values["prices"], values["store_class"]
    budget = values["put_budget_usd_per_month"]
    problem = ""
    if name not in prices:
        problem = (
            f"store_class must be one of prices ({', '.join(sorted(prices))}), got {name!r}"
            f" ({origins['store_class']}): add [prices.{name}] to the configuration file"
        )
    elif budget is not None and not prices[name].put_usd_per_1000:
        problem = (
            "put_budget_usd_per_month must be left out where a PUT costs nothing (store_class"
            f" {name}, {origins['store_class']}), got {budget:g}"
            f" ({origins['put_budget_usd_per_month']}): set store_class, or put_usd_per_1000 in"
            f" [prices.{name}]"
        )
    return [problem] if problem else []
