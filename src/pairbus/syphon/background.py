"""The syphon in the background of a paired client: what `enable_syphon=True` starts.

It runs the same job in a thread, on the Spark session that is active or on a local one of its own,
and knows the namespaces by the application's own clients. When it cannot go on it says so to the
pairing, which faults both clients.
"""

from __future__ import annotations

import inspect
import logging
import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from azure.core.credentials import AzureNamedKeyCredential

from pairbus.client.sdk import private as internals
from pairbus.client.sdk.errors import PairingError
from pairbus.client.syphon import SyphonContext
from pairbus.fast.address import Address
from pairbus.spark.session import end_session, local_session
from pairbus.syphon.job import Job
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.runner import SparkRunner

if TYPE_CHECKING:
    from pairbus.syphon.ledger import ParquetLedger

logger = logging.getLogger("pairbus.syphon")

# Closing a client is to take no more than five seconds, and waits for the round that runs, be it
# one that Spark has not begun yet, and for Spark.
ROUND_SECONDS = 1.5
CANCEL_SECONDS = 3.2


class BackgroundSyphon:
    """`SendAvailabilityPairedNamespaceOptions(..., enable_syphon=True, syphon=BackgroundSyphon())`.

    That is also the default; make one to hand it a Spark session or a ledger.
    """

    def __init__(self, spark: Any = None, *, ledger: ParquetLedger | None = None) -> None:
        self._given = spark
        self._own: Any = None
        self._ledger = ledger
        self._job: Job | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def start(self, context: SyphonContext) -> None:
        options = SyphonOptions(
            primaries={context.namespace: address_of(context.primary)},
            secondary=address_of(context.secondary),
            round_seconds=ROUND_SECONDS,
            # Most clients never have anything diverted: no Python of Spark's is started for that.
            begins_with_a_round=False,
        )
        spark = self._given
        if spark is None:
            spark, is_own = local_session()
            if is_own:
                self._own = spark
                spark.sparkContext.setLogLevel("ERROR")
        group = f"pairbus-syphon-{uuid4()}"
        self._job = Job(
            options,
            SparkRunner(spark),
            lambda: context.backlog_queues,
            ledger=self._ledger,
            cancel=lambda: self._cancel(spark, group),
            cancel_seconds=CANCEL_SECONDS,
        )
        self._thread = threading.Thread(
            target=self._run,
            args=(self._job, context, spark, group),
            name="pairbus-syphon",
            daemon=True,
        )
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> None:
        self._is_stopping = True
        if self._job is not None:
            self._job.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning("the syphon is still busy with its last round")
        if self._own is not None:
            own, self._own = self._own, None
            end_session(own)

    def _cancel(self, spark: Any, group: str) -> None:
        if self._own is not None:
            # What is interrupted now would be told at length.
            spark.sparkContext.setLogLevel("OFF")
        spark.sparkContext.cancelJobGroup(group)

    def _run(self, job: Job, context: SyphonContext, spark: Any, group: str) -> None:
        try:
            spark.sparkContext.setJobGroup(group, "the syphon")
            job.run()
        except Exception as error:
            if self._is_stopping:
                logger.warning("the syphon of %s was interrupted: %s", context.namespace, error)
                return
            logger.exception("the syphon of %s cannot go on", context.namespace)
            context.fault(f"the syphon failed: {error}")


def address_of(client: Any) -> Address:
    """Where a client of the SDK connects to and with what, for the syphon's own connections."""
    host = internals.host_of(client)
    if internals.address_of(client)[1] is not None:
        raise PairingError(
            f"the syphon cannot take the custom endpoint of the client of {host!r}; run "
            "`pairbus syphon` with a connection string instead",
            namespace=host,
        )
    return Address.from_credential(
        host,
        _blocking(internals.credential_of(client), host),
        use_tls=internals.uses_tls(client),
        ca_file=internals.ca_file_of(client),
    )


def _blocking(credential: Any, host: str) -> Any:
    """asyncio's clients have credentials that are awaited; keys can be had from them all the
    same."""
    policy, key = getattr(credential, "policy", None), getattr(credential, "key", None)
    if policy and key:
        return AzureNamedKeyCredential(policy, key)
    if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
        raise PairingError(
            f"the syphon needs a credential of azure.identity, not of azure.identity.aio, for "
            f"{host!r}; run `pairbus syphon` in a process of its own instead",
            namespace=host,
        )
    return credential
