"""What Headgate puts into an environment that it shares with others: one package.

The floors (``daemon``, ``shards``, ...) have names that other distributions have too. An
installation keeps them in the folder ``floors`` of this package, which is on the path of Headgate's
own processes only. A checkout has them at its root.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FLOORS", "main", "register"]

_HERE = Path(__file__).resolve().parent
FLOORS = _HERE / "floors" if (_HERE / "floors").is_dir() else _HERE.parent


def main() -> None:
    """The command ``headgate``. The processes that it starts find the floors as it does."""
    sys.path.insert(0, str(FLOORS))
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(FLOORS) not in others:  # as after a daemon that has replaced its own process
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(FLOORS), *others]))
    from cli import main as command

    command()


def register(spark: SparkSession) -> None:
    """Makes ``format("headgate")`` known to a Spark session, and its code to the workers."""
    if str(FLOORS) not in sys.path:
        sys.path.append(str(FLOORS))  # last: a ``daemon`` that the program imports stays what it is
    from compaction import HeadgateDataSource
    from compaction.archive import NAME, build_archive

    folder = tempfile.mkdtemp(prefix="headgate-spark-")
    atexit.register(
        shutil.rmtree, folder, ignore_errors=True
    )  # until then executors may ask for it
    spark.sparkContext.addPyFile(str(build_archive(Path(folder) / NAME)))
    spark.dataSource.register(HeadgateDataSource)
