"""Packages that tests download: those of Maven with what they need."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.examples.test_proxies import program

COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
POM = """
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.example</groupId> <artifactId>client</artifactId> <version>1</version>
  <dependencies>%s</dependencies>
</project>
"""
DEPENDENCY = """
    <dependency>
      <groupId>%s</groupId> <artifactId>%s</artifactId> <version>%s</version>
    </dependency>
"""


def download(command: Sequence[str], cwd: Path | None = None) -> None:
    """Runs a command that downloads packages, which is tried three times: a registry that fails
    for a moment fails no test."""
    for _ in range(2):
        if subprocess.run(command, cwd=cwd, check=False).returncode == 0:
            return
    subprocess.run(command, cwd=cwd, check=True)


def copy_jars(folder: Path, *packages: str) -> None:
    """Puts ``group:artifact:version`` and what they need when they run into a folder."""
    of_each = "".join(DEPENDENCY % tuple(each.split(":")) for each in packages)
    (folder / "pom.xml").write_text(POM % of_each)
    mvn = [program("mvn", "maven"), "-q", "-B", COPY_DEPENDENCIES, "-DoutputDirectory=."]
    download([*mvn, "-DincludeScope=runtime"], folder)
