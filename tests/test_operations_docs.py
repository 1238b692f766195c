"""docs/operations.md quotes messages that the code prints, and fields that the status has."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from daemon.alarms.alarms import NAMES
from daemon.config import Override, load
from daemon.memory import bounds
from daemon.schemas.api import Status

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text()
ALARMS = set(NAMES)
PRODUCT = ("ledger", "shards", "uploader", "delivery", "daemon", "commands")
WORDS_MIN = 4  # of a quotation; a shorter code span is a name
LETTERS_MIN = 12  # of a message's own text; a pattern of nearly only operands fits everything


def section(title: str) -> str:
    """The text below a heading, up to the next one of its level."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@cache
def messages() -> list[tuple[str, ...]]:
    """All texts in the product's code, each as the pieces between its operands."""
    found = []
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            inner: set[int] = set()  # a walk comes to a node before what is in it
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    inner.update(map(id, node.values))
                    parts = [v.value if isinstance(v, ast.Constant) else None for v in node.values]
                elif isinstance(node, ast.Constant) and id(node) not in inner:
                    parts = [node.value]
                else:
                    continue
                pieces = _pieces(parts)
                if len(re.findall("[a-z]", "".join(pieces))) >= LETTERS_MIN:
                    found.append(tuple(pieces))
    return list(dict.fromkeys(found))


def _pieces(parts: list[Any]) -> list[str]:
    """What is between the operands."""
    text = "\0".join(part if isinstance(part, str) else "" for part in parts)
    return re.split(r"\0+|%(?:\.\d)?[srdgf]", text)


def quotations() -> list[str]:
    """What the table of failures quotes."""
    spans = re.findall(r"`([^`]+)`", section("Failures"))
    return [span for span in spans if len(span.split()) >= WORDS_MIN]


def is_printed(quotation: str) -> bool:
    """Whether a text in the code is this, with operands, or contains it."""
    return any(
        quotation in "".join(pieces)
        or (
            all(piece in quotation for piece in pieces)
            and re.fullmatch(".*".join(map(re.escape, pieces)), quotation, re.DOTALL)
        )
        for pieces in messages()
    )


def test_the_table_quotes_only_what_the_code_prints() -> None:
    assert len(quotations()) > 20
    assert [each for each in quotations() if not is_printed(each)] == []
    assert is_printed("shard 3 died (killed by SIGKILL), 2 leases to take over")
    assert not is_printed("shard 3 has died by SIGKILL and 2 leases are taken over")


def test_the_fields_to_watch_are_fields_of_the_status() -> None:
    document = json.dumps(msgspec.json.schema_components([Status])[1])
    for row in re.findall(r"^\| `([a-z_.\[\]]+)` \|", section("Monitoring"), re.MULTILINE):
        if row in ALARMS:
            continue
        for name in re.findall(r"[a-z_]+", row):
            assert f'"{name}"' in document, f"{row} is not a field"


def tls_bytes() -> int:
    """What TLS adds to the bound of one shard."""
    files = {"tls_listen": "127.0.0.1:0", "tls_certificate": "c.pem", "tls_key": "k.pem"}
    given = [Override(key, value, "test") for key, value in files.items()]
    return bounds(load(None, {}, [Override("shards", "1", "test"), *given]))["tls"]


def test_the_memory_table_adds_up_to_the_bound() -> None:
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (\d+) MiB \|$", section("Capacity"), re.MULTILINE)
    ((a_shard, besides),) = re.findall(
        r"it is (\d+) MiB a shard, and (\d+) MiB", section("Capacity")
    )
    ((pipes, each),) = re.findall(
        r"pipes between them take at most (\d+) MiB a shard, and ([\d.]+) MiB", section("Capacity")
    )
    assert sum(map(int, rows)) == int(a_shard)
    (by_tls,) = re.findall(r"`streams_max` streams: (\d+) MiB", section("Capacity"))
    assert abs(tls_bytes() / (1 << 20) - int(by_tls)) < 1
    for shards in (1, 2, 16):
        parts = bounds(load(None, {}, [Override("shards", str(shards), "test")]))
        told_mib: float = int(a_shard) * shards + int(besides)
        if shards > 1:
            told_mib += shards * (int(pipes) + float(each) * (shards - 2))
        assert abs(sum(parts.values()) / (1 << 20) - told_mib) < shards


def test_the_threat_model_names_only_tests_that_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text()))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"(?m)^(?:async )?def (test_\w+)", path.read_text())
    }
    assert len(named) > 10 and named <= defined, named - defined


def test_each_alarm_and_each_failure_has_an_anchor_and_what_the_code_prints_is_one() -> None:
    anchors = set(re.findall(r'<a id="([^"]+)"></a>', PAGE))
    assert anchors >= ALARMS
    rows = [line for line in section("Failures").splitlines() if line.startswith("| ")][1:]
    assert [row for row in rows if not row.startswith('| <a id="')] == []
    text = "\n".join(path.read_text() for each in PRODUCT for path in (ROOT / each).rglob("*.py"))
    printed = set(re.findall(r"docs/operations\.md#([\w-]+)", text))
    assert printed and printed <= anchors
