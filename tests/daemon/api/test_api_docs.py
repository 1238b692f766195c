"""Pages of docs/ have the parts that the routes, Structs and metrics make, each of them once."""

from __future__ import annotations

import re
from pathlib import Path

from daemon.api.api_docs import with_tables
from daemon.api.figures.metric_table import METRICS
from daemon.api.openapi import document
from daemon.api.routes import ROUTES
from daemon.schemas import api as schemas

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGE = (DOCS / "http-api.md").read_text()
DOCUMENT = document(ROUTES)


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    assert with_tables(PAGE) == PAGE, "run: python -m daemon.api.api_docs docs/http-api.md"


def test_the_page_of_metrics_lists_all_of_them() -> None:
    page = (DOCS / "observability" / "README.md").read_text()
    command = "python -m daemon.api.api_docs docs/observability/README.md"
    assert with_tables(page) == page, f"run: {command}"
    listed = re.findall(r"^- `(headgate_\w+)`", page, re.MULTILINE)
    assert sorted(listed) == [metric.name for metric in METRICS]


def test_every_type_of_the_openapi_document_has_its_table_on_the_page() -> None:
    shown = re.findall(r"^\*\*`(\w+)`\*\*: ", PAGE, re.MULTILINE)
    assert len(shown) == len(set(shown))
    # Their fields are those of TopicConfig and ShownConfig, all optional.
    settings = {"TopicSettings", "SubscriptionSettings"}
    assert set(DOCUMENT["components"]["schemas"]) - settings <= set(shown)


def test_answers_have_all_fields_and_settings_need_none() -> None:
    schemas_ = DOCUMENT["components"]["schemas"]
    figures = {"lag", "oldest_unfinished_ms", "topic", "count"}
    assert figures - {"topic"} <= set(schemas_["SubscriptionsStatus"]["required"])
    assert not schemas_["SubscriptionSettings"].get("required")


def test_a_part_tells_limits_defaults_and_meaning_and_shows_inner_types_once() -> None:
    page = with_tables(
        "<!-- struct: TrimRequest TopicPage -->\nstale\n<!-- end -->\n"
        "<!-- routes: /v0/plans/ -->\n<!-- end -->\n"
    )
    assert "stale" not in page
    assert "- `before_seq` (integer ≥ 0; required): records below it" in page
    assert "- `partition` (integer ≥ 0; default `0`)" in page
    assert "`partitions` (`PartitionState`[])" in page
    assert page.count("**`PartitionState`**") == 1
    assert "- `DELETE /v0/plans/{p}`: end a plan → `PlanEnded`; 404\n" in page
    assert (schemas.TrimRequest.__doc__ or "?") in page


def test_fields_that_an_earlier_type_explains_refer_to_it() -> None:
    page = with_tables("<!-- struct: PartitionState Trimmed -->\n<!-- end -->\n")
    own = page.split("**`Trimmed`**")[1]
    assert page.count("the first offset that can be read") == 1
    assert "- all fields: as in `PartitionState`" in own
    assert "- `topic` (string)" in own
    page = with_tables("<!-- struct: DiffRecord PartitionState DiffAnswer -->\n<!-- end -->\n")
    assert "- `head_seq`, `earliest_seq`: as in `PartitionState`" in page
    page = with_tables("<!-- struct: ProduceRequest ProduceQuery -->\n<!-- end -->\n")
    assert "- all fields but `advance`, `records`: as in `ProduceRequest`" in page


def test_fields_of_one_name_and_another_meaning_are_explained_each() -> None:
    page = with_tables("<!-- struct: SubscriptionSummary RouterStatus -->\n<!-- end -->\n")
    assert "- `lag`: records that are not finished" in page
    assert "- `lag`: offsets of the source that are not dealt with" in page


def test_fields_of_the_status_name_the_metrics_that_explain_them() -> None:
    page = with_tables("<!-- struct: StoreStatus -->\n<!-- end -->\n")
    assert "- metrics: `put_failures` (`headgate_store_put_failures_total`)" in page
    assert "each is repeated" not in page
    page = with_tables("<!-- struct: SubscriptionSummary -->\n<!-- end -->\n")
    assert "- metrics: " not in page


def test_a_scope_that_all_routes_of_a_list_need_is_above_it() -> None:
    page = with_tables("<!-- routes: /v0/tickets -->\n<!-- end -->\n")
    assert "Scope: `read`.\n\n- `POST /v0/tickets`: get a ticket" in page
    page = with_tables("<!-- routes: /v0/topics -->\n<!-- end -->\n")
    assert "- `PUT /v0/topics/{t}` (`manage`): create a topic" in page


def test_methods_that_do_the_same_on_a_path_are_listed_once() -> None:
    page = with_tables("<!-- routes: /v0/elastic -->\n<!-- end -->\n")
    assert page.count("`POST or PUT /v0/elastic/_bulk`") == 1 and "- `PUT" not in page


def test_routes_name_only_statuses_that_not_every_route_may_answer() -> None:
    page = with_tables("<!-- routes: /v0/plans -->\n<!-- end -->\n")
    assert ". `PlanRequest` → `Plan`; 404, 429\n" in page


def test_every_status_of_the_api_page_is_in_the_document() -> None:
    """The converse, so that the page for people stays correct."""
    rows = re.findall(r"^\*\*([0-9, ]+)\*\*$", PAGE, re.MULTILINE)
    on_page = {int(number) for row in rows for number in row.split(",")} - {500}
    documented = {
        int(status)
        for item in DOCUMENT["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
        for status in operation["responses"]
        if int(status) >= 400
    }
    of_http_itself = {403, 405, 414, 417, 431}  # before an operation is known
    assert on_page == documented | of_http_itself
    for path in DOCUMENT["paths"]:
        shown = path.replace("{topic}", "{t}").replace("{plan}", "{p}")
        assert shown.replace("{subscription}", "{s}") in PAGE, path


def test_every_code_that_the_server_can_answer_is_on_the_api_page() -> None:
    codes: set[str] = set()
    for source in (ROOT / "daemon").rglob("*.py"):
        text = source.read_text()
        codes |= set(re.findall(r"ApiError\(\s*\d{3},\s*\"(\w+)\"", text))
        codes |= set(re.findall(r"\.code = \"(\w+)\"", text))
    assert {"invalid", "throttled", "body_truncated"} <= codes
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()
