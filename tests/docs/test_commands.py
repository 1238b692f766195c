"""Every command of the documentation is run as a reader runs it, or listed with a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, PROGRAM, ROOT, Elsewhere, NotRun, Runs, blocks, commands, steps
from tests.docs.reader import reading
from tests.docs.shown import SHOWN
from tests.e2e.daemon import Daemon, empty

NOT_RUN_MAX = 20  # there may only be fewer
QUICK = {"docs/hooks.md", "docs/pressure.md"}
ON_S3 = {"README.md", "docs/cli.md", "docs/producers.md"}
RUN = [page for page, told in SHOWN.items() if any(isinstance(s, Runs) for s in told.values())]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_has_a_reason(page: str) -> None:
    steps(page, SHOWN.get(page, {}))


def test_a_new_command_and_one_that_is_gone_are_found() -> None:
    told = dict(SHOWN["docs/hooks.md"])
    curl = told.pop("curl")
    with pytest.raises(LookupError, match="neither run nor listed"):
        steps("docs/hooks.md", told)
    with pytest.raises(LookupError, match=r"no command that begins so any more: \['wget'\]"):
        steps("docs/hooks.md", {**told, "curl": curl, "wget": curl})


def test_few_commands_are_not_run_and_those_that_others_run_are_in_their_tests() -> None:
    found = [step for told in SHOWN.values() for step in told.values()]
    assert len([step for step in found if isinstance(step, NotRun)]) <= NOT_RUN_MAX
    for step in found:
        if isinstance(step, Elsewhere):
            file, name = step.test.split("::")
            assert re.search(rf"(?m)^def {name}\(", (ROOT / file).read_text()), step.test


def test_commands_are_in_blocks_of_a_shell() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 100
    for page in PAGES:
        for kind, text in blocks(page):
            assert kind != "" or not PROGRAM.match(text), f"{page}: sh or console, not:\n{text}"


def marks(page: str) -> list[pytest.MarkDecorator]:
    """MinIO, and much time, for the pages that need them."""
    return [pytest.mark.s3] * (page in ON_S3) + [pytest.mark.slow] * (page not in QUICK)


@pytest.mark.parametrize("page", [pytest.param(page, marks=marks(page)) for page in RUN])
def test_the_commands_of_a_page_do_what_it_says_in_their_order(
    page: str, shared_daemon: Daemon, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    empty(shared_daemon)
    bucket = request.getfixturevalue("bucket") if page in ON_S3 else None
    with reading(tmp_path, shared_daemon, bucket) as reader:
        for command, step in steps(page, SHOWN[page]):
            if isinstance(step, Runs):
                reader.run(command, step)
