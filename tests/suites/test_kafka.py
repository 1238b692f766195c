"""The lists of foreign suites are complete, and what differs from them is said."""

from __future__ import annotations

from pathlib import Path

from tests.suites.kafka import FAILED, PASSED, SKIPPED, SUITES, FranzGo, Outcome, findings, listed

LISTS = Path(__file__).parent
RUNNER = """
struct test tests[] = {
    _TEST(0000_unittests, TEST_F_LOCAL),
    _TEST(0001_one, 0, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0002_known, TEST_F_KNOWN_ISSUE),
    _TEST(0003_two,
          TEST_F_KNOWN_ISSUE_WIN32),
    _TEST(0004_three_mock, 0),
    /* Manual tests */
    _TEST(8000_idle, TEST_F_MANUAL),
    {NULL}};
"""


def test_each_list_has_tests_that_pass_and_a_reason_for_each_other_one() -> None:
    for name in SUITES:
        found = listed(LISTS / f"{name}.txt")
        assert sum(not why for why in found.values()) > 30
        text = (LISTS / f"{name}.txt").read_text()
        assert len(found) == len([line for line in text.splitlines() if line[0] != "#"])
        assert ":\n" not in text and ": \n" not in text


def test_what_differs_from_the_list_is_said() -> None:
    expected = {"good": "", "bad": "", "skipped": "", "never": "needs more", "grown": "needs more"}
    states = {"good": PASSED, "bad": FAILED, "skipped": SKIPPED, "never": FAILED, "grown": PASSED,
              "new": PASSED}  # fmt: skip
    assert findings(expected, [Outcome(*each, "") for each in states.items()]) == [
        "bad failed",
        "skipped skipped",
        "grown passed: delete why it cannot",
        "new passed, and is not in the list",
    ]


def test_the_tests_of_the_suites_that_speak_to_a_broker_are_found(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test-runner").touch()
    (tests / "test.c").write_text("/* Manual tests */" + RUNNER)
    assert SUITES["librdkafka"](tmp_path).tests() == ["0001_one", "0003_two"]
    folder = tmp_path / "pkg" / "kgo"
    folder.mkdir(parents=True)
    (folder / "kgo.test").touch()
    (folder / "a_test.go").write_text(
        "package kgo\n\nfunc TestInsides(t *testing.T) {\n}\n\n"
        "func TestBroker(t *testing.T) {\n\tcl, _ := newTestClient()\n}\n"
    )
    assert FranzGo(tmp_path).tests() == ["TestBroker"]
