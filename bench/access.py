"""What tokens and TLS cost: the same requests in clear text, with a token, and with both by TLS.

Two daemons serve in turn on the same CPU, one without tokens, and one with tokens, TLS and
clear text. What counts is the CPU of the daemon for an acknowledged request, as a median of the
turns: machines drift, and a client of TLS takes more CPU than the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import trustme

from bench import bodies
from bench.bodies import Size
from bench.figures import Target, number
from bench.load import Generator, Pace, Request
from bench.processes import Daemon, start_daemon
from compaction.access.http_calls import call, socket_address
from daemon.access.token_file import Scope, TokenFile
from tools import minio

TOPIC = "bench"
TURNS = 5
CLEAR, TOKEN, TLS = "clear text", "with a token", "with a token, by TLS"
CPU_RATIO_MIN = 0.97
LIMITS = {"requests": 1e9, "bytes_in": 1e15}  # that nobody reaches, so each request is counted


class AccessResult(msgspec.Struct, frozen=True):
    """One way to send the requests. ``cpu_us`` is for an acknowledged request."""

    size: str
    what: str
    cpu_us: float
    acked_per_s: float


class _Way(NamedTuple):
    what: str
    daemon: Daemon
    port: int
    request: Request


def measure(
    generator: Generator,
    size: Size,
    work: Path,
    daemon_cpus: Iterable[int],
    cpus: Iterable[int],
    turn_s: float,
) -> list[AccessResult]:
    """All ways to send bodies of this size."""
    body = bodies.of(size, bodies.NDJSON)
    plain = Request(f"/v0/topics/{TOPIC}", (("Content-Type", body.content_type),), body.data)
    folder = work / f"access-{size.name}"
    folder.mkdir(parents=True)
    file = TokenFile(folder / "tokens.json")
    text = file.issue("bench", [Scope.PRODUCE], limits=LIMITS)[1]
    bearer = (*plain.headers, ("Authorization", f"Bearer {text}"))
    certificate = trustme.CA().issue_cert("localhost")
    (folder / "tls.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
    key = folder / "tls.key"
    key.touch(0o600)
    key.write_bytes(certificate.private_key_pem.bytes())
    tls_port = minio.free_port()
    secured = {
        "auth_file": file.path,
        "tls_listen": f"127.0.0.1:{tls_port}",
        "tls_certificate": folder / "tls.pem",
        "tls_key": key,
    }
    found: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        daemons: list[Daemon] = []
        for name, settings in (("open", {}), ("secured", secured)):
            daemon = start_daemon(folder / name, daemon_cpus, 1, None, settings)
            stack.callback(daemon.stop)
            call(socket_address(str(daemon.folder / "data")), "PUT", f"/v0/topics/{TOPIC}")
            daemons.append(daemon)
        ways = [
            _Way(CLEAR, daemons[0], daemons[0].port, plain),
            _Way(TOKEN, daemons[1], daemons[1].port, plain._replace(headers=bearer)),
            _Way(TLS, daemons[1], tls_port, plain._replace(headers=bearer, by_tls=True)),
        ]
        pace = Pace(size.connections, turn_s)
        for turn in range(TURNS + 1):
            for way in ways:
                before_s = way.daemon.cpu_s()
                load = generator.run(way.port, way.request, pace, cpus)
                cpu_s = way.daemon.cpu_s() - before_s
                if turn and load.acked:  # the first one warms up
                    found.setdefault(way.what, []).append(
                        (cpu_s / load.acked * 1e6, load.acked_per_s)
                    )
    return [
        AccessResult(size.name, what, *(median(each) for each in zip(*values, strict=True)))
        for what, values in found.items()
    ]


def table(results: list[AccessResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is printed."""
    clear = {each.size: each.cpu_us for each in results if each.what == CLEAR}
    heads = ("body", "requests", "CPU us a request", "over clear text", "acknowledged/s")
    return heads, [
        (each.size, each.what, number(each.cpu_us), f"{each.cpu_us / clear[each.size]:.2f} x",
         number(each.acked_per_s))
        for each in results
    ]  # fmt: skip


def targets(results: list[AccessResult]) -> Iterator[Target]:
    """The rate follows from the CPU of a daemon that has a core for itself."""
    found = {each.what: each for each in results if each.size == "1KiB"}
    if CLEAR in found and TOKEN in found:
        yield Target("1 KiB: CPU in clear text over CPU with a token", CPU_RATIO_MIN,
                     found[CLEAR].cpu_us / found[TOKEN].cpu_us)  # fmt: skip
