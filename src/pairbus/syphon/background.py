"""The syphon in the background of a paired client: what `enable_syphon=True` starts.

It runs the same job in a thread, on the active Spark session or on a local one of its own, and
connects to the namespaces with the credentials of the application's clients. If it cannot continue,
it reports that to the pairing, which starts it again.
"""

from __future__ import annotations

import inspect
import logging
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError

from pairbus.client.sdk import private
from pairbus.client.sdk.pairing_errors import PairingError
from pairbus.client.syphon import SyphonContext
from pairbus.fast.address import Address
from pairbus.spark.session import check_session, end_session, has_ended, local_session
from pairbus.syphon.job import Job
from pairbus.syphon.options import SyphonOptions
from pairbus.syphon.rights import MissingRight, check_right, destinations_in_backlog
from pairbus.syphon.runner import SparkRunner

if TYPE_CHECKING:
    from pairbus.syphon.ledger import ParquetLedger

logger = logging.getLogger("pairbus.syphon")

# Closing a client must take no more than five seconds. It waits for the current round, even for one
# that Spark has not started yet, and for Spark.
ROUND_SECONDS = 1.5
CANCEL_SECONDS = 3.2
# A Java process that is killed closes its sockets a moment before it has ended.
ENDING_SECONDS = 0.5


class BackgroundSyphon:
    """`SendAvailabilityPairedNamespaceOptions(..., enable_syphon=True, syphon=BackgroundSyphon())`.

    This is also the default. Create it yourself to set a Spark session or a ledger, or to keep the
    time to live of a message running while it waits in the backlog.
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        ledger: ParquetLedger | None = None,
        ttl_keeps_running: bool = False,
    ) -> None:
        self._given = spark
        self._ttl_keeps_running = ttl_keeps_running
        self._own: Any = None
        self._ledger = ledger
        self._job: Job | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self, context: SyphonContext) -> None:
        options = SyphonOptions(
            primaries={context.namespace: address_of(context.primary)},
            secondary=address_of(context.secondary),
            round_seconds=ROUND_SECONDS,
            ttl_keeps_running=self._ttl_keeps_running,
            # Most clients never divert a message. Then no Python worker of Spark is started.
            begins_with_a_round=False,
        )
        _check_rights(options, context)
        spark = self._given
        if spark is None:
            spark, is_own = local_session()
            if is_own:
                self._own = spark
                spark.sparkContext.setLogLevel("ERROR")
        group = f"pairbus-syphon-{uuid4()}"
        self._stopping = threading.Event()
        self._job = Job(
            options,
            SparkRunner(spark),
            lambda: context.backlog_queues,
            ledger=self._ledger,
            check=partial(check_session, spark),
            cancel=lambda: self._cancel(spark, group),
            cancel_seconds=CANCEL_SECONDS,
        )
        run = partial(self._run, self._job, context, spark, group, self._stopping)
        self._thread = threading.Thread(target=run, name="pairbus-syphon", daemon=True)
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> None:
        self._stopping.set()
        if self._job is not None:
            self._job.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning("the last round of the syphon is still running")
        self._job = self._thread = None
        if self._own is not None:
            own, self._own = self._own, None
            end_session(own)

    def _cancel(self, spark: Any, group: str) -> None:
        if has_ended(spark):
            return
        if self._own is not None:
            # Spark would log pages of errors about the interrupted work.
            spark.sparkContext.setLogLevel("OFF")
        spark.sparkContext.cancelJobGroup(group)

    def _run(
        self, job: Job, context: SyphonContext, spark: Any, group: str, stopping: threading.Event
    ) -> None:
        try:
            spark.sparkContext.setJobGroup(group, "the syphon")
            job.run()
        except Exception as error:
            if stopping.wait(ENDING_SECONDS):
                logger.warning("the syphon of %s was interrupted: %s", context.namespace, error)
                return
            logger.debug("the syphon of %s cannot continue", context.namespace, exc_info=True)
            if has_ended(spark):
                error = RuntimeError("the Spark session was stopped, or its Java process has ended")
            context.failed(error)


def _check_rights(options: SyphonOptions, context: SyphonContext) -> None:
    """Raises PairingError if a right is missing. A namespace that does not answer is no error."""
    [primary] = options.primaries.values()
    queues = context.backlog_queues

    def destinations() -> list[str]:
        in_backlog = destinations_in_backlog(options.secondary, queues)
        return [*dict.fromkeys([*context.entities, *in_backlog])]

    try:
        with suppress(AzureError):
            check_right(options.secondary, "Listen", lambda: queues, role="the secondary")
        with suppress(AzureError):
            check_right(primary, "Send", destinations, role="the primary")
    except MissingRight as error:
        raise PairingError(str(error), namespace=context.namespace) from error


def address_of(client: Any) -> Address:
    """The address and credential of an SDK client, for the syphon's own connections."""
    host = client.fully_qualified_namespace
    if entity := private.entity_of(client):
        raise PairingError(
            f"the client of {host!r} is for the entity {entity!r} only (EntityPath in its "
            "connection string); the syphon needs a connection string of the namespace",
            namespace=host,
        )
    if private.address_of(client)[1] is not None:
        raise PairingError(
            f"the client of {host!r} has a custom endpoint, which the syphon does not support; "
            "run `pairbus syphon` with a connection string instead",
            namespace=host,
        )
    return Address.from_credential(
        host,
        _blocking(private.credential_of(client), host),
        use_tls=private.uses_tls(client),
        ca_file=private.ca_file_of(client),
    )


def _blocking(credential: Any, host: str) -> Any:
    """The credentials of asyncio clients are awaited, but a key can be read from them."""
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
