"""TLS and tokens, by real clients on a real daemon: what works in clear text works by TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cli
from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import HANG_S, ROOT
from tests.e2e.secured import Authority, Secured, secured


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A daemon with two shards and a token, which serves clear text and TLS."""
    file = TokenFile(tmp_path_factory.mktemp("auth") / "tokens.json")
    options: Any = {
        "token": file.issue("all", list(Scope))[1],
        "settings": {"auth_file": file.path},
    }
    with secured(tmp_path_factory.mktemp("tls"), shards=2, **options) as made:
        yield made


def curl(front: Secured, path: str, *options: str) -> bytes:
    """What curl got, which trusts the authority of the test alone."""
    done = subprocess.run(
        ["curl", "-sS", "--fail-with-body", "--cacert", str(front.authority.file), *options,
         "-H", f"Authorization: Bearer {front.daemon.token}", front.url + path],
        capture_output=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def test_a_command_that_trusts_another_authority_says_how_to_trust_this_one(
    front: Secured, tmp_path: Path
) -> None:
    other = Authority(tmp_path).file
    result = CliRunner().invoke(
        cli.headgate, ["topics", "ls", "--url", front.url], env={"HEADGATE_CA_FILE": str(other)}
    )
    assert result.exit_code == 3 and "certificate verify failed" in result.output
    assert "hint: name the file of its authority in HEADGATE_CA_FILE" in result.output


def headgate(front: Secured, *arguments: str, given: str = "") -> str:
    """What the command line says, which trusts the authority too."""
    environ = os.environ | {
        "HEADGATE_URL": front.url,
        "HEADGATE_CA_FILE": str(front.authority.file),
        "HEADGATE_TOKEN": front.daemon.token,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "cli", *arguments], input=given, capture_output=True, text=True,
        env=environ, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def test_curl_produces_and_reads_by_tls(front: Secured) -> None:
    body = json.dumps({"records": [{"data": "by TLS"}]})
    kind = ("-H", "Content-Type: application/json")
    assert json.loads(curl(front, "/v0/topics/curled", *kind, "-d", body))["count"] == 1
    read = json.loads(curl(front, "/v0/topics/curled/diff", *kind, "-d", '{"from_seq": 0}'))
    assert [record["data"] for record in read["records"]] == ["by TLS"]
    assert front.daemon.read_all("curled") == read["records"], "clear text is served too"


def test_the_command_line_produces_and_reads_by_tls(front: Secured) -> None:
    headgate(front, "produce", "commanded", given='{"data": 1}\n{"data": 2}\n')
    assert headgate(front, "read", "commanded") == '{"data": 1}\n{"data": 2}\n'


def test_an_import_goes_by_tls_with_its_token(front: Secured, tmp_path: Path) -> None:
    """Requests of an import are pipelined, on a connection of its own."""
    (tmp_path / "rows").write_text('{"data": 1}\n{"data": 2}\n')
    headgate(front, "topics", "create", "imported")
    headgate(front, "import", "imported", str(tmp_path / "rows"))
    assert headgate(front, "read", "imported") == '{"data": 1}\n{"data": 2}\n'
