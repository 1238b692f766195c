"""The configuration: layers and their precedence, refusals, derived defaults, reloading."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config import (
    FIELDS,
    KEYS,
    Config,
    ConfigError,
    Override,
    load,
    load_again,
    reload,
)
from daemon.config.lake_settings import lake_settings
from daemon.config.values import read_size, size_text
from daemon.governor.gate import Band, gate_band
from uploader.stores.base import Encryption
from uploader.stores.prices import DEFAULT_PRICES, FREE, Prices

CHECKOUT = Path(__file__).resolve().parents[3]


def refused(
    *overrides: tuple[str, str], environ: dict[str, str] | None = None, file: str | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, [Override(key, value) for key, value in overrides])
    return str(caught.value)


def loaded(*overrides: tuple[str, str]) -> Config:
    return load(None, {}, [Override(key, value) for key, value in overrides])


def written(folder: Path, text: str) -> str:
    path = folder / "headgate.toml"
    path.write_text(text)
    return str(path)


def test_the_keys_of_the_table_are_the_fields_of_the_config() -> None:
    assert (*KEYS, "origins", "config_file", "overrides") == Config.__struct_fields__


def test_without_any_configuration_the_embedded_store_lies_under_headgate_data() -> None:
    config = loaded()
    assert config.listen_host == "127.0.0.1" and config.listen_port == 7440
    assert config.data_dir == os.path.abspath("headgate-data")
    assert config.store_url == f"file://{config.data_dir}/store"
    assert config.shards == len(os.sched_getaffinity(0))
    assert (config.ring_bytes, config.object_bytes_target) == (64 << 20, 4 << 20)
    assert (config.body_bytes_max, config.record_bytes_max) == (16 << 20, 1 << 20)
    assert (config.records_max, config.uploads_in_flight_max) == (10_000, 4)
    assert set(config.origins.values()) == {"default"}


def test_shards_default_to_the_cpus_that_this_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert loaded().shards == 1
    finally:
        os.sched_setaffinity(0, before)


def test_each_layer_overrides_the_one_below_it_and_says_so(tmp_path: Path) -> None:
    file = written(tmp_path, "shards = 3\nlog_level = 'debug'\nrecords_max = 7\n")
    environ = {"HEADGATE_SHARDS": "5", "HEADGATE_LOG_LEVEL": "error"}
    config = load(file, environ, [Override("shards", "6"), Override("shards", "7", "--shards")])
    assert (config.shards, config.log_level, config.records_max) == (7, "error", 7)
    assert config.origins["shards"] == "--shards"
    assert config.origins["log_level"] == "environment HEADGATE_LOG_LEVEL"
    assert config.origins["records_max"] == f"file {file}"
    assert config.origins["listen"] == "default"


def test_environment_names_that_are_not_keys_are_ignored() -> None:
    environ = {"HEADGATE_URL": "http://x", "HEADGATE_MINIO": "/x", "headgate_shards": "9"}
    assert load(None, environ).origins == loaded().origins


def test_a_key_of_an_earlier_version_is_refused_with_the_value_that_it_has_now(
    tmp_path: Path,
) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text("push_tolerance = 0.1\npush_update_interval_s = 3\n")
    with pytest.raises(ConfigError) as refused:
        load(str(file), {"HEADGATE_PUSH_BUSY_TOLERANCE": "0.3"}, [])
    said = str(refused.value)
    assert f"'push_tolerance' (file {file}) is not a configuration key any more" in said
    assert "it is always 0.05, so remove it" in said
    assert "it is always half of push_balance_interval_s, so remove it" in said
    where = "environment HEADGATE_PUSH_BUSY_TOLERANCE"
    assert f"'push_busy_tolerance' ({where}) is not a configuration key any more" in said


def test_an_unknown_key_is_refused_by_name_with_the_nearest_one(tmp_path: Path) -> None:
    assert "'ring_byte' (--set) is not a configuration key; did you mean ring_bytes?" in refused(
        ("ring_byte", "1")
    )
    file = written(tmp_path, "shard = 2\n[store]\nurl = 's3://bucket'\n")
    message = refused(file=file)
    assert f"'shard' (file {file}) is not a configuration key; did you mean shards?" in message
    assert "'store'" in message and "did you mean store_url?" in message
    assert "the keys are listen, data_dir" in refused(("zzz", "1"))


def test_a_refused_value_names_key_value_limit_and_origin() -> None:
    message = refused(environ={"HEADGATE_SHARDS": "0"})
    assert message == "shards must be at least 1, got '0' (environment HEADGATE_SHARDS)"
    assert refused(("shards", "513")) == "shards must be at most 512, got '513' (--set)"
    assert refused(("shards", "x")) == "shards must be an integer, got 'x' (--set)"


def test_of_a_refused_value_of_any_length_a_part_is_shown(tmp_path: Path) -> None:
    long = tmp_path / "headgate.toml"
    long.write_text(f"push_allow = {['a.example'] * 1_001}\nlisten = {'x' * 100_000!r}\n")
    with pytest.raises(ConfigError) as caught:
        load(str(long), {})
    allowed, listen = caught.value.problems
    assert allowed.startswith("push_allow must have at most 1000 entries, not 1001, got ['a.ex")
    assert len(allowed) < 400 and len(listen) < 400


def test_all_problems_are_named_together() -> None:
    message = refused(("shards", "x"), ("log_level", "loud"), ("nonsense", "1"))
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", ""),
        ("shards", "1.5"),
        ("shards", "true"),
        ("shards", "9" * 30),
        ("ring_bytes", "64MB"),
        ("ring_bytes", "-1"),
        ("ring_bytes", "0.3KiB"),
        ("ring_bytes", "67108865"),
        ("commit_window_min_ms", "0"),
        ("commit_window_min_ms", "nan"),
        ("commit_window_max_ms", "inf"),
        ("commit_window_max_ms", "60001"),
        ("listen", "7440"),
        ("listen", "127.0.0.1:65536"),
        ("listen", ":7440"),
        ("listen", "::1:7440"),
        ("store_url", "s3://"),
        ("store_url", "s3://ab/prefix"),
        ("store_url", "file://relative/folder"),
        ("store_url", "file:///"),
        ("store_url", "s3://bucket/prefix?region=x"),
        ("store_url", "/a/folder"),
        ("s3_endpoint_url", "127.0.0.1:9000"),
        ("s3_endpoint_url", "http://[::1"),
        ("put_budget_usd_per_month", "0"),
        ("put_budget_usd_per_month", "-1"),
        ("gc_grace_ms", "-1"),
        ("data_dir", ""),
        ("log_format", "xml"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(key: str, value: str) -> None:
    message = refused((key, value))
    assert message.startswith(f"{key} must ") and message.endswith(f", got {value!r} (--set)")


@pytest.mark.parametrize("line", ["shards = true", "shards = 1.5", "listen = 7440", "shards = []"])
def test_a_value_of_the_wrong_toml_type_is_refused(line: str, tmp_path: Path) -> None:
    assert line.partition(" ")[0] in refused(file=written(tmp_path, line))


def test_a_store_has_the_prices_of_its_class() -> None:
    assert loaded().store_prices == FREE
    on_s3 = loaded(("store_url", "s3://bucket"))
    assert on_s3.store_class == "standard" and on_s3.store_prices == DEFAULT_PRICES["standard"]
    express = loaded(("store_url", "s3://bucket"), ("store_class", "express"))
    assert express.store_prices.put_usd_per_gib == 0.0032


def test_written_prices_are_added_to_the_default_classes(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "store_class = 'mine'\n[prices.mine]\nput_usd_per_1000 = 1\nget_usd_per_1000 = 0.5\n"
        "list_usd_per_1000 = 2\n[prices.standard]\nput_usd_per_1000 = 0.0054\n",
    )
    config = load(file, {}, [])
    assert config.store_prices == Prices(1.0, 0.5, 2.0)
    assert config.prices["standard"] == Prices(0.0054, 0.0004, 0.005)
    assert config.prices["express"] == DEFAULT_PRICES["express"]
    environ = {"HEADGATE_PRICES": '{"free": {"put_usd_per_1000": 3}}'}
    assert load(None, environ, []).store_prices.put_usd_per_1000 == 3


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[]", "must be a table of store classes"),
        ("{", "must be a table, or the same as JSON"),
        ('{"My": {}}', "must have classes of lower-case letters"),
        ('{"mine": 1}', "must have a table of prices for 'mine'"),
        ('{"standard": {"put": 1}}', "must not have 'put' for 'standard'; its keys are put_usd"),
        ('{"standard": {"put_usd_per_1000": -1}}', "standard.put_usd_per_1000, not -1"),
        ('{"standard": {"put_usd_per_1000": "1"}}', "standard.put_usd_per_1000, not '1'"),
        ('{"standard": {"put_usd_per_1000": true}}', "standard.put_usd_per_1000, not True"),
        ('{"mine": {"put_usd_per_1000": 1}}', "must have get_usd_per_1000 and list_usd_per_1000"),
    ],
)
def test_a_price_table_that_cannot_be_used_is_refused_by_name(written: str, said: str) -> None:
    message = refused(("prices", written))
    assert message.startswith("prices must ") and said in message


def test_a_store_class_without_prices_is_refused_by_name() -> None:
    assert refused(("store_class", "glacier")) == (
        "store_class must be one of prices (express, free, standard), got 'glacier' (--set): add"
        " [prices.glacier] to the configuration file"
    )


def test_a_budget_needs_a_price() -> None:
    message = refused(("put_budget_usd_per_month", "25"))
    assert "where a PUT costs nothing (store_class free, default), got 25 (--set)" in message
    assert loaded(("put_budget_usd_per_month", "")).put_budget_usd_per_month is None
    on_s3 = loaded(("put_budget_usd_per_month", "25"), ("store_url", "s3://bucket"))
    assert on_s3.put_budget_usd_per_month == 25


def test_a_configuration_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    assert missing in refused(file=missing) and "No such file" in refused(file=missing)
    assert "cannot be read" in refused(file=str(tmp_path))
    broken = written(tmp_path, "shards = = 1")
    assert broken in refused(file=broken) and "line 1" in refused(file=broken)
    Path(broken).write_bytes(b"shards = \xff\xfe")
    assert "is not valid TOML" in refused(file=broken)


def test_a_ring_below_four_targets_or_four_bodies_is_refused_with_both_names() -> None:
    message = refused(("ring_bytes", "32MiB"), ("object_bytes_target", "8388612"))
    assert "ring_bytes must be at least 4 x object_bytes_target" in message
    assert "4 x body_bytes_max (16MiB, default), got 32MiB (--set)" in message
    assert "raise ring_bytes to 64MiB or lower body_bytes_max to 8MiB" in message
    exact = loaded(("ring_bytes", "32MiB"), ("body_bytes_max", "8MiB"))
    assert exact.ring_bytes == 4 * exact.body_bytes_max


def test_windows_follow_the_kind_of_store() -> None:
    embedded, s3 = loaded(), loaded(("store_url", "s3://bucket/prefix"))
    assert (embedded.commit_window_min_ms, embedded.commit_window_max_ms) == (0.5, 10)
    assert (s3.commit_window_min_ms, s3.commit_window_max_ms) == (200, 1000)


def test_one_window_alone_moves_the_default_of_the_other_out_of_its_way() -> None:
    assert loaded(("commit_window_min_ms", "50")).commit_window_max_ms == 50
    assert loaded(("commit_window_max_ms", "0.25")).commit_window_min_ms == 0.25
    message = refused(("commit_window_min_ms", "5"), ("commit_window_max_ms", "4"))
    assert "commit_window_min_ms must be at most commit_window_max_ms (4, --set), got 5" in message


def test_the_store_follows_the_data_folder() -> None:
    assert loaded(("data_dir", "/srv/headgate")).store_url == "file:///srv/headgate/store"
    assert loaded(("data_dir", "/srv/a b%#?")).store_url == "file:///srv/a%20b%25%23%3F/store"


def test_an_ipv6_address_loses_its_brackets() -> None:
    config = loaded(("listen", "[::1]:8000"))
    assert (config.listen_host, config.listen_port) == ("::1", 8000)


@given(st.integers(0, 1 << 40))
def test_a_size_reads_back_as_it_is_written(size: int) -> None:
    assert read_size(size_text(size)) == read_size(str(size)) == size


def test_a_number_that_is_not_finite_is_refused_as_such() -> None:
    assert "must be a finite number" in refused(("commit_window_min_ms", "nan"))


def test_sizes_take_binary_suffixes_in_any_case() -> None:
    for text in ("64MiB", "64M", "64mib", "64 MiB", "67108864", "67108864B", "65536K", "0.0625G"):
        assert read_size(text) == 64 << 20


def test_reloading_applies_windows_and_log_level_and_keeps_the_rest(tmp_path: Path) -> None:
    file = written(tmp_path, "shards = 2\nlog_level = 'info'\n")
    old = load(file, {}, [Override("records_max", "5")])
    Path(file).write_text("shards = 4\nlog_level = 'debug'\ncommit_window_min_ms = 20\n")
    result = reload(old, load_again(old, {}))
    assert result.needs_restart == ("shards",)
    assert result.applied == ("commit_window_min_ms", "commit_window_max_ms", "log_level")
    assert (result.config.shards, result.config.log_level) == (2, "debug")
    assert (result.config.commit_window_min_ms, result.config.commit_window_max_ms) == (20, 20)
    assert result.config.records_max == 5
    again = reload(result.config, load_again(result.config, {}))
    assert again.applied == () and again.needs_restart == ("shards",)


def test_a_store_that_needs_a_restart_does_not_change_the_windows_before_it() -> None:
    result = reload(loaded(), loaded(("store_url", "s3://bucket")))
    assert result.needs_restart == ("store_url",) and result.applied == ()
    assert result.config.commit_window_min_ms == 0.5
    assert result.config.origins["store_url"] == "default"


def test_a_default_derived_from_a_kept_key_is_not_reported() -> None:
    result = reload(loaded(), loaded(("data_dir", "/srv/elsewhere")))
    assert result.needs_restart == ("data_dir",)


def test_exactly_the_documented_keys_are_reloadable() -> None:
    assert {field.name for field in FIELDS if field.reloadable} == {
        "commit_window_min_ms", "commit_window_max_ms", "log_level", "push_allow", "push_deny",
        "pressure_weights", "put_budget_usd_per_month", "retention_interval_ms",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pause", "resume", "said"),
    [
        ("0.5", "0.6", r"gate_resume_below must be below gate_pause_above \(0.5, --set\), got 0.6"),
        ("0.6", "0.6", r"gate_resume_below must be below gate_pause_above \(0.6, --set\), got 0.6"),
        ("1.5", "0.6", r"gate_pause_above must be above 0 and at most 1, got '1.5'"),
        ("0.8", "-1", r"gate_resume_below must be above 0 and at most 1, got '-1'"),
        ("nan", "0.6", r"gate_pause_above must be a finite number, got 'nan'"),
    ],
)
def test_a_gate_that_would_not_close_and_open_in_turn_is_refused(
    pause: str, resume: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        loaded(("gate_pause_above", pause), ("gate_resume_below", resume))
    assert gate_band(loaded()) == Band(0.8, 0.65)


@pytest.mark.parametrize(("written", "on"), [("true", True), ("false", False)])
def test_hedging_is_switched_for_s3(written: str, on: bool) -> None:
    given = [Override("store_url", "s3://bucket/x"), Override("hedge_puts", written)]
    assert load(None, {}, given).hedge_puts is on
    assert load(None, {}, given[:1]).hedge_puts is False


def test_hedging_is_refused_where_it_cannot_help_and_a_switch_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match=r"hedge_puts must be false .* got true \(--set\)"):
        load(None, {}, [Override("hedge_puts", "true")])
    with pytest.raises(ConfigError, match=r"hedge_puts must be true or false, got 'yes' \(--set\)"):
        load(None, {}, [Override("hedge_puts", "yes")])


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", ()),
        ("*", ("*",)),
        (
            "https://A.example, http://localhost:8080",
            ("https://a.example", "http://localhost:8080"),
        ),
        ("http://[::1]:80,http://[::1]:80", ("http://[::1]:80",)),
    ],
)
def test_origins_are_a_list_or_text_with_commas(
    tmp_path: Path, text: str, read: tuple[str, ...]
) -> None:
    assert loaded(("cors_origins", text)).cors_origins == read
    file = written(tmp_path, f"cors_origins = {text.split(',') if text else []}")
    assert load(file, {}).cors_origins == read
    assert loaded().cors_origins == ()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", ()),
        ("public", ("public",)),
        ("Public, hooks.Example.com,10.0.0.0/8", ("public", "hooks.example.com", "10.0.0.0/8")),
        ("*.example.com,[::1],::1,*.example.com", ("*.example.com", "[::1]", "::1")),
    ],
)
def test_whom_push_may_call_is_a_list_or_text_with_commas(
    tmp_path: Path, text: str, read: tuple[str, ...]
) -> None:
    assert loaded(("push_allow", text)).push_allow == read
    file = written(tmp_path, f"push_allow = {text.split(',') if text else []}")
    assert load(file, {}).push_allow == read
    assert loaded().push_allow == ("public",)


def test_whom_push_may_not_call_is_a_list_or_text_with_commas(tmp_path: Path) -> None:
    assert loaded().push_deny == ("own", "metadata")
    assert loaded(("push_deny", "")).push_deny == ()
    assert loaded(("push_deny", "Own, 10.0.0.0/8")).push_deny == ("own", "10.0.0.0/8")
    assert load(written(tmp_path, 'push_deny = ["::1"]'), {}).push_deny == ("::1",)
    with pytest.raises(ConfigError, match="push_deny must have `own`"):
        loaded(("push_deny", "a.example"))


@pytest.mark.parametrize("entry", ["http://a.example", "10.0.0.1/8", "a b", ",", "*", "127.1"])
def test_what_names_nobody_that_push_could_call_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="push_allow must have"):
        loaded(("push_allow", entry))


@pytest.mark.parametrize(
    "origin", ["example.org", "https://example.org/", "https://a/b", "https://*.a", "http://", ","]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins must have origins like https://"):
        loaded(("cors_origins", origin))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("push_slow_delay_s", "90000", "push_slow_delay_s must be above 0 and at most 86400"),
        ("push_limiter_period_s", "0", "push_limiter_period_s must be above 0"),
    ],
)  # fmt: skip
def test_times_of_push_outside_of_their_limits_are_refused(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loaded((key, value))


@pytest.mark.parametrize("listen", ["0.0.0.0:7440", "[::]:7440", "10.0.0.5:7440", "host:7440"])
def test_an_address_that_others_reach_needs_tokens_or_a_word_that_it_does_not(listen: str) -> None:
    with pytest.raises(ConfigError, match="must be a loopback address without an auth_file"):
        loaded(("listen", listen))
    assert loaded(("listen", listen), ("insecure_open", "true")).insecure_open
    assert loaded(("listen", listen), ("auth_file", "/etc/headgate/tokens.json")).listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:1", "[::1]:7440", "localhost:7440"])
def test_loopback_needs_none(listen: str) -> None:
    assert loaded(("listen", listen)).auth_file is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((("kafka_listen", "0.0.0.0:9092"),), "kafka_listen must be a loopback address"),
        ((("kafka_listen", "0.0.0.0:9092"), ("auth_file", "/t")), "without a tls_certificate"),
        ((("kafka_listen", "127.0.0.1:65534"), ("shards", "2")), "a port of at most 65533"),
        ((("kafka_listen", "[::1]:9092"), ("tls_key", "/k")), "tls_key needs tls_certificate,"),
        ((("tls_key", "/k"),), "tls_key needs tls_listen or kafka_listen"),
    ],
)
def test_kafka_takes_tokens_from_others_by_tls_only(
    more: tuple[tuple[str, str], ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        loaded(*more)
    assert loaded(("kafka_listen", "[::1]:9092")).kafka_address == ("::1", 9092)
    assert loaded(("kafka_listen", "127.0.0.1:65533"), ("shards", "2")).kafka_listen
    with_tokens = (("kafka_listen", "0.0.0.0:9092"), ("auth_file", "/t"))
    assert loaded(*with_tokens, ("tls_certificate", "/c"), ("tls_key", "/k")).kafka_listen
    assert loaded(*with_tokens, ("insecure_open", "true")).kafka_listen


def test_how_s3_encrypts_is_passed_on_as_s3_calls_it() -> None:
    on_s3 = ("store_url", "s3://bucket")
    assert loaded(on_s3).s3_encryption is None
    assert loaded(on_s3, ("s3_sse", "AES256")).s3_encryption == Encryption("AES256")
    with_key = loaded(on_s3, ("s3_sse", "aws:kms"), ("s3_sse_kms_key_id", "alias/headgate"))
    assert with_key.s3_encryption == Encryption("aws:kms", "alias/headgate")
    assert lake_settings(with_key).place.encryption == with_key.s3_encryption


def test_encryption_that_nothing_can_do_is_refused() -> None:
    assert refused(("s3_sse", "AES256")) == (
        "s3_sse must be left out where nothing is on S3, got aes256 (--set): encrypt the disk"
        " instead"
    )
    on_s3 = ("store_url", "s3://bucket")
    assert "got 'k' (--set) with s3_sse not set" in refused(on_s3, ("s3_sse_kms_key_id", "k"))
    assert "with s3_sse aes256" in refused(on_s3, ("s3_sse", "aes256"), ("s3_sse_kms_key_id", "k"))
