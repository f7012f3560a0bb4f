"""The pipeline that brings diverted messages home: out of the backlog queues, to where they belong.

    restore.py        pure: a backlog message made into the message that was sent
    destinations.py   pure: what is known of queues and topics of the primary; the whole policy
    step.py           pure: what to do with a message, given that
    receipts.py       pure: what was done, in rows that add up (waits)
    drain.py      one task of a round: receive, restore, send, settle
    plan.py       pure: which queues the next round takes, and when
    job.py        the driver's loop of rounds; runner.py runs a round on Spark
    background.py the same within a paired client

Nothing of Spark or of Azure's SDK is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any


def background() -> Any:
    """The syphon for a paired client whose options ask for one; not started."""
    return importlib.import_module("pairbus.syphon.background").BackgroundSyphon()
