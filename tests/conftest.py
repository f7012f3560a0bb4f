"""What all tests share: compiled files, hypothesis, Ctrl-C, the garbage collector, fixed ports.

`HYPOTHESIS_PROFILE=night` tries harder and differently every time; the default is the same run
everywhere. Brokers and clients to test with are in the conftest of the folder that needs them.
"""

import fcntl
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# As in the Makefile, compiled files are kept even where the environment says otherwise. Without
# them, each process takes ten seconds instead of three to collect the tests, and each of the
# programs that the tests start compiles everything again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that runs the tests in its background has them ignore SIGINT, and so would all programs
# that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a machine that others use, too.
EVERYWHERE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", EVERYWHERE, max_examples=50, derandomize=True, database=None)
settings.register_profile("night", EVERYWHERE, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live until the end. Without this, each `gc.collect()` visits all of them:
    half of the processor time of the tests that call it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture
def fixed_ports() -> Iterator[None]:
    """For a broker on the ports that a page names: one test at a time, on the whole machine."""
    with (Path(tempfile.gettempdir()) / f"pairbus-tests-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
