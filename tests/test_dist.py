"""``make dist``: the wheel works in a new environment by itself; the Dockerfile fits it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.e2e.daemon import Daemon, running
from tests.e2e.processes import shard_pids
from tools.ports import kept_port

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ledger", "shards", "uploader", "delivery", "compaction", "daemon", "commands")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as ``make dist`` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        ["sh", "tools/dist.sh", sys.executable, str(folder)],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's wheel, as ``make client`` builds it."""
    folder = tmp_path_factory.mktemp("client")
    subprocess.run(
        ["sh", "tools/client_dist.sh", sys.executable, str(folder)],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


class Image(NamedTuple):
    """What the Dockerfile installs: the folder that is /opt, and what ENV says of it."""

    opt: Path
    environ: dict[str, str]

    def program(self, name: str) -> str:
        """The path of a program that PATH finds."""
        return str(shutil.which(name, path=self.environ["PATH"]))


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Runs the second RUN of the Dockerfile in a folder of its own. The tests need no container
    engine: the base image, its Python and useradd are not tried."""
    found, opt = instructions(), tmp_path_factory.mktemp("image") / "opt"
    *copied, into = shlex.split(found["COPY"][0])
    folder = opt / Path(into).relative_to("/opt")
    folder.mkdir(parents=True)
    for pattern in copied:
        is_wheel = fnmatch(f"dist/{wheel.name}", pattern)
        shutil.copy(wheel if is_wheel else ROOT / pattern, folder)
    accounts, install = found["RUN"]
    assert accounts.startswith("useradd ")
    script = install.replace("/opt/", f"{opt}/").replace("python -m", f"{sys.executable} -m", 1)
    subprocess.run(["sh", "-ec", script], cwd=opt.parent, check=True, stdout=subprocess.DEVNULL)
    environ = dict(each.split("=", 1) for each in shlex.split(found["ENV"][0]))
    assert environ["PATH"].startswith("/opt/headgate/bin:")
    environ["PATH"] = environ["PATH"].replace("/opt/", f"{opt}/")
    return Image(opt, {**environ, "PYTHONPATH": ""})


@pytest.mark.slow
def test_the_clients_wheel_holds_the_client_and_no_name_of_the_servers(
    wheel: Path, client_wheel: Path
) -> None:
    folder = ROOT / "clients" / "python"
    found = {}
    for each in (wheel, client_wheel):
        with zipfile.ZipFile(each) as archive:
            names = {name for name in archive.namelist() if ".dist-info/" not in name}
        found[each] = {Path(name).parts[0].removesuffix(".py") for name in names}
    files = [*(folder / "headgate").glob("*.py"), folder / "headgate" / "py.typed"]
    assert names == {path.relative_to(folder).as_posix() for path in files}
    assert not found[wheel] & found[client_wheel]
    assert not fnmatch(client_wheel.name, "headgate-*.whl"), "the image would take it"


@pytest.mark.slow
def test_the_clients_wheel_works_in_an_environment_without_the_server(
    client_wheel: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    done = installed(venv, ROOT / "constraints.txt", client_wheel)
    assert done.returncode == 0, done.stderr
    script = (
        "import sys; from headgate import Client\n"
        "with Client(sys.argv[1]) as h: print(h.produce('orders', 1).seq)\n"
    )
    with running(tmp_path / "data") as daemon:
        said = subprocess.run(
            [str(venv / "bin" / "python"), "-I", "-c", script, daemon.url],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    assert said.stdout.strip() == "1"


@pytest.mark.slow
def test_the_wheel_holds_the_product_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "cli.py", *PACKAGES],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    floors = {f"headgate_server/floors/{path}" for path in tracked}
    assert names == {"headgate_server/__init__.py", *floors}


@pytest.mark.slow
def test_a_checkout_that_pip_installs_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(checkout)], check=True)
    (built,) = tmp_path.glob("*.whl")
    assert names_in(built) == names_in(wheel)


def names_in(wheel: Path) -> set[str]:
    """The paths of its files."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


# What a Spark program does in an environment that has the wheel, and a ``daemon`` of its own.
PROGRAM = """
import sys
import daemon
from pyspark.sql import SparkSession
import headgate_server

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
headgate_server.register(spark)
orders = spark.read.format("headgate").option("url", sys.argv[1]).option("subscribe", "orders")
print([bytes(row.value).decode() for row in orders.load().collect()])
spark.stop()
assert daemon.IS_ANOTHER and not hasattr(sys.modules["daemon"], "process")
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_spark_program_shares_an_environment_with_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The checkout's packages cannot be found there: they are not on its path."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "daemon.py").write_text("IS_ANOTHER = True\n")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    # Folders of PYTHONPATH, unlike those of an environment, have no .pth files that count.
    environ = {**os.environ, "PYTHONPATH": f"{site}:{sysconfig.get_path('purelib')}"}
    with running(tmp_path / "data", shards=1) as daemon:
        daemon.json("POST", "/v0/topics/orders", {"records": [{"data": {"status": "placed"}}]})
        said = subprocess.run(
            [str(tmp_path / "venv" / "bin" / "python"), "-P", "-c", PROGRAM, daemon.url],
            cwd=tmp_path, env=environ, check=True, capture_output=True, text=True,
        )  # fmt: skip
    assert said.stdout.split("\n")[0] == str(['{"status": "placed"}'])


@pytest.mark.slow
def test_the_wheel_in_a_new_environment_is_a_working_command(
    wheel: Path, image: Image, tmp_path: Path
) -> None:
    python, headgate = image.program("python"), image.program("headgate")
    environ = {**os.environ, "PYTHONPATH": ""}

    def said(*command: str, **more: str) -> str:
        return subprocess.run(
            command, cwd=tmp_path, env={**environ, **more}, check=True, capture_output=True,
            text=True, input="{}",
        ).stdout  # fmt: skip

    assert said(headgate, "version").strip() == wheel.name.split("-")[1]
    # Of others, as python-daemon's: the command does not find it, and a program finds no other.
    site = Path(
        said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    (site / "daemon.py").write_text("IS_ANOTHER = True\n")
    assert said(python, "-P", "-c", "import daemon; print(daemon.IS_ANOTHER)") == "True\n"
    (top,) = {name.split("/")[0] for name in names_in(wheel) if ".dist-info/" not in name}
    assert top == "headgate_server"

    options = {"command": [headgate, "serve"], "environ": {"PYTHONPATH": ""}, "shards": 2}
    with running(tmp_path / "data", **options) as daemon:
        for pid in shard_pids(daemon):
            assert psutil.Process(pid).cmdline()[:4] == [python, "-P", "-m", "daemon.process.shard"]
        said(headgate, "produce", "orders", HEADGATE_URL=daemon.url)
        assert json.loads(said(headgate, "read", "orders", HEADGATE_URL=daemon.url)) == {}
        assert daemon.get("/openapi.json").status == 200
        version = daemon.status()["version"]
    assert version == wheel.name.split("-")[1]


@pytest.mark.slow
def test_a_stranger_reads_a_record_back_from_the_wheel_alone(wheel: Path) -> None:
    done = subprocess.run(
        ["sh", "tools/first_record.sh", sys.executable, str(wheel.parent)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"(?m)^ *[\d.]+ s  (.*)$", done.stdout)
    assert len(steps) == 6 and steps[-1] == "from the wheel to the first record read back"


def installed(venv: Path, constraints: Path, wheel: Path) -> subprocess.CompletedProcess[str]:
    """The end of ``tools/install.sh``."""
    return subprocess.run(
        ["sh", "tools/install.sh", str(venv), str(constraints), str(wheel)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_package_whose_bytes_are_others_is_not_installed(wheel: Path, tmp_path: Path) -> None:
    venv, constraints = tmp_path / "venv", tmp_path / "constraints.txt"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    text = (ROOT / "constraints.txt").read_text()
    block = re.search(r"(?m)^msgspec==(?:.*\\\n)+.*\n", text)
    assert block is not None
    other = re.sub(r"sha256:.{4}", "sha256:0000", block[0])
    constraints.write_text(text.replace(block[0], other))
    refused = installed(venv, constraints, wheel)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr and "msgspec" in refused.stderr
    assert not (venv / "bin" / "headgate").exists()


@pytest.mark.slow
def test_the_bill_of_materials_is_what_the_wheel_brings(wheel: Path) -> None:
    folder = Path(sys.executable).parent
    subprocess.run(
        ["sh", "tools/sbom.sh", str(folder), str(wheel.parent)],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    made = json.loads((wheel.parent / "headgate.cdx.json").read_text())
    assert made["bomFormat"] == "CycloneDX"
    assert made["metadata"]["component"]["name"] == "headgate"
    found = {part["name"].lower().replace("_", "-"): part for part in made["components"]}
    lines = (ROOT / "constraints.txt").read_text().lower()
    pinned = {
        name.replace("_", "-"): version
        for name, version in re.findall(r"(?m)^([\w.-]+)==([^ ;]+)", lines)
    }
    assert {"boto3", "grpcio", "pyarrow", "uvloop"} <= found.keys()
    assert not {"pip", "pyspark", "pytest", "setuptools"} & found.keys()
    for name, part in found.items():
        assert part["version"] == pinned[name] and part["purl"].startswith("pkg:pypi/"), name


def test_every_package_that_is_installed_has_a_hash() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [n for n, line in enumerate(lines) if "==" in line and not line.startswith("#")]
    assert len(pins) > 80
    assert all(lines[n + 1].strip().startswith("--hash=sha256:") for n in pins)
    for script in ("tools/setup.sh", "Dockerfile"):
        text = (ROOT / script).read_text()
        assert "install.sh" in text and "pip install " not in text, script


def instructions() -> dict[str, list[str]]:
    """The Dockerfile's instructions; continued lines are one."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.strip():
            name, rest = line.split(maxsplit=1)
            found.setdefault(name, []).append(rest)
    return found


@pytest.mark.slow
def test_what_the_image_installs_and_runs_works(image: Image, tmp_path: Path) -> None:
    assert [each.name for each in image.opt.iterdir()] == ["headgate"]
    found, environ = instructions(), image.environ
    name, command = json.loads(found["ENTRYPOINT"][0]), json.loads(found["CMD"][0])
    program = [image.program(name[0]), *name[1:], *command]
    with running(tmp_path / "data", command=program, environ=environ) as daemon:
        assert daemon.produce("orders", 1).status == 200
        python = psutil.Process(shard_pids(daemon)[0]).cmdline()[0]
        assert Path(python).is_relative_to(image.opt)
        health = found["HEALTHCHECK"][0]
        asks = json.loads(health[health.index("CMD ") + 4 :])
        asks[2] = asks[2].replace("127.0.0.1:7440", f"127.0.0.1:{daemon.port}")
        subprocess.run(asks, env=environ, check=True)
        scaler = [program[0], "scaler", "--listen", "127.0.0.1:0", "--url", daemon.url]
        with subprocess.Popen(scaler, env=environ, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "scaler listens on" in process.stderr.readline()
            process.terminate()


def test_the_image_runs_the_wheel_as_a_user_of_its_own() -> None:
    found = instructions()
    assert found["ARG"] == ["BASE=python:3.12-slim"] and found["FROM"] == ["${BASE}"]
    assert found["USER"] == ["headgate"]
    assert found["EXPOSE"] == ["7440"]
    assert found["STOPSIGNAL"] == ["SIGTERM"]
    assert json.loads(found["ENTRYPOINT"][0]) == ["headgate"]
    assert json.loads(found["CMD"][0]) == ["serve"]
    assert list(found).index("USER") > list(found).index("RUN")


def test_what_the_image_copies_is_let_through_and_is_what_make_dist_writes() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    through = {line[1:] for line in lines if line.startswith("!")}
    copied = shlex.split(instructions()["COPY"][0])[:-1]
    assert set(copied) == through
    wheel = "dist/headgate-0.1.0-py3-none-any.whl"
    assert any(fnmatch(wheel, pattern) for pattern in copied)
    assert "dist: setup" in (ROOT / "Makefile").read_text()


def test_the_images_health_check_is_a_command_that_asks_readyz(worker_daemon: Daemon) -> None:
    health = instructions()["HEALTHCHECK"][0]
    command = json.loads(health[health.index("CMD ") + 4 :])

    def asked(port: int) -> int:
        script = command[2].replace("127.0.0.1:7440", f"127.0.0.1:{port}")
        assert script != command[2]
        return subprocess.run(
            [sys.executable, "-c", script], check=False, stderr=subprocess.DEVNULL
        ).returncode

    assert asked(worker_daemon.port) == 0
    with kept_port() as port:  # where nobody listens
        assert asked(port) != 0
