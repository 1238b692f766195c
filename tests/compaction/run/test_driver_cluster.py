"""The job on executors in processes of their own, reached through sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.inputs.place import Place
from compaction.run.driver import run_job
from compaction.run.session import spark_session
from tests.compaction.objects import rows_in, rows_of
from tests.compaction.run.test_driver import SHUFFLED, objects_in, topics_of


@pytest.mark.spark
@pytest.mark.slow
def test_executors_in_processes_of_their_own_do_the_same(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri())
    objects = objects_in(place)
    with spark_session("local-cluster[2,1,1024]", tmp_path) as cluster:
        assert str(cluster.sparkContext.master).startswith("local-cluster")
        outcome = run_job(cluster, place, "run-1", objects, topics_of(place), limits=SHUFFLED)
    assert outcome.reducers > 1
    expected = rows_of(place.store(), objects)
    for topic_id, topic in outcome.topics.items():
        assert rows_in(place, topic.files) == expected[topic_id]
    place.store().close()
