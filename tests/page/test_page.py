"""The page at / in Chromium: it shows a daemon, to everybody, and does what nobody else says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.daemon import Daemon, ask, wait_until
from tests.e2e.subscribing import Subscription
from tests.page.conftest import Locked, Look

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
HOSTILE = "<img src=x onerror=document.title='owned'>"
PHONE = {"width": 320, "height": 640}


def ready(page: Page) -> Page:
    expect(page.locator("#state")).to_have_text("ready")
    return page


def row(page: Page, table: str, name: str) -> Any:
    return page.locator(f"#{table} tbody tr", has_text=name)


def test_figures_appear_and_follow_what_is_produced(daemon: Daemon, look: Look) -> None:
    assert daemon.produce("orders", 1, 2, 3).status == 200
    page = ready(look(daemon))
    expect(row(page, "topics", "orders").locator("td").nth(2)).to_have_text("3")
    assert daemon.produce("orders", 4).status == 200
    expect(row(page, "topics", "orders").locator("td").nth(2)).to_have_text("4")
    expect(page.locator("#flow")).to_contain_text("MB/s")
    expect(page.locator("#cost")).to_contain_text("in one stream")
    expect(page.locator("#sensors")).to_contain_text("memory")
    expect(page.locator("#store")).to_contain_text("none in force")
    assert daemon.url in page.locator("#curl").inner_text()


def test_the_tree_shows_groups_and_their_shards(daemon: Daemon, look: Look) -> None:
    page = ready(look(daemon))
    expect(page.locator("#tree .group")).to_have_text(re.compile("group 0"))
    expect(page.locator("#tree")).to_have_attribute("aria-label", "group 0: shards 0 1")
    expect(page.locator("#tree span").last).to_have_text("shard 1")
    expect(page.locator("#shards tbody tr")).to_have_count(2)
    expect(page.locator("#shards meter")).to_have_count(2)


def test_what_stands_still_is_shown_with_its_reason_as_text(daemon: Daemon, look: Look) -> None:
    assert daemon.json("PUT", "/v0/topics/jobs", {"partitions": 1}).status == 201
    found = Subscription(daemon, "jobs", redeliveries_max=0)
    found.produce(HOSTILE)
    found.nack("c", found.take("c", 1), reason=f"bad {HOSTILE}")
    page = ready(look(daemon))
    stands = row(page, "standing", "jobs / s")
    expect(stands).to_contain_text(f"bad {HOSTILE}")
    expect(row(page, "subscriptions", "jobs / s").locator("td").nth(4)).to_have_text("1")
    expect(page.locator("#notes")).to_contain_text("stands_still")
    assert violations(page) == [], "with notes, too"
    assert page.locator("img").count() == 0
    assert page.title() == "Headgate"


def test_nothing_but_the_page_itself_runs_in_it(daemon: Daemon, browser: Any) -> None:
    context = browser.new_context()
    page = ready_at(context.new_page(), daemon)
    page.evaluate(
        """() => {
            window.broken = [];
            document.addEventListener("securitypolicyviolation",
                (event) => window.broken.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "document.title = 'owned'";
            const image = document.createElement("img");
            image.src = "http://localhost:1/";
            document.body.append(script, image);
            document.body.insertAdjacentHTML("beforeend", "<b onclick=1 style='color:red'>x</b>");
        }"""
    )
    page.wait_for_function("window.broken.length >= 4")
    assert sorted(set(page.evaluate("window.broken"))) == [
        "img-src", "script-src-attr", "script-src-elem", "style-src-attr",
    ]  # fmt: skip
    assert page.title() == "Headgate"
    context.close()


def ready_at(page: Page, daemon: Daemon) -> Page:
    page.goto(f"{daemon.url}/")
    return ready(page)


def test_the_page_is_open_and_allows_nothing_but_itself(locked: Locked) -> None:
    answer = ask(locked.daemon.port, "GET", "/")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert ask(locked.daemon.port, "GET", "/v0/status/watch").status == 401
    assert ask(locked.daemon.port, "POST", "/").status == 405


def test_a_token_is_asked_for_and_kept_by_the_tab_alone_and_shows_its_topics(
    locked: Locked, look: Look
) -> None:
    page = look(locked.daemon, refused=(401,))
    box = page.locator("#ask-token")
    expect(box).to_be_focused()
    assert page.locator("#topics").inner_text() == ""
    box.fill("hg_wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#ask-why")).to_contain_text("token")
    expect(box).to_have_value("")
    box.fill(locked.owner)
    page.keyboard.press("Enter")
    ready(page)
    expect(row(page, "topics", "hidden-b")).to_have_count(1)
    assert page.evaluate("Object.values(sessionStorage)") == [locked.owner]
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    assert locked.owner not in page.content()
    page.locator("#token").click()
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("#ask")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    box.fill(locked.limited)
    page.keyboard.press("Enter")
    expect(row(ready(page), "topics", "seen-a")).to_have_count(1)
    expect(row(page, "topics", "hidden-b")).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_axe_finds_no_serious_violation(
    daemon: Daemon, look: Look, scheme: str, width: int
) -> None:
    view = {"width": width, "height": 800}
    page = ready(look(daemon, color_scheme=scheme, viewport=view))
    assert violations(page) == []


def violations(page: Page) -> list[tuple[str, str, str]]:
    """What axe finds serious."""
    page.evaluate(f"{AXE};0")
    found = page.evaluate("axe.run()")["violations"]
    return [
        (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_it_is_dark_where_the_system_is(daemon: Daemon, look: Look) -> None:
    def ground(scheme: str) -> int:
        page = ready(look(daemon, color_scheme=scheme))
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", color)[:3]))

    assert ground("dark") < 150 < 600 < ground("light")


def test_a_phone_scrolls_in_one_direction(daemon: Daemon, look: Look) -> None:
    assert daemon.produce("a" * 200, 1).status == 200
    page = ready(look(daemon, viewport=PHONE))
    expect(row(page, "topics", "aaa")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_keyboard_is_enough(daemon: Daemon, look: Look) -> None:
    page = ready(look(daemon))
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the figures")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#pause")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("paused")
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: streams(daemon) == 0, "the stream to end, which nobody looks at")
    page.keyboard.press("Enter")
    ready(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#ask-token")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#ask")).to_be_hidden()
    expect(page.locator("#token")).to_be_focused()


def streams(daemon: Daemon) -> int:
    return sum(shard["streams"] for shard in daemon.status()["shards"])


def test_the_command_is_copied(daemon: Daemon, look: Look) -> None:
    page = ready(look(daemon, permissions=["clipboard-read", "clipboard-write"]))
    page.locator("#copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator("#curl").inner_text()
    assert copied.startswith("curl -H 'Content-Type: application/json' http://127.0.0.1:")
