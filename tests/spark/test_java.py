"""The Java process of a Spark session: nothing of it is left, whenever it is interrupted."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pairbus.spark.java import JavaProcess


def test_ctrl_c_in_the_moment_in_which_java_starts_leaves_no_process_and_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java_gateway: Any = pytest.importorskip("pyspark.java_gateway")
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        """There is a process, and it is not known to the caller yet."""

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    java = JavaProcess()

    with pytest.raises(KeyboardInterrupt), java.starting():
        java_gateway.Popen(["sleep", "60"], stdin=subprocess.PIPE)

    [process] = started
    try:
        assert process.poll() == -signal.SIGKILL
        assert not Path(java.folder).exists()
    finally:
        process.kill()
        process.wait()
