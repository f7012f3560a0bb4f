"""Spark sessions for the syphon: their requirements, how they start and end, and the code archive.

On a cluster the package is sent along as an archive, so that the workers need only
azure-servicebus.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pairbus
from pairbus.errors import MissingExtra, NamespaceError, OptionsError
from pairbus.spark.java import JavaProcess

JAVA_MIN: Final = 17
LOCAL: Final = "local[5,4]"
"""Five tasks at a time, with four attempts each: plain `local[5]` gives a task only one. Tasks wait
for the namespaces most of the time, so there may be more of them than cores. By default, a pair
has ten backlog queues: two for each task.
"""
PACKAGE: Final = Path(pairbus.__file__).resolve().parent

# The driver only hands out tasks, so optimising the JVM's code is not worth the CPU time.
# Performance data would be a file outside of the folder for temporary files.
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")

_ENDING_SECONDS: Final = 0.5
_JAVA_ENDED: Final = "the Spark session was stopped, or its Java process has ended"

_java: JavaProcess | None = None
"""The Java process that was started here."""


# -- what is needed ---------------------------------------------------------------------------


def require_spark(who: str) -> None:
    """Raise MissingExtra or OptionsError if PySpark or Java is missing. `who`: "the syphon"."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtra(who, package="pyspark", extra="spark")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return  # started by spark-submit, which has started Java
    home = os.environ.get("JAVA_HOME")
    version = _java_version(home)
    if version is None or version < JAVA_MIN:
        place = f"in JAVA_HOME ({home})" if home else "on the PATH"
        found = f"there is none {place}" if version is None else f"Java {version} is {place}"
        raise OptionsError(
            f"{who} runs on Spark, which needs Java {JAVA_MIN} or newer, but {found}: install "
            f"openjdk-{JAVA_MIN}-jre-headless (Debian), or set JAVA_HOME to a newer one"
        )


def _java_version(home: str | None) -> int | None:
    """The version of the Java that Spark would use."""
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


# -- sessions ---------------------------------------------------------------------------------


@contextmanager
def syphon_session(master: str | None, name: str = "pairbus syphon") -> Iterator[Any]:
    """Yields a session of `master`, local or a cluster. A session that was made here is stopped at
    the end.

    Without `master`, it uses the master of spark-submit, or a local one.
    """
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = LOCAL
    with ExitStack() as stack:
        if master is not None and master.startswith("local"):
            spark, is_own = local_session(master, name)
        else:
            spark, is_own = _cluster_session(master, name), True
        if is_own:
            stack.callback(end_session, spark)
        if not spark.sparkContext.master.startswith("local"):
            # The driver serves the file to new workers, so it must stay until the end.
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            archive = Path(folder) / "pairbus-syphon.zip"
            write_archive(archive)
            spark.sparkContext.addPyFile(str(archive))
        try:
            yield spark
        except Exception as error:
            if _java_ends():
                raise NamespaceError(_JAVA_ENDED) from error
            raise
        except BaseException:
            # A signal, perhaps in the middle of a call to Java: no other call would be answered.
            if _java is not None:
                _java.kill()
            raise


def _cluster_session(master: str | None, name: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    with _starting_java():
        return (builder if master is None else builder.master(master)).getOrCreate()


@contextmanager
def _starting_java() -> Iterator[str | None]:
    """Yields the folder for temporary files of the Java process that PySpark starts inside of the
    block; None if there is a Java process already.
    """
    global _java
    from pyspark import SparkContext

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield None
        return
    java = JavaProcess()
    try:
        with java.starting():
            yield java.folder
    except BaseException:
        # What was made so far refers to a process that has ended.
        SparkContext._gateway = SparkContext._jvm = None
        raise
    _java = java


def local_session(master: str = LOCAL, name: str = "pairbus syphon") -> tuple[Any, bool]:
    """Returns the active session or a new local one, and whether it is new. End a new one with
    `end_session`.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if _java_has_ended():
        _forget_java()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    # In another thread there may be no active session although the application has a context.
    is_own = SparkContext._active_spark_context is None
    # Otherwise Spark warns that the machine's name resolves to a loopback address.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Local workers must run this Python: the one on the PATH may not have pairbus.
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
    with _starting_java() as folder:
        if folder is not None:
            builder = builder.config("spark.driver.extraJavaOptions", _java_options(folder))
            builder = builder.config("spark.local.dir", folder)
        return builder.getOrCreate(), is_own


def _java_options(folder: str) -> str:
    options = _JAVA_OPTIONS
    # Java would split a path with a space in it. In an archive, the file does not exist.
    if " " not in folder:
        options += f" -Djava.io.tmpdir={folder}"
    if _LOG_CONFIG.is_file() and " " not in str(_LOG_CONFIG):
        options += f" -Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"
    return options


def end_session(session: Any) -> None:
    """Stop a session that was made here, and the Java process if it was started here.

    Spark itself keeps the Java process until this one ends.
    """
    global _java
    from pyspark import SparkContext

    if _java_has_ended():
        _forget_java()
        return
    session.stop()
    if _java is not None:
        gateway: Any = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        java, _java = _java, None
        java.end()


def check_session(session: Any) -> None:
    """Raise NamespaceError if a session cannot run anything any more."""
    if has_ended(session):
        raise NamespaceError(_JAVA_ENDED)


def _java_ends() -> bool:
    """A Java process that is killed closes its sockets a moment before it has ended."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    with suppress(subprocess.TimeoutExpired):
        if process is not None:
            process.wait(_ENDING_SECONDS)
    return _java_has_ended()


def has_ended(session: Any) -> bool:
    """Whether a session was stopped, or its Java process has ended."""
    return session.sparkContext._jsc is None or _java_has_ended()


def _java_has_ended() -> bool:
    """Whether the Java process of PySpark was killed, or ran out of memory. False if there is none,
    or if PySpark did not start it, as under spark-submit.
    """
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _forget_java() -> None:
    """Drop what PySpark remembers of a Java process that has ended. It would ask that process for
    the active session, and so never start another one.
    """
    global _java
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    gateway: Any = SparkContext._gateway
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # there is nothing to stop in Java
        context.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        gateway.proc.stdin.close()
    if _java is not None:
        java, _java = _java, None
        java.end()


# -- the code as an archive -------------------------------------------------------------------

_LEFT_OUT: Final = ("broker", "testing.py", "__pycache__")
# The same code gives the same archive, byte for byte, whenever it is made.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def write_archive(path: Path) -> int:
    """Write the package without the local broker; returns the number of modules in it.

    The command line is included: a driver that starts with the archive on its path needs it. An
    existing file is replaced in one step.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(PACKAGE.rglob("*.py")):
                inside = file.relative_to(PACKAGE.parent)
                if not set(inside.parts[1:]).isdisjoint(_LEFT_OUT):
                    continue
                entry = zipfile.ZipInfo(inside.as_posix(), _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
                count += 1
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count
