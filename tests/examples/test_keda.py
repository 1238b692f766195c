"""examples/keda/consumers.yaml: its trigger is one that the scaler takes, at the scaler's address.

Neither Kubernetes nor KEDA is run; ``tests/e2e/test_scaling.py`` calls the scaler as KEDA does.
"""

from __future__ import annotations

from typing import Any

import click
import pytest
import strictyaml

import cli
from commands.keda.trigger import Trigger, trigger_of
from tests.e2e.daemon import ROOT
from tests.test_dist import instructions

FILE = ROOT / "examples" / "keda" / "consumers.yaml"


@pytest.fixture(scope="module")
def documents() -> dict[tuple[str, str], Any]:
    """By kind and name."""
    parts = [strictyaml.load(part).data for part in FILE.read_text().split("\n---\n")]
    return {(part["kind"], part["metadata"]["name"]): part for part in parts}


def test_the_trigger_is_one_that_the_scaler_takes(documents: dict[tuple[str, str], Any]) -> None:
    scaled = documents["ScaledObject", "billing"]["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["type"] in ("external", "external-push")
    assert trigger_of(trigger["metadata"]) == Trigger("orders", "billing", 500, 0)
    assert ("Deployment", scaled["scaleTargetRef"]["name"]) in documents


def test_the_scaler_listens_where_keda_asks(documents: dict[tuple[str, str], Any]) -> None:
    (trigger,) = documents["ScaledObject", "billing"]["spec"]["triggers"]
    name, _, port = trigger["metadata"]["scalerAddress"].partition(":")
    service, scaler = documents["Service", name]["spec"], documents["Deployment", name]["spec"]
    assert service["selector"] == scaler["template"]["metadata"]["labels"]
    assert service["ports"] == [{"port": port}]
    (container,) = scaler["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": port}]
    program, command, *options = container["command"]
    assert [program] == ["headgate"] and "grpc" in " ".join(instructions()["RUN"]).split()
    found = cli.headgate.get_command(click.Context(cli.headgate), command)
    assert found is not None
    with found.make_context(command, options) as context:
        assert context.params["listen"] == f"0.0.0.0:{port}"
        assert context.params["client"].url == "http://headgate:7440"
