"""The picture of push rates is the one in the documentation, and shows what is promised."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tools.push_chart import chart

REPOSITORY = Path(__file__).parent.parent.parent


def test_the_picture_in_docs_is_what_the_simulation_draws() -> None:
    drawn = chart()
    again = "draw it again: python -m tools.push_chart docs/push-rates.svg"
    assert (REPOSITORY / "docs" / "push-rates.svg").read_text() == drawn, again
    lines = [each for each in ElementTree.fromstring(drawn).iter() if "polyline" in each.tag]
    assert len(lines) == 4
    assert "push-rates.svg" in (REPOSITORY / "docs" / "push.md").read_text()
