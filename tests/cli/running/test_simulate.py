"""``headgate simulate``: tables, JSON, charts, and input that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

import cli
from daemon.simulation.strategies import Strategy

SMALL = ["simulate", "--cores", "2", "--duration", "2", "--warm-up", "0"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.headgate, list(arguments))


def as_json(*arguments: str) -> Any:
    result = invoke(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_table_has_a_line_per_strategy() -> None:
    result = invoke(*SMALL, "--brokers", "3", "--load", "300KiB/s")
    assert result.exit_code == 0, result.output
    costs, uploads = (each.splitlines() for each in result.stdout.split("\n\n"))
    assert costs[0].split()[:4] == ["load", "strategy", "PUT/s", "$/month"]
    assert uploads[0].split()[2:5] == ["groups", "in", "flight"]
    for lines in (costs, uploads):
        assert [line.split()[2] for line in lines[1:]] == [each.value for each in Strategy]
        assert max(map(len, lines)) <= 80
    # 15 PUT/s of three brokers cost 3 x $64.80 a month.
    assert costs[2].split()[3:5] == ["15.0", "$194.40"]
    assert uploads[1].split()[3] == "2/2"


def test_json_has_the_scenario_and_all_figures_and_one_seed_gives_the_same() -> None:
    arguments = [*SMALL, "--load", "200KiB/s", "--set", "store_class=express", "--seed", "4"]
    found = as_json(*arguments)
    assert found == as_json(*arguments)
    assert found != as_json(*arguments[:-1], "5")
    assert (found["cores"], found["brokers"], found["seed"]) == (2, 5, 4)
    assert found["prices"]["put_usd_per_gib"] == 0.0032
    [load] = found["loads"]
    for each in load["strategies"]:
        puts = each["put_rate"] * 30 * 86400
        stored = each["stored_bytes_per_s"] * 30 * 86400 / (1 << 30)
        assert each["usd_per_month"] == pytest.approx(puts / 1000 * 0.00113 + stored * 0.0032)
        assert each["usd_per_year"] == pytest.approx(12 * each["usd_per_month"])
        assert each["timeline"] == []


def test_a_range_is_drawn_over_the_load(tmp_path: Path) -> None:
    chart = tmp_path / "load.svg"
    found = as_json(*SMALL, "--load", "20KiB/s..2MiB/s", "--points", "2", "--chart", str(chart))
    assert [load["load_bytes_per_s"] for load in found["loads"]] == [20 << 10, 2 << 20]
    for load in found["loads"]:
        rates = {each["strategy"]: each["stored_bytes_per_s"] for each in load["strategies"]}
        assert list(rates) == [each.value for each in Strategy]
        assert all(0.3 < rate / load["load_bytes_per_s"] < 3 for rate in rates.values())
    text = ElementTree.parse(chart).getroot()
    names = {each.text for each in text.iter("{http://www.w3.org/2000/svg}text")}
    assert {"per-shard", "single-stream", "adaptive", "load of all brokers, bytes a second",
            "PUT cost, US dollars a month", "upload groups, of one broker"} <= names  # fmt: skip


def test_a_trace_is_simulated_over_its_time(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("time,bytes_per_s,request_bytes\n0,90000,500\n60,9000,500\n")
    chart = tmp_path / "day.svg"
    result = invoke("simulate", "--cores", "2", "--load", str(tmp_path / "day.csv"),
                    "--duration", "4", "--chart", str(chart), "-o", "json")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stderr == "headgate: the 120 s of the load are simulated in 4 s\n"
    [load] = json.loads(result.stdout)["loads"]
    timeline = load["strategies"][2]["timeline"]
    assert len(timeline) == 100
    assert [timeline[0]["load_bytes_per_s"], timeline[-1]["load_bytes_per_s"]] == [90000, 9000]
    assert load["load_bytes_per_s"] == pytest.approx(49_500)
    assert "time, seconds" in chart.read_text()


def test_the_configuration_of_a_daemon_is_used(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(
        'store_url = "s3://bucket/prefix"\nstore_class = "mine"\ncommit_window_min_ms = 100\n'
        "[prices.mine]\nput_usd_per_1000 = 1\nget_usd_per_1000 = 0\nlist_usd_per_1000 = 0\n"
    )
    load = ["--config", str(file), "--load", "300KiB/s", "--brokers", "1"]
    found = as_json(*SMALL, *load)
    assert (found["commit_window_min_ms"], found["store_class"]) == (100, "mine")
    assert found["loads"][0]["strategies"][1]["usd_per_month"] == pytest.approx(25_920, rel=0.1)
    assert as_json(*SMALL, *load, "--window-ms", "50")["commit_window_min_ms"] == 50


def test_dollars_above_the_budget_are_explained() -> None:
    loaded = [*SMALL, "--cores", "1", "--brokers", "2", "--load", "20KiB/s", "--set"]
    settling = invoke(*loaded, "put_budget_usd_per_month=20")
    assert settling.exit_code == 0
    assert "PUT budget ($40.00 a month)" in settling.stderr
    assert "a longer --warm-up" in settling.stderr and "cannot always" not in settling.stderr
    kept = invoke(*loaded, "put_budget_usd_per_month=70", "-o", "json")
    assert kept.stderr == ""
    [load] = json.loads(kept.stdout)["loads"]
    assert [each["put_budget_holds"] for each in load["strategies"]] == [True] * 3
    never = invoke(*loaded, "put_budget_usd_per_month=0.1", "--set", "ack_timeout_ms=1000",
                   "--warm-up", "8")  # fmt: skip
    assert "cannot always be kept" in never.stderr and "--warm-up" not in never.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--load", "20MB/s"], "--load"),
        (["--load", "missing.csv"], "cannot read the trace missing.csv"),
        (["--cores", "0"], "--cores"),
        (["--brokers", "0"], "--brokers"),
        (["--points", "1"], "--points"),
        (["--seed", "x"], "--seed"),
        (["--duration", "nan"], "--duration"),
        (["--duration", "0"], "--duration"),
        (["--warm-up", "-1"], "--warm-up"),
        (["--warm-up", "2", "--load", "0=1KiB/s,9=1KiB/s"], "--warm-up"),
        (["--put-p50-ms", "nan"], "--put-p50-ms"),
        (["--put-p50-ms", "0"], "--put-p50-ms"),
        (["--put-p50-ms", "30", "--put-p99-ms", "29"], "at least --put-p50-ms (30), got 29"),
        (["--put-bandwidth", "fast"], "--put-bandwidth"),
        (["--commit-ms", "-1"], "--commit-ms"),
        (["--request-bytes", "0"], "--request-bytes"),
        (["--request-bytes", "40MiB"], "half of ring_bytes; got 41943040"),
        (["--window-ms", "0"], "commit_window_min_ms"),
        (["--object-bytes", "1GiB"], "ring_bytes must be at least 4 x object_bytes_target"),
        (["--set", "prices={}", "--set", "store_class=cheap"], "store_class must be one of"),
        (["--set", 'prices={"standard":{"put_usd_per_1000":-1}}'], "prices"),
        (["--set", "put_budget_usd_per_month=-5"], "put_budget_usd_per_month"),
        (["--set", "shade=red"], "shade"),
        (["--chart", "x.svg"], "one rate (20MiB/s) makes no line"),
        (["--load", "1KiB/s..2KiB/s", "--chart", "missing/x.svg"], "the folder of missing/x.svg"),
        (["--duration", "86400"], "lower --duration"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: list[str], problem: str) -> None:
    result = invoke("simulate", *arguments)
    assert result.exit_code == 2, result.output
    assert problem in result.stderr
    assert result.stdout == ""


def test_a_trace_with_requests_that_fit_into_no_ring_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,bytes_per_s,request_bytes\n0,1,40000000\n9,1,1\n")
    result = invoke("simulate", "--load", str(tmp_path / "a.csv"))
    assert result.exit_code == 2
    assert "half of ring_bytes; got 40000000" in result.stderr


def test_a_chart_that_cannot_be_written_fails_by_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    chart = str(tmp_path / "x.svg")
    Path(chart).symlink_to(tmp_path / "taken" / "x.svg")
    result = invoke(*SMALL, "--load", "0=1KiB/s,2=2KiB/s", "--warm-up", "0", "--chart", chart)
    assert result.exit_code == 1
    assert f"cannot write {chart}" in result.stderr
