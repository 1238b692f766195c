"""Headgate's code for Spark executors: one zip of Python files for ``--py-files``.

It contains the packages ``ledger``, ``shards``, ``uploader``, and ``compaction``. Executors also
need pyarrow, boto3, and msgspec, and use crc32c if they have it. The same sources always give the
same bytes.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

PACKAGES = ("ledger", "shards", "uploader", "compaction")
NAME = "headgate-spark.zip"
# The oldest time that a zip can have. With the files' own times no two archives would be equal.
_TIME = (1980, 1, 1, 0, 0, 0)


def is_local(master: str) -> bool:
    """Whether this master runs everything on the driver's machine."""
    return master == "local" or master.startswith("local[")


def build_archive(archive: Path) -> Path:
    """Writes the archive atomically and returns its path. Raises OSError.

    If Headgate itself runs from such an archive, in a job of spark-submit, returns that one.
    """
    root = Path(__file__).resolve().parent.parent
    if root.is_file():
        return root
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as file:
            for package in PACKAGES:
                for source in sorted((root / package).rglob("*.py")):
                    entry = zipfile.ZipInfo(source.relative_to(root).as_posix(), _TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.external_attr = 0o644 << 16
                    file.writestr(entry, source.read_bytes())
        fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)
    return archive


def main(arguments: list[str]) -> int:
    """``python -m compaction.archive [FOLDER]``: builds the archive in FOLDER, or in ``dist``."""
    folder = Path(arguments[0]) if arguments else Path("dist")
    archive = build_archive(folder / NAME)
    sys.stdout.write(f"{archive}: {archive.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
