"""A syphon in a process of its own, to be killed. It runs until SIGTERM and prints its progress.

Run as `python -m tests.syphon.driver MASTER CHUNK QUEUE...`; the namespaces are in the environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from pairbus.fast.address import Address
from pairbus.spark.session import syphon_session
from pairbus.syphon.job import Job
from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.receipts import RoundEnded
from pairbus.syphon.runner import SparkRunner

PRIMARY, SECONDARY = "PAIRBUS_TEST_PRIMARY", "PAIRBUS_TEST_SECONDARY"
LEDGER = "PAIRBUS_TEST_LEDGER"


def main(master: str, chunk: str, *queues: str) -> None:
    options = SyphonOptions(
        primaries={"contoso": Address.from_connection_string(os.environ[PRIMARY])},
        secondary=Address.from_connection_string(os.environ[SECONDARY]),
        chunk=int(chunk),
    )
    with syphon_session(master) as spark:
        spark.sparkContext.setLogLevel("OFF")
        ledger = ParquetLedger(os.environ[LEDGER], messages=True)
        job = Job(options, SparkRunner(spark), lambda: queues, ledger=ledger, progress=_tell)
        signal.signal(signal.SIGTERM, lambda *_: job.stop())
        print("ready", flush=True)
        job.run()


def _tell(ended: RoundEnded) -> None:
    counts = [[each.outcome.value, each.count] for each in ended.receipts]
    print(json.dumps({"round": ended.round, "receipts": counts}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
