"""A compaction first asks for what it needs besides the wheel, in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ledger import epochs, topics
from tests.e2e.unit import settings

ROOT = Path(__file__).resolve().parents[3]
# As after `pip install headgate` without the extra: the packages cannot be imported.
WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from cli import headgate
headgate({arguments!r}, prog_name="headgate")
"""


def headgate_without(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    script = WITHOUT.format(missing=missing, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )


def with_something_to_compact(folder: Path) -> list[str]:
    """A data directory with an object that no table has."""
    from contextlib import closing, nullcontext

    from ledger.ledger import Ledger
    from ledger.private_files import make_folders
    from ledger.types import TopicConfig
    from tests.ledger.requests import Request, draft_of, lease

    make_folders(folder / "ledger")
    with closing(Ledger(folder / "ledger" / "ledger.db", nullcontext())) as ledger:
        ledger.write(epochs.begin_incarnation, 1)
        topic, _ = ledger.write(topics.create, "orders", TopicConfig(), 1)
        ledger.commit(draft_of(lease(1), [Request(topic.topic_id, ((0, 1),))]), 1, lambda _: None)
    return ["--data", str(folder)]


@pytest.mark.parametrize("missing", [["pyiceberg"], ["pyspark", "pyiceberg"]])
def test_a_wheel_without_the_spark_extra_says_so_in_one_sentence(
    tmp_path: Path, missing: list[str]
) -> None:
    for arguments in (with_something_to_compact(tmp_path / "data"), ["--check"]):
        done = headgate_without(missing, "compact", *arguments)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr and "pip install 'headgate[spark]'" in done.stderr
        assert f"{missing[0]} is not installed" in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_check_says_what_there_is() -> None:
    done = headgate_without([], "compact", "--check", "-o", "json")
    assert done.returncode == 0, done.stderr
    import msgspec

    found = msgspec.json.decode(done.stdout)
    assert sorted(found) == ["java", "pyiceberg", "pyspark"] and all(found.values())


def test_the_unit_checks_before_it_compacts() -> None:
    (check,) = settings(ROOT / "systemd" / "headgate-compact.service", "ExecStartPre")
    assert check == "/bin/sh -c 'exec headgate compact --check'"
