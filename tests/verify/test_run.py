"""A run that cannot start."""

import pytest

from pairbus.errors import NamespaceError
from pairbus.verify.processes import LocalPair
from pairbus.verify.run import VerifyRun


def test_a_local_broker_that_cannot_start_ends_the_run_with_its_error(tmp_path):
    (tmp_path / "east").write_text("a file where the broker's folder should be")
    run = VerifyRun(
        tmp_path,
        LocalPair.in_folder(tmp_path),
        run="1",
        seconds=5,
        rate=10,
        senders=1,
        seed=1,
        drain_seconds=5,
        has_syphon=False,
        check_interrupt=lambda: None,
        note=lambda text: None,
    )

    try:
        with pytest.raises(NamespaceError, match="the run cannot continue: east ended with exit"):
            run.run()
    finally:
        run.close()
