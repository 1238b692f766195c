"""Style rules that ruff does not have, as functions over text.

Each rule takes a file's path in the repository and its text, and returns sentences that name the
line; an empty list is good. ``tests/test_tidy.py`` runs them over the repository and feeds each a
sample that breaks it.

The words that are refused are written in pieces here, so that this file passes its own rules.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePosixPath

from tests import retired

Rule = Callable[[str, str], list[str]]

LINES_MAX = 600
FILES_MAX = 18
PRODUCT = (
    "ledger", "shards", "uploader", "delivery", "compaction", "daemon", "commands", "cli.py",
    "headgate_server",
)  # fmt: skip
SHIPPED = (*PRODUCT, "clients")
MODULE_NAMES_REFUSED = {"util", "utils", "common", "helper", "helpers", "misc", "stuff"}

_PROMISES = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b")
_MACHINE_PATHS = re.compile(r"(?<![\w.~$}{/-])/(?:ho" + "me|ro" + "ot|wo" + "rk|tm" + "p)/")
_REGISTRIES = re.compile(
    r"(?:py" + r"pi\.org|python" + r"hosted\.org|npm" + r"js\.(?:org|com)|yarn" + r"pkg\.com"
    r"|proxy\.gol" + r"ang\.org|crates\.i" + r"o|repo\.maven\.apa" + r"che\.org)"
)
_INDEX_LINES = re.compile(r"^\s*(?:-i|-f|--(?:extra-)?index-url|--find-links|--trusted-host)\b")
_SKIPS = re.compile(
    r"\b(?:pytest\.sk" + r"ip|mark\.sk" + r"ip|mark\.xf" + r"ail|import" + "orskip)"
)
_TARGET = re.compile(r"^([A-Za-z][\w-]*)\s*:(?!=)(.*)$")
# A file or folder of this repository, named in backquotes.
_NAMED = re.compile(
    r"`((?:bench|clients|commands|compaction|daemon|delivery|docs|examples|ledger|shards|systemd|tests|tools"
    r"|uploader)/[a-z0-9_/.-]*)`"
)
_NOT_COMMITTED = {"bench/results/"}
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def module_docstring(path: str, text: str) -> list[str]:
    """Every module says what it is; an empty ``__init__.py`` need not."""
    if not path.endswith(".py") or (path.endswith("__init__.py") and not text.strip()):
        return []
    if not text.startswith('"""') and ast.get_docstring(ast.parse(text)) is None:
        return [f"{path}:1: the module has no docstring"]
    return []


def public_docstrings(path: str, text: str) -> list[str]:
    """Public functions and classes at the top of the product's modules say what they are for."""
    if not path.endswith(".py") or PurePosixPath(path).parts[0] not in SHIPPED:
        return []
    return [
        f"{path}:{node.lineno}: {node.name} is public and has no docstring"
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]


def module_length(path: str, text: str) -> list[str]:
    """A module of more than LINES_MAX lines should be two."""
    lines = text.count("\n")
    if path.endswith(".py") and lines > LINES_MAX:
        return [f"{path}: {lines} lines; the limit is {LINES_MAX}, split it by what it decides"]
    return []


def module_name(path: str, text: str) -> list[str]:
    """A module is named for what it holds."""
    parts = PurePosixPath(path).with_suffix("").parts
    return [
        f"{path}: name the module for what it holds, not {part!r}"
        for part in parts
        if path.endswith(".py") and part in MODULE_NAMES_REFUSED
    ]


def no_promises(path: str, text: str) -> list[str]:
    """Unfinished work is in an issue, not in a comment."""
    return _lines_with(_PROMISES, path, text, "a promise; do it or write an issue")


def no_trailing_whitespace(path: str, text: str) -> list[str]:
    """No line ends in blanks, and a text ends with one newline."""
    found = _lines_with(re.compile(r"[ \t\r]+$"), path, text, "trailing whitespace")
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        found.append(f"{path}: the file must end with exactly one newline")
    return found


def no_machine_paths(path: str, text: str) -> list[str]:
    """Code outside tests names no folder of one machine; docs may only name temporary ones."""
    if path.startswith("tests/"):
        return []
    found = _lines_with(_MACHINE_PATHS, path, text, "a path of one machine")
    if path.endswith(".md"):
        temporary = "/tm" + "p/"
        lines = text.splitlines()
        return [each for each in found if temporary not in lines[int(each.split(":")[1]) - 1]]
    return found


def no_registries(path: str, text: str) -> list[str]:
    """Where packages come from is the installer's business."""
    found = _lines_with(_REGISTRIES, path, text, "the host of a package registry")
    if path.endswith(".txt"):
        found += _lines_with(_INDEX_LINES, path, text, "an index line")
    return found


def undecodable_bytes(path: str, text: str) -> list[str]:
    """Code that expects bytes that do not decode must expect text that is not UTF-8: besides its
    own DecodeError, msgspec raises UnicodeDecodeError, for names of members and for values."""
    if not path.endswith(".py") or PurePosixPath(path).parts[0] not in PRODUCT:
        return []
    if not re.search("DecodeError|MsgspecError", text):
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Try):
            continue
        names = {
            each.id if isinstance(each, ast.Name) else each.attr
            for handler in node.handlers
            if handler.type is not None
            for each in ast.walk(handler.type)
            if isinstance(each, ast.Name | ast.Attribute)
        }
        if names & {"DecodeError", "MsgspecError"} and "UnicodeDecodeError" not in names:
            found.append(f"{path}:{node.lineno}: catches DecodeError, but not UnicodeDecodeError")
    return found


