"""The benchmark with more data than memory, run on little data: it counts what was acknowledged."""

from __future__ import annotations

import pytest

from bench import beyond_memory

LIMIT_MIB = 2_560


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_more_data_than_memory_is_compacted_within_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert beyond_memory.main(["--limit-mib", str(LIMIT_MIB)]) == 0
    figures = dict(
        line.rsplit(None, 1) for line in capsys.readouterr().out.splitlines() if "  " in line
    )
    values = {name: float(text.replace(",", "")) for name, text in figures.items() if name[0] != "-"
              and name != "figure"}  # fmt: skip
    assert values["L0 compacted, GiB"] * 1024 > LIMIT_MIB
    assert values["all processes of the compaction, MiB"] <= LIMIT_MIB
    assert values["bytes read over bytes compacted"] <= 1.05
    assert values["rows in the tables"] == values["records acknowledged"] > 0
    assert values["largest Python worker, MiB"] > 0


def test_a_disk_without_room_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert beyond_memory.main(["--gib", "1e9"]) == 2
    assert "choose another disk with --work-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--gib", "0"], "--gib must be a number above 0, got 0.0"),
        (["--gib", "nan"], "--gib must be a number above 0, got nan"),
        (["--gib", "inf"], "--gib must be a number above 0, got inf"),
        (["--gib", "1", "--work-dir", "/nonexistent"], "--work-dir /nonexistent is not a folder"),
    ],
)
def test_impossible_arguments_are_named(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        beyond_memory.main(arguments)
    assert complaint in capsys.readouterr().err
