"""``headgate bench``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import cli
from commands.running import bench


def test_bench_runs_the_checkout_s_bench_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    without = CliRunner().invoke(cli.headgate, ["bench"])
    assert without.exit_code == 1 and "make bench" in without.stderr
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()  # or the checkout's own package comes first
    (tmp_path / "bench" / "__main__.py").write_text(
        "import pathlib, sys\npathlib.Path('seen').write_text(' '.join(sys.argv[1:]))\nsys.exit(5)"
    )
    assert CliRunner().invoke(cli.headgate, ["bench", "--help", "-x", "y"]).exit_code == 5
    assert (tmp_path / "seen").read_text() == "--help -x y"
