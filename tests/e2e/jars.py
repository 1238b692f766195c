"""Packages of Maven that tests run, with what they need."""

from __future__ import annotations

import subprocess
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


def copy_jars(folder: Path, *packages: str) -> None:
    """Puts ``group:artifact:version`` and what they need when they run into a folder."""
    of_each = "".join(DEPENDENCY % tuple(each.split(":")) for each in packages)
    (folder / "pom.xml").write_text(POM % of_each)
    subprocess.run(
        [program("mvn", "maven"), "-q", "-B", COPY_DEPENDENCIES, "-DoutputDirectory=.",
         "-DincludeScope=runtime"],
        cwd=folder, check=True,
    )  # fmt: skip
