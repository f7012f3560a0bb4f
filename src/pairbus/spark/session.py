"""A Spark session for the syphon: the one that is there, or a small local one."""

from __future__ import annotations

import os
import sys
from typing import Any

LOCAL = "local[2,4]"
"""Two tasks at once, and four attempts of each: plain `local[2]` gives a task only one."""


def local_session(master: str = LOCAL, name: str = "pairbus syphon") -> tuple[Any, bool]:
    """The session, and whether it was made here and is to be stopped here."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    # The workers of a local session are to be this very Python: that of the PATH knows no pairbus.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
    )
    return builder.getOrCreate(), True
