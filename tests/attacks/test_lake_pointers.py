"""Whoever reaches the admin API, or the catalog, runs no code on the machine that compacts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compaction.access.http_calls import DaemonRefused, socket_address
from compaction.access.operations import NOW
from compaction.access.via_daemon import ViaDaemon
from compaction.run.java import find_java
from compaction.run.run import new_run
from daemon.access.token_file import Scope
from ledger import topics
from ledger.errors import SwitchRefused
from ledger.lake import catalog, lake_files, lake_tables, runs
from ledger.lake.catalog import Move, Pointer
from ledger.lake.types import LakeTable, NewFile, TableSwitch
from tests.attacks.conftest import BOTH_FORMS, Guard
from tests.e2e.daemon import ROOT, Daemon, running

CODE = """import os
class Provider:
    def __init__(self, *arguments):
        open(os.environ["CALLED"], "a").write("called")
"""


OPERATIONS: dict[str, Callable[[str, str], Any]] = {
    "add": lambda good, bad: (
        catalog.add,
        [Pointer("headgate", "another", good), Pointer("headgate", "other", bad)],
    ),
    "swap": lambda good, bad: (catalog.swap, [Move("headgate", "victim", good, bad)]),
}


@pytest.fixture(scope="module")
def daemon(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    data = tmp_path_factory.mktemp("attacked") / "data"
    with running(data, **guard.options(admin_over_tcp="true")) as daemon:
        yield daemon


@pytest.fixture
def access(daemon: Daemon, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> ViaDaemon:
    """The attacker's: by TCP with a stolen token of the compaction, if there are tokens."""
    if not guard.has_tokens:
        return ViaDaemon(socket_address(str(daemon.data)))
    with pytest.raises(DaemonRefused, match="401"):
        ViaDaemon(daemon.url)
    monkeypatch.setenv("HEADGATE_TOKEN", guard.stolen(Scope.COMPACT))
    return ViaDaemon(daemon.url)


def lake(daemon: Daemon) -> str:
    return f"file://{daemon.data}/store/lake"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "location",
    ["file:///tmp/x.metadata.json", "{lake}/../x.metadata.json", "{lake}", "{lake}-2/x", "/tmp/x",
     "s3://bucket/x", "http://127.0.0.1:1/x", ""],
)  # fmt: skip
@BOTH_FORMS
def test_a_pointer_never_leaves_the_lake(
    daemon: Daemon, access: ViaDaemon, operation: str, location: str
) -> None:
    good = f"{lake(daemon)}/victim-1/metadata/1.metadata.json"
    assert access.catalog(catalog.add, [Pointer("headgate", "victim", good)]) == [True]
    bad = location.replace("{lake}", lake(daemon))
    with pytest.raises(DaemonRefused, match="400"):
        access.catalog(*OPERATIONS[operation](good, bad))
    assert access.catalog(catalog.pointers, "headgate") == {"victim": good}


OUTSIDE = [
    "file:///etc/passwd",
    "{lake}/../x.parquet",
    "{lake}",
    "{lake}-2/x",
    "/tmp/x",
    "s3://b/x",
    "",
]
FILES: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "added": lambda good, bad: {"added": (NewFile(good, 9, 0, ()), NewFile(bad, 9, 0, ()))},
    "dropped": lambda good, bad: {"dropped": (good, bad)},
    "metadata": lambda good, bad: {"metadata_location": bad},
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("location", OUTSIDE)
@BOTH_FORMS
def test_no_file_that_readers_and_collections_use_is_outside_the_lake(
    daemon: Daemon, access: ViaDaemon, kind: str, location: str
) -> None:
    """A reader would read it, and a collection would remove it."""
    assert daemon.json("PUT", "/v0/topics/victim").status in (200, 201)
    topic = access.read(topics.page)[0]
    good, bad = f"{lake(daemon)}/victim-1/data/x", location.replace("{lake}", lake(daemon))
    switch = TableSwitch(topic.topic_id, "headgate.victim", good, {})
    planted = msgspec.structs.replace(switch, **FILES[kind](good, bad))
    run, said = new_run(), f"{bad!r} is not below {lake(daemon)}/"
    access.write(runs.begin, run, "a stranger", NOW)
    try:
        with pytest.raises(SwitchRefused, match=re.escape(said)):
            access.write(lake_tables.switch, run, [planted], NOW)
        assert access.read(lake_files.of_topic, topic.topic_id, with_dropped=True) == []
        assert access.read(lake_tables.states, [topic.topic_id])[0].table is None
    finally:
        access.write(runs.end, run, NOW)


@pytest.mark.parametrize("location", OUTSIDE)
@BOTH_FORMS
def test_a_table_is_not_moved_out_of_the_lake(
    daemon: Daemon, access: ViaDaemon, location: str
) -> None:
    table = LakeTable(1, "headgate.victim", f"{lake(daemon)}/victim-1/metadata/1.json", 1)
    with pytest.raises(SwitchRefused, match="is not below"):
        access.write(lake_tables.move, table, location.replace("{lake}", lake(daemon)))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)  # two starts of Spark
@pytest.mark.parametrize("guard", ["tokens"], indirect=True)
def test_a_tables_property_runs_nothing_and_other_topics_are_compacted(
    tmp_path: Path, guard: Guard
) -> None:
    properties = {"orders": "py-io-impl", "refunds": "write.py-location-provider.impl"}
    everything = [*properties, "payments"]
    (tmp_path / "planted.py").write_text(CODE)
    called = tmp_path / "called"
    environ = {
        **os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "CALLED": str(called),
        "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(find_java().home),
        "HEADGATE_TOKEN": guard.stolen(Scope.COMPACT),
    }  # fmt: skip

    def compact(daemon: Daemon) -> tuple[int, dict[str, list[dict[str, str]]]]:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "compact", "--url", daemon.url, "-o", "json"],
            cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)

    with running(tmp_path / "data", **guard.options(admin_over_tcp="true")) as daemon:
        for topic in everything:
            assert daemon.produce(topic, 1).status == 200
        assert compact(daemon)[0] == 0
        access = ViaDaemon(socket_address(str(daemon.data)))
        for topic, name in properties.items():
            location = access.catalog(catalog.pointers, "headgate")[topic]
            path = Path(location.removeprefix("file://"))
            metadata = json.loads(path.read_text())
            metadata["properties"][name] = "planted.Provider"
            planted = path.with_name("00099-planted.metadata.json")
            planted.write_text(json.dumps(metadata))
            move = Move("headgate", topic, location, f"file://{planted}")
            assert access.catalog(catalog.swap, [move]) == [True]
        for topic in everything:
            assert daemon.produce(topic, 2).status == 200
        code, report = compact(daemon)
        assert code == 1 and not called.exists()
        assert {failed["topic"] for failed in report["failed"]} == properties.keys()
        assert [table["topic"] for table in report["tables"]] == ["payments"]
