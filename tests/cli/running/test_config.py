"""``headgate config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from daemon.config import KEYS

CHECKOUT = Path(__file__).resolve().parents[3]


def test_config_show_prints_values_and_origins(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text("records_max = 5\n")
    command = ["config", "show", "--config", str(file), "--set", "log_level=debug"]
    environ = {"HEADGATE_LOG_FORMAT": "json"}
    runner = CliRunner(env=environ)
    values = json.loads(runner.invoke(cli.headgate, [*command, "-o", "json"]).stdout)
    assert tuple(values) == KEYS
    assert (values["records_max"], values["log_level"], values["log_format"]) == (
        5,
        "debug",
        "json",
    )
    both = json.loads(runner.invoke(cli.headgate, [*command, "--origin", "-o", "json"]).stdout)
    assert both["records_max"] == {"value": 5, "origin": f"file {file}"}
    assert both["log_format"]["origin"] == "environment HEADGATE_LOG_FORMAT"
    table = runner.invoke(cli.headgate, [*command, "--origin"]).stdout.splitlines()
    assert table[0].split() == ["key", "value", "origin"]
    assert ["log_level", "debug", "--set"] in [line.split() for line in table]
    assert "--set" not in runner.invoke(cli.headgate, command).stdout


def test_prices_are_shown_in_few_words_and_as_json_entirely() -> None:
    options = ["config", "show", "--set", 'prices={"free": {"put_usd_per_1000": 2}}']
    shown = CliRunner().invoke(cli.headgate, options)
    assert "prices  " in shown.stdout
    assert "per 1,000 PUTs: standard 0.005, express 0.00113, free 2\n" in shown.stdout
    values = json.loads(CliRunner().invoke(cli.headgate, [*options, "-o", "json"]).stdout)
    assert values["prices"]["express"]["get_usd_per_gib"] == 0.0006


def test_weights_are_shown_as_they_are_written() -> None:
    options = ["config", "show", "--set", "pressure_weights=busy=0.5,store=0"]
    assert "busy=0.5, store=0\n" in CliRunner().invoke(cli.headgate, options).stdout


def test_a_flag_goes_before_a_set_of_the_same_key() -> None:
    command = ["config", "show", "-o", "json", "--shards", "3", "--set", "shards=4"]
    assert json.loads(CliRunner().invoke(cli.headgate, command).stdout)["shards"] == 3


def test_config_docs_is_the_page() -> None:
    page = CliRunner().invoke(cli.headgate, ["config", "docs"]).stdout
    written = (CHECKOUT / "docs" / "configuration.md").read_text()
    assert written == page, "run: headgate config docs > docs/configuration.md"


@pytest.mark.parametrize("form", [[], ["-o", "json"], ["--origin"]])
@pytest.mark.parametrize(
    "uri", ["postgresql://me:se/cret@h/db", "mysql://h/db?password=secret", "x://me:se?cret@h"]
)
def test_no_password_is_shown(uri: str, form: list[str]) -> None:
    options = ["config", "show", *form, "--set", f"catalog_uri={uri}"]
    shown = CliRunner().invoke(cli.headgate, options)
    assert shown.exit_code == 0 and "cret" not in shown.output and "***" in shown.output


@pytest.mark.parametrize("value", ["http://me:secret@h:9000", "http://h:9000/?token=secret"])
def test_a_refused_value_is_named_without_its_password(value: str) -> None:
    options = ["config", "show", "--set", f"s3_endpoint_url={value}"]
    shown = CliRunner().invoke(cli.headgate, options)
    assert shown.exit_code == 2 and "secret" not in shown.output
    assert "boto3 finds them, got 'http://" in shown.output
