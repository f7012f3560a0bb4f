"""The Spark session that a syphon of the command line runs on: local, or of a cluster.

On a cluster the code is sent along, so that the workers need only azure-servicebus.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pairbus.spark.archive import write_archive
from pairbus.spark.session import LOCAL, local_session


@contextmanager
def session(master: str | None, name: str = "pairbus syphon") -> Iterator[Any]:
    """Stopped at the end, if it was made here. Without a master it is the one that spark-submit
    has named, or a local one."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not is_submitted:
        master = LOCAL
    with ExitStack() as stack:
        if master is not None and master.startswith("local"):
            spark, is_own = local_session(master, name)
        else:
            spark, is_own = _session(master, name), True
        if is_own:
            stack.callback(spark.stop)
        if not spark.sparkContext.master.startswith("local"):
            # The driver serves it from where it lies, for as long as there are workers.
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            archive = Path(folder) / "pairbus-syphon.zip"
            write_archive(archive)
            spark.sparkContext.addPyFile(str(archive))
        yield spark


def _session(master: str | None, name: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    return (builder if master is None else builder.master(master)).getOrCreate()
