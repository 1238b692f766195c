"""The examples of the client's README run, one after the other, with one daemon."""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path

import pytest

from headgate import Client
from tests.e2e.daemon import ROOT, Daemon

TEXT = (ROOT / "clients" / "python" / "README.md").read_text()
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```", TEXT)
# What ends an example's loop that has no end: it is left at its first item.
ENDLESS = {
    '    for r in h.watch("orders"):': '    for r in h.watch("orders"):\n        break',
    "            m.ack()  ": "            m.ack(); break  ",
}


def run(example: str, daemon: Daemon) -> None:
    assert "http://127.0.0.1:7440" in example
    code = example.replace("http://127.0.0.1:7440", daemon.url)
    exec(compile(code, "README.md", "exec"), {"__name__": "example"})


def ended(example: str) -> str:
    for line, instead in ENDLESS.items():
        assert example.count(line) == 1, line
        before, _, after = example.partition(line)
        example = before + instead + "\n" + after.partition("\n")[2]
    return example


def test_the_examples_work_in_their_order(
    shared_daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = shared_daemon
    is_over = threading.Event()

    def produce_more() -> None:  # a watch has what is committed after it begins
        with Client(daemon.url) as h:
            while not is_over.is_set():
                h.produce("orders", {"status": "shipped"})

    others = threading.Thread(target=produce_more)
    others.start()
    try:
        run(ended(EXAMPLES[0]), daemon)
    finally:
        is_over.set()
        others.join()
    assert capsys.readouterr().out.strip().isdigit()
    assert {r["data"]["status"] for r in daemon.read_all("orders")} >= {"placed", "paid"}
    billing = daemon.get("/v0/topics/orders/subscriptions/billing").json
    assert billing["acknowledged"] == 1

    for example in EXAMPLES[1:]:
        run(example, daemon)
    out = capsys.readouterr().out
    assert "3000 records are stored" in out and "create_topic(...)" in out
    assert len(daemon.read_all("lines")) == 1000
    (cursor_example,) = (each for each in EXAMPLES if "copy-of-lines" in each)
    run(cursor_example, daemon)
    assert len(daemon.read_all("lines")) == 1000, "run twice, stored once"
    assert capsys.readouterr().out.strip() == "1000"


def test_every_method_of_the_client_is_in_the_readme_and_in_both_clients() -> None:
    folder = ROOT / "clients" / "python" / "headgate"
    names = {}
    for module, kind in (("client.py", "Client"), ("aio.py", "AsyncClient")):
        tree = ast.parse(Path(folder / module).read_text())
        (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind)
        names[kind] = {
            ast.unparse(each.targets[0]) if isinstance(each, ast.Assign) else each.name
            for each in found.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign)
        }
        names[kind] = {name for name in names[kind] if not name.startswith("_")}
    assert {*names["Client"], "aclose"} - {"close"} == names["AsyncClient"]
    internal = {"close", "run", "iterate"}
    for name in names["Client"] - internal:
        assert re.search(rf"\b{name}\b", TEXT), name
