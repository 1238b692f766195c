"""The repository keeps its own style rules, and each rule refuses a sample that breaks it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests import retired, tidy
from tests.tidy import Rule

ROOT = Path(__file__).parent.parent

# Text of others, kept unchanged.
FOREIGN = {"LICENSE", "clients/python/LICENSE"}

HEAD = '"""What it is."""\n'


@cache
def repository_texts() -> dict[str, str]:
    """Path and text of each text file that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = {}
    for path in listed.split("\0"):
        if not path or path in FOREIGN or not (ROOT / path).is_file():
            continue
        content = (ROOT / path).read_bytes()
        try:
            texts[path] = content.decode("utf-8")
        except UnicodeDecodeError:
            # A golden file; rules are about text.
            continue
    return texts


@pytest.mark.parametrize("rule", tidy.RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: Rule) -> None:
    texts = repository_texts()
    assert "pyproject.toml" in texts and "ledger/types.py" in texts
    found = [sentence for path, text in texts.items() for sentence in rule(path, text)]
    assert not found, "\n".join(found)


def test_every_link_in_readme_and_docs_leads_somewhere() -> None:
    found = [
        sentence
        for path, text in repository_texts().items()
        if path.endswith(".md")
        for sentence in tidy.dead_links(path, text, lambda target: (ROOT / target).exists())
    ]
    assert not found, "\n".join(found)


def test_every_file_that_a_document_names_is_there() -> None:
    found = [
        sentence
        for path, text in repository_texts().items()
        if path.endswith(".md") and path != "CHANGELOG.md"
        for sentence in tidy.missing_files(path, text, lambda target: (ROOT / target).exists())
    ]
    assert not found, "\n".join(found)


def test_every_decision_that_a_text_names_is_there() -> None:
    numbers = {note.name[:4] for note in (ROOT / "docs" / "decisions").iterdir()}
    found = [
        sentence
        for path, text in repository_texts().items()
        if path != "tests/test_tidy.py"
        for sentence in tidy.missing_decisions(path, text, numbers)
    ]
    assert not found, "\n".join(found)


def test_a_class_name_stands_for_one_class() -> None:
    found = tidy.repeated_classes(repository_texts())
    assert not found, "\n".join(found)


def test_no_folder_of_the_product_has_too_many_files() -> None:
    found = tidy.wide_folders(repository_texts())
    assert not found, "\n".join(found)


def test_decision_notes_are_numbered_once_each() -> None:
    names = [note.name for note in (ROOT / "docs" / "decisions").iterdir()]
    assert names and not tidy.decision_numbers(names)


BAD: list[tuple[Rule, str, str]] = [
    (tidy.module_docstring, "shards/ring.py", "import os\n"),
    (tidy.module_docstring, "tests/test_x.py", "# a comment is not a docstring\n"),
    (tidy.module_docstring, "shards/__init__.py", "import os\n"),
    (tidy.public_docstrings, "shards/ring.py", HEAD + "def pull() -> None:\n    return\n"),
    (tidy.public_docstrings, "cli.py", HEAD + "class Table:\n    rows: int\n"),
    (tidy.public_docstrings, "clients/python/a.py", HEAD + "def f() -> None:\n    return\n"),
    (tidy.public_docstrings, "daemon/a/b.py", HEAD + "async def run() -> None:\n    return\n"),
    (tidy.module_length, "shards/ring.py", "\n" * 601),
    (tidy.module_name, "shards/utils.py", HEAD),
    (tidy.module_name, "tests/helpers/ring.py", HEAD),
    (
        tidy.undecodable_bytes,
        "daemon/a.py",
        HEAD + "try:\n    f()\nexcept (msgspec.DecodeError, RecursionError):\n    pass\n",
    ),
    (tidy.no_promises, "shards/ring.py", HEAD + "# TO" + "DO later\n"),
    (tidy.no_promises, "docs/x.md", "FIX" + "ME\n"),
    (tidy.no_promises, "Makefile", "# XX" + "X\n"),
    (tidy.no_trailing_whitespace, "README.md", "two blanks  \n"),
    (tidy.no_trailing_whitespace, "README.md", "a carriage return\r\nand more\n"),
    (tidy.no_trailing_whitespace, "README.md", "no newline"),
    (tidy.no_trailing_whitespace, "README.md", "one too many\n\n"),
    (tidy.no_machine_paths, "shards/ring.py", 'FILE = "/tm' + 'p/ring"\n'),
    (tidy.no_machine_paths, "tools/setup.sh", "cd /ho" + "me/me/x\n"),
    (tidy.no_machine_paths, "docs/x.md", "as in /ro" + "ot/x\n"),
    (tidy.no_machine_paths, "Makefile", "X := /wo" + "rk/main\n"),
    (tidy.no_registries, "README.md", "from https://py" + "pi.org/project/x\n"),
    (tidy.no_registries, "tools/minio.py", 'proxy = "https://proxy.gol' + 'ang.org"\n'),
    (tidy.no_registries, "constraints.txt", "--index-url https://example.invalid/simple\n"),
    (tidy.no_registries, "constraints.txt", "-f wheels\n"),
    (tidy.no_skipped_tests, "tests/test_x.py", "@pytest.mark.sk" + "ip\n"),
    (tidy.no_skipped_tests, "tests/test_x.py", "@pytest.mark.sk" + "ipif(True)\n"),
    (tidy.no_skipped_tests, "tests/test_x.py", "@pytest.mark.xf" + "ail\n"),
    (tidy.makefile_comments, "Makefile", "demo: setup\n\techo\n"),
    (tidy.makefile_comments, "Makefile", "demo: ##\n\techo\n"),
    (tidy.changelog_once, "CHANGELOG.md", "## [1]\n### Added\n- a\n### Added\n- b\n"),
    (tidy.changelog_once, "CHANGELOG.md", "## [1]\n### Added\n- a\n- a\n"),
    *((tidy.retired_words, "docs/x.md", word.sample + "\n") for word in retired.RETIRED),
]

