"""Switches of readers, if a daemon takes no request that is as large."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Concatenate

from msgspec.structs import replace

from compaction.access.http_calls import DaemonRefused
from compaction.access.operations import operation
from compaction.run.report import RunReport
from compaction.run.run import Run
from daemon.config import Override, load
from daemon.config.lake_settings import lake_settings
from daemon.upkeep.exclusive import Exclusive
from ledger import epochs, topics
from ledger.lake import lake_tables
from ledger.ledger import Ledger
from ledger.tx import P, T, WriteTx
from ledger.types import TopicConfig
from tests.ledger.lakes import commit, plan_all, switches_of
from tests.ledger.requests import Request

BODY_BYTES_MAX = 600


class SmallBodies(Exclusive):
    """A ledger whose owner takes small bodies only."""

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        size = len(operation(function).encode(args, kwargs))
        if size > BODY_BYTES_MAX:
            raise DaemonRefused(413, "too_large", f"the body has {size} bytes", {})
        return super().write(function, *args, **kwargs)


def test_tables_are_switched_one_by_one_and_one_that_is_too_large_says_what_to_do(
    tmp_path: Path,
) -> None:
    given = {"data_dir": tmp_path, "store_url": f"file://{tmp_path}/s", "lake_url": "file:///lake"}
    config = load(None, {}, [Override(key, str(value)) for key, value in given.items()])
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger:
        ledger.write(epochs.begin_incarnation, 1)
        made = [
            ledger.write(topics.create, name, TopicConfig(partitions=partitions), 1)[0]
            for name, partitions in (("a", 1), ("wide", 50), ("b", 1))
        ]
        for number, topic in enumerate(made, 1):
            parts = tuple((partition, 2) for partition in range(topic.config.partitions))
            commit(ledger, number, Request(topic.topic_id, parts))
        report = RunReport(False)
        run = Run(SmallBodies(ledger, config), lake_settings(config), 0, frozenset(), report)
        run.begin()
        switches = [
            replace(each, metadata_location=f"file:///lake/{each.metadata_location}")
            for each in switches_of(plan_all(ledger), report.run)
        ]
        assert not run._switch(switches, {topic.topic_id: topic.name for topic in made})
        run.end()
        run.stop()
        compacted = [ledger.read(lake_tables.compacted_seqs, topic.topic_id)[0] for topic in made]
    assert compacted == [2, 0, 2]
    (failed,) = report.failed
    assert failed.topic == "wide"
    assert "(files: 1, ranges of partitions: 50) is more than the daemon takes" in failed.problem
    assert "the body has" in failed.problem and "--data" in failed.hint
