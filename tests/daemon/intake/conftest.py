"""The intake of one shard, for each test; its topics are shared, since no test changes one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from daemon.intake.topic_cache import TopicCache
from tests.daemon.intake.serving import BODY_BYTES_MAX, RING_BYTES, Intake, topics_in


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicCache]:
    with topics_in(tmp_path_factory.mktemp("intake")) as made:
        yield made


@pytest.fixture
def intake(topics: TopicCache) -> Iterator[Intake]:
    made = Intake(topics, RING_BYTES, BODY_BYTES_MAX)
    with closing(made):
        yield made
        made.check()
        # Nothing stays promised, whatever became of a request.
        application: Any = made.server.application
        assert application._budget.promised_bytes == 0
