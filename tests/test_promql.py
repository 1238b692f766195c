"""The tokenizer of PromQL finds each name, and refuses what is wrong."""

from __future__ import annotations

import pytest

from tests.promql import Matcher, Named, PromqlError, Selector, named_in


def test_metrics_conditions_and_lists_are_found() -> None:
    found = named_in(
        'histogram_quantile(0.99, sum by (le, stage) (rate(a_bucket{x="1", y=~"a|b"}[5m])))'
        " > 0.5 * b and on (job) c unless d"
    )
    conditions = (Matcher("x", "=", "1"), Matcher("y", "=~", "a|b"))
    assert found == Named(
        [Selector("a_bucket", conditions), Selector("b", ()), Selector("c", ()), Selector("d", ())],
        ["le", "stage", "job"],
    )
    assert named_in("topk(3, a) * on (i) group_left (v) b").labels == ["i", "v"]


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(a", "sum(a))", "rate(a[5m]", "sum(a}", "a{x=1}", 'a{x"1"}', "a{x='1'}", "rate(a[5])",
        "retention(a)", "sum by a (b)", "a ? b", "sum by (1) (a)",
    ],
)  # fmt: skip
def test_what_is_not_an_expression_is_refused(wrong: str) -> None:
    with pytest.raises(PromqlError):
        named_in(wrong)
