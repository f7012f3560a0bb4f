"""A Spark session for the syphon: the one that is there, or a small local one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

LOCAL = "local[2,4]"
"""Two tasks at once, and four attempts of each: plain `local[2]` gives a task only one."""
# The driver only hands out tasks: what the JVM compiles and collects is not worth two cores.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOG = Path(__file__).with_name("log4j2.properties")
_EXIT_SECONDS = 2.0

_started: Any = None
"""py4j's gateway to the Java machine that was started here."""


def local_session(master: str = LOCAL, name: str = "pairbus syphon") -> tuple[Any, bool]:
    """The session, and whether it was made here and is to be ended here: see `end_session`."""
    global _started
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    # In another thread there may be no active session, and yet the application's context.
    is_own = SparkContext._active_spark_context is None
    has_java = SparkContext._gateway is not None
    # Else Spark complains that the machine's name is one of the loopback.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The workers of a local session are to be this very Python: that of the PATH knows no pairbus.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", _java_options())
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
    )
    session = builder.getOrCreate()
    if not has_java:
        _started = SparkContext._gateway
    return session, is_own


def _java_options() -> str:
    # In an archive there is no such file, and with a space in its name it would be two words.
    if not _LOG.is_file() or " " in str(_LOG):
        return _JAVA_OPTIONS
    return f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={_LOG.as_uri()}"


def end_session(session: Any) -> None:
    """Stop a session that was made here, and the Java machine if that was started for it: Spark
    leaves it to the end of the process."""
    global _started
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway
    if gateway is None or gateway is not _started:
        return
    _started = SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with suppress(OSError):
        process.stdin.close()  # which is how it is told
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