def no_skipped_tests(path: str, text: str) -> list[str]:
    """A test runs or is deleted; what it needs is built, or its absence is a failure."""
    if not path.startswith("tests/"):
        return []
    return _lines_with(_SKIPS, path, text, "a test that is skipped or may fail")


def makefile_comments(path: str, text: str) -> list[str]:
    """Every target of the Makefile has a ``##`` comment, which is what ``make`` lists."""
    if path != "Makefile":
        return []
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        target = _TARGET.match(line)
        if target is not None and not re.search(r"## \S", target[2]):
            found.append(f"{path}:{number}: the target {target[1]} has no ## comment")
    return found


def retired_words(path: str, text: str) -> list[str]:
    """One idea has one term, and sentences are plain English."""
    if path == "tests/retired.py" or not retired.found(text):  # most files have none
        return []
    return [
        f"{path}:{number}: retired, write {word.instead}: {line.strip()[:80]}"
        for number, line in enumerate(text.split("\n"), 1)
        for word in retired.found(line)
    ]


def changelog_once(path: str, text: str) -> list[str]:
    """Each heading and line of a version's changes is there once: merges keep both sides."""
    found: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines() if path == "CHANGELOG.md" else [], 1):
        if line.startswith("## "):
            seen.clear()
        if line.startswith(("#", "- ", "**")):
            if line in seen:
                found.append(f"{path}:{number}: twice, keep the newer: {line[:80]}")
            seen.add(line)
    return found


RULES: tuple[Rule, ...] = (
    module_docstring,
    public_docstrings,
    module_length,
    module_name,
    no_promises,
    no_trailing_whitespace,
    no_machine_paths,
    no_registries,
    undecodable_bytes,
    no_skipped_tests,
    makefile_comments,
    retired_words,
    changelog_once,
)


def dead_links(path: str, text: str, exists: Callable[[str], bool]) -> list[str]:
    """Relative links of a Markdown file that lead nowhere; ``exists`` takes a path in the tree."""
    found = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        parts: list[str] = []
        for part in (*PurePosixPath(path).parent.parts, *PurePosixPath(link).parts):
            if part == "..":
                parts = parts[:-1]
            elif part != ".":
                parts.append(part)
        if not exists("/".join(parts)):
            found.append(f"{path}: the link {link} leads nowhere")
    return found


def missing_files(path: str, text: str, exists: Callable[[str], bool]) -> list[str]:
    """Files and folders of the repository that a Markdown file names and that are not there."""
    return [
        f"{path}: there is no {name}"
        for name in _NAMED.findall(text)
        if name not in _NOT_COMMITTED and not exists(name.rstrip("/"))
    ]


def wide_folders(paths: Iterable[str]) -> list[str]:
    """A folder of the product has one subject, and at most FILES_MAX Python files."""
    counts = Counter(
        str(PurePosixPath(path).parent)
        for path in paths
        if path.endswith(".py") and PurePosixPath(path).parts[0] in SHIPPED
    )
    return [
        f"{folder}: {count} Python files; the limit is {FILES_MAX}, group them by subject"
        for folder, count in sorted(counts.items())
        if count > FILES_MAX
    ]


def decision_numbers(names: Iterable[str]) -> list[str]:
    """Decision notes are ``NNNN-title.md``, each number once."""
    found, taken = [], dict[str, str]()
    for name in sorted(names):
        number = re.match(r"(\d{4})-[a-z0-9]+(?:-[a-z0-9]+)*\.md$", name)
        if number is None:
            found.append(f"{name}: a decision note is named NNNN-title-in-lower-case.md")
        elif number[1] in taken:
            found.append(f"{name}: the number is taken by {taken[number[1]]}")
        else:
            taken[number[1]] = name
    return found


def missing_decisions(path: str, text: str, numbers: Collection[str]) -> list[str]:
    """Decision notes that a text names by their number and that are not there."""
    named = re.findall(r"(?:[Dd]ecision |decisions/)(\d{4})\b", text)
    return [f"{path}: there is no decision {number}" for number in named if number not in numbers]


def repeated_classes(texts: Mapping[str, str]) -> list[str]:
    """A public class of the product has a name of its own: one name stands for one idea."""
    found, first = [], dict[str, str]()
    for path, text in sorted(texts.items()):
        if not path.endswith(".py") or PurePosixPath(path).parts[0] not in PRODUCT:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            named = re.match(r"class ([A-Za-z]\w*)", line)
            if named is None:
                continue
            if named[1] in first:
                found.append(f"{path}:{number}: {named[1]} is a class of {first[named[1]]} too")
            else:
                first[named[1]] = path
    return found


def _lines_with(pattern: re.Pattern[str], path: str, text: str, sentence: str) -> list[str]:
    return [
        f"{path}:{number}: {sentence}: {line.strip()[:80]}"
        for number, line in enumerate(text.split("\n"), 1)
        if pattern.search(line)
    ]