GOOD: list[tuple[Rule, str, str]] = [
    (tidy.module_docstring, "shards/__init__.py", ""),
    (tidy.module_docstring, "README.md", "no module\n"),
    (tidy.public_docstrings, "shards/ring.py", HEAD + "def _pull() -> None:\n    return\n"),
    (tidy.public_docstrings, "tests/test_x.py", HEAD + "def test_x() -> None:\n    return\n"),
    (tidy.module_length, "shards/ring.py", "\n" * 600),
    (tidy.module_name, "uploader/stores/base.py", HEAD),
    (tidy.no_trailing_whitespace, "shards/__init__.py", ""),
    (tidy.no_machine_paths, "tests/test_x.py", 'FILE = "/tm' + 'p/ring"\n'),
    (tidy.no_machine_paths, "docs/x.md", "cp x /tm" + "p/x\n"),
    (tidy.no_machine_paths, "docs/x.md", "see tests/ho" + "me/x and ~/wo" + "rk/x\n"),
    (tidy.no_registries, "constraints.txt", "boto3==1.0\n"),
    (tidy.makefile_comments, "Makefile", "demo: setup ## Show it\nX := 1\n.PHONY: demo\n"),
    (tidy.retired_words, "docs/x.md", "seals stay forever\n"),
    (tidy.changelog_once, "CHANGELOG.md", "## [2]\n### Added\n- a\n## [1]\n### Added\n- a\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_a_rule_refuses_a_sample_that_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_rule_lets_a_good_sample_pass(rule: Rule, path: str, text: str) -> None:
    assert not rule(path, text)


def test_each_rule_has_a_sample_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BAD} == set(tidy.RULES)


@pytest.mark.parametrize("word", retired.RETIRED, ids=lambda word: word.sample)
def test_the_sample_of_a_retired_word_is_refused_by_its_own_pattern_only(
    word: retired.Retired,
) -> None:
    assert retired.found(word.sample) == [word]


def test_a_file_that_a_document_names_and_that_is_gone_is_found() -> None:
    text = "`shards/ring.py` `shards/gone.py` `daemon/` `l0/` `ledger/INCARNATION/NUMBER`\n"
    there = {"shards/ring.py", "daemon"}.__contains__
    assert tidy.missing_files("docs/x.md", text, there) == ["docs/x.md: there is no shards/gone.py"]


def test_a_decision_that_a_text_names_and_that_is_gone_is_found() -> None:
    text = "# docs/decisions/0001, docs/decisions/0002-x.md (decision 0003); decision 0001.\n"
    assert tidy.missing_decisions("ledger/a.py", text, {"0001"}) == [
        "ledger/a.py: there is no decision 0002",
        "ledger/a.py: there is no decision 0003",
    ]


def test_a_dead_link_is_found_and_a_live_one_and_an_address_are_not() -> None:
    there = {"docs/here.md", "README.md"}.__contains__
    text = "[a](docs/gone.md) [b](docs/here.md#part) [c](https://example.invalid/x) [d](#part)\n"
    assert tidy.dead_links("README.md", text, there) == [
        "README.md: the link docs/gone.md leads nowhere"
    ]
    assert not tidy.dead_links("docs/x.md", "[up](../README.md) [side](./here.md)\n", there)
    assert tidy.dead_links("docs/x.md", "[up](README.md)\n", there)


def test_a_decision_number_is_given_once_and_has_four_digits() -> None:
    assert not tidy.decision_numbers(["0001-one.md", "0002-two-words.md"])
    assert len(tidy.decision_numbers(["0001-one.md", "0001-other.md"])) == 1
    assert len(tidy.decision_numbers(["1-one.md", "notes.md", "0003_x.md"])) == 3


def test_a_folder_with_too_many_files_is_found() -> None:
    paths = [f"ledger/f{number}.py" for number in range(19)] + ["ledger/space/a.py", "ledger/a.md"]
    (sentence,) = tidy.wide_folders(paths)
    assert sentence.startswith("ledger: 19 Python files; the limit is 18")
    assert not tidy.wide_folders(paths[1:])
    assert not tidy.wide_folders([f"tests/f{number}.py" for number in range(30)])


def test_a_class_of_another_modules_name_is_found_unless_it_is_private_or_a_tests() -> None:
    text = HEAD + "class Report:\n    pass\n"
    private = HEAD + "class _Report:\n    pass\n"
    assert tidy.repeated_classes({"cli.py": text, "shards/ring.py": text}) == [
        "shards/ring.py:2: Report is a class of cli.py too"
    ]
    assert not tidy.repeated_classes({"cli.py": text, "tests/a.py": text, "ledger/a.py": private})
