"""Puts the floors below ``headgate_server`` in a wheel; pyproject.toml has everything else.

An editable install leaves them where they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FLOORS = ("commands", "daemon", "delivery", "compaction", "uploader", "shards", "ledger")
SUFFIXES = {".py", ".html", ".css", ".js"}


class BuildFloors(build_py):  # type: ignore[misc]
    """``build_py``, and the floors."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / "headgate_server" / "floors"
        shutil.rmtree(folder, ignore_errors=True)  # of another build
        files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*.*")]
        for path in (ROOT / "cli.py", *(each for each in files if each.suffix in SUFFIXES)):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildFloors})
