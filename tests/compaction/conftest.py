"""A lake on a temporary folder for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.tables.lake import Lake
from compaction.tables.lake_listing import LakeListing
from tests.compaction.lakes import Book, catalog_properties, place_in


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake with the default catalog."""
    with Lake(place_in(tmp_path), catalog_properties(tmp_path)) as lake:
        yield lake


@pytest.fixture
def book() -> Book:
    """What the ledger knows of the lake: nothing yet."""
    return Book()


@pytest.fixture
def listing(lake: Lake) -> Iterator[LakeListing]:
    """What is in the lake's folder."""
    listing = LakeListing(lake.place)
    yield listing
    listing.close()
