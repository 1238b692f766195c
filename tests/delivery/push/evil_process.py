"""A receiver that does what none should, as a process, with and without TLS."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme


class EvilReceiver(NamedTuple):
    """The URLs of the receiver without TLS; with a certificate for localhost, with one for another
    name, and with one that has expired; and the file of the authority of all three."""

    plain: str
    tls: str
    other_name: str
    expired: str
    ca_file: str


@pytest.fixture(scope="session")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvilReceiver]:
    folder = tmp_path_factory.mktemp("evil")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificates = [
        authority.issue_cert("localhost", "127.0.0.1"),
        authority.issue_cert("other.example"),
        authority.issue_cert("localhost", "127.0.0.1", not_after=long_ago),
    ]
    files = [str(folder / f"{number}.pem") for number in range(len(certificates))]
    for certificate, file in zip(certificates, files, strict=True):
        certificate.private_key_and_cert_chain_pem.write_to_path(file)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.delivery.push.evil", *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "."},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        ports = json.loads(process.stdout.readline())
        plain, *tls = [f"http://127.0.0.1:{ports[0]}"] + [
            f"https://localhost:{port}" for port in ports[1:]
        ]
        yield EvilReceiver(plain, tls[0], tls[1], tls[2], str(folder / "ca.pem"))
        process.stdin.close()
        process.wait()
