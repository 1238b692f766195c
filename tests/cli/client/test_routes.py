"""Errors name commands on a terminal, whatever route the daemon names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from commands.client.routes import in_commands

ROOT = Path(__file__).resolve().parents[3]
ROUTE = re.compile(r"(?<!`)\b(GET|PUT|POST|DELETE) (/v0|\.\.\.)/")
NO_COMMAND_MEETS = {"daemon/api/handlers/plans.py"}  # plans are for readers in Spark


def test_a_message_names_the_command_and_its_arguments() -> None:
    told = "topic 'o' has no subscription 'b'; create it with PUT /v0/topics/o/subscriptions/b"
    assert in_commands(told).endswith("; create it with `headgate subscriptions create o b`")
    told = "there is no topic 'o', and auto_create_topics is false; create it with PUT /v0/topics/o"
    assert in_commands(told).endswith("; create it with `headgate topics create o`")
    told = "there is no cursor 'c'; create it with PUT /v0/cursors/c, or move another"
    assert "create it with `headgate cursors create c`, or" in in_commands(told)
    assert in_commands("the store takes nothing now (GET /v0/status says why)").endswith(
        "now (`headgate status` says why)"
    )


def test_no_message_of_the_daemon_keeps_a_route() -> None:
    found = [text for folder in ("daemon", "delivery", "ledger") for text in texts(ROOT / folder)]
    assert len(found) > 5
    assert [text for text in found if ROUTE.search(in_commands(text))] == []


def texts(folder: Path) -> Iterator[str]:
    """What the code may say that names a route; what it fills in is a word here."""
    for path in folder.rglob("*.py"):
        if str(path.relative_to(ROOT)) in NO_COMMAND_MEETS:
            continue
        tree = ast.parse(path.read_text())
        silent = {
            id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)
        }  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                silent.update(map(id, node.values))
        for node in ast.walk(tree):
            if id(node) in silent:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "word" for p in node.values)
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if ROUTE.search(text):
                yield text
