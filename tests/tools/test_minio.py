"""How MinIO is found and built, and what the fixtures provide."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.minio import Bucket, Minio
from tools.minio import (
    MinioError,
    build,
    cache_folder,
    find_or_build,
    go_is_new_enough,
    start,
)
from tools.ports import kept_port

ROOT = Path(__file__).parents[2]

# Stands in for Go: checks how it is called, counts the calls, and "builds" a script.
FAKE_GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version go1.24.1 linux/amd64"; exit 0; fi
[ "$1" = install ] || exit 9
[ "$GOTOOLCHAIN" = local ] || exit 8
echo call >> "$COUNT_FILE"
printf '#!/bin/sh\\n' > "$GOBIN/minio"
chmod +x "$GOBIN/minio"
"""


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a stand-in for Go on PATH. Returns the file that counts its calls."""
    executable(tmp_path / "bin" / "go", FAKE_GO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    # Should the stand-in be refused, then no real Go is fetched for a build of minutes.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_the_variable_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = executable(tmp_path / "named")
    on_path = executable(tmp_path / "bin" / "minio")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("HEADGATE_MINIO", str(named))
    assert find_or_build() == named
    monkeypatch.delenv("HEADGATE_MINIO")
    assert find_or_build() == on_path


def test_a_variable_that_names_no_program_is_refused_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_MINIO", str(tmp_path / "absent"))
    with pytest.raises(MinioError, match="absent is not an executable file"):
        find_or_build()


@pytest.mark.parametrize(
    ("printed", "enough"),
    [
        ("go version go1.24 linux/amd64", True),
        ("go version go1.24.0 linux/arm64", True),
        ("go version go1.26.8 linux/amd64", True),
        ("go version go2.0 linux/amd64", True),
        ("go version go1.23.9 linux/amd64", False),
        ("go version go1.9 linux/amd64", False),
        ("", False),
    ],
)
def test_go_of_1_24_or_newer_will_do(printed: str, enough: bool) -> None:
    assert go_is_new_enough(printed) is enough


def test_the_cache_is_outside_the_checkout_by_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / "headgate"
    assert cache_folder().name.startswith("minio-v0.0.0-2026")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / ".cache" / "headgate"


def test_simultaneous_builds_build_once_and_leave_nothing_else(
    tmp_path: Path, calls: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    (folder / "build-killed").mkdir(parents=True)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(build(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [folder / "minio"] * 4
    assert calls.read_text() == "call\n"
    assert {entry.name for entry in folder.iterdir()} == {"minio", "lock"}
    assert "two minutes" in capfd.readouterr().err


def test_a_failed_build_leaves_no_binary_and_says_how_to_get_one(
    tmp_path: Path, calls: Path
) -> None:
    folder = tmp_path / "cache"
    executable(tmp_path / "bin" / "go", FAKE_GO.replace("echo call", "exit 7; echo call"))
    with pytest.raises(MinioError, match="HEADGATE_MINIO=FILE"):
        build(folder)
    assert {entry.name for entry in folder.iterdir()} == {"lock"}
    assert not calls.exists()


def test_a_server_that_ends_immediately_is_reported_with_its_log(tmp_path: Path) -> None:
    binary = executable(tmp_path / "minio", "#!/bin/sh\necho the disk is gone\nexit 3\n")
    (tmp_path / "data").mkdir()
    with kept_port() as port, pytest.raises(MinioError, match=r"(?s)ended with 3.*gone"):
        start(binary, tmp_path / "data", port)


@pytest.mark.parametrize("turn", ["one test", "the next"])
def test_each_test_has_an_empty_bucket_that_honors_if_none_match(bucket: Bucket, turn: str) -> None:
    assert bucket.url == f"s3://{bucket.bucket}/{bucket.prefix}"
    assert bucket.client.list_objects_v2(Bucket=bucket.bucket)["KeyCount"] == 0
    bucket.client.put_object(Bucket=bucket.bucket, Key="key", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        bucket.client.put_object(Bucket=bucket.bucket, Key="key", Body=b"2", IfNoneMatch="*")
    assert bucket.client.get_object(Bucket=bucket.bucket, Key="key")["Body"].read() == b"1"


def test_tests_that_use_the_server_are_marked(request: pytest.FixtureRequest, minio: Minio) -> None:
    assert request.node.get_closest_marker("s3") is not None
    assert minio.endpoint_url.startswith("http://127.0.0.1:")


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run of pytest on one test that needs a bucket, with the fixtures of this repository."""
    (folder / "test_sample.py").write_text("def test_sample(bucket):\n    pass\n")
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    options += ["-c", str(ROOT / "pyproject.toml"), str(folder)]
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def test_a_build_is_announced_before_the_first_test_which_fails_without_a_server_and_says_why(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_MINIO", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # it would use other runs' folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tests").mkdir()
    run = run_pytest(tmp_path / "tests")
    assert run.returncode == 1, run.stdout
    assert "1 error" in run.stdout and "skipped" not in run.stdout
    assert "ended with 0" in run.stdout, run.stdout
    assert run.stdout.index("about two minutes") < run.stdout.index(" ERRORS ")
    assert calls.read_text() == "call\n"


def test_make_minio_prints_the_line_that_serves_on_it_and_stops_on_a_signal(minio: Minio) -> None:
    assert minio.pid > 0  # the binary is there: building it is not what is waited for here
    command = [sys.executable, "-m", "tools.minio"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = ""
        while "Ctrl-C stops it." not in printed:
            line = process.stdout.readline()
            assert line, f"ended early after: {printed}"
            printed += line
        process.terminate()
        assert process.wait() == 0
    assert "headgate serve --store s3://headgate/demo" in printed
    assert "--set s3_endpoint_url=http://127.0.0.1:" in printed
