"""What `pairbus syphon` does: runs the job, and shows how it goes."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.console.target import Target, parse_target
from pairbus.errors import ConfigError, NamespaceError, OptionsError
from pairbus.spark.session import local_session
from pairbus.spark.settings import Address
from pairbus.syphon.discovery import Listed
from pairbus.syphon.job import Job, RoundEnded, SyphonError, SyphonOptions
from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Receipt
from pairbus.syphon.runner import SparkRunner

PLAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    primary: str | None
    secondary: str | None
    namespace: str | None
    primary_ca_file: Path | None
    secondary_ca_file: Path | None
    master: str
    once: bool
    ledger: Path | None
    ttl_keeps_running: bool
    shares: int
    as_json: bool


def run(wanted: Wanted) -> None:
    primary = _target(wanted.primary, wanted.primary_ca_file, "--primary", "PAIRBUS_PRIMARY")
    secondary = _target(
        wanted.secondary, wanted.secondary_ca_file, "--secondary", "PAIRBUS_SECONDARY"
    )
    if primary.address.lower() == secondary.address.lower():
        raise ConfigError(f"primary and secondary are the same namespace, {primary.address}")
    if importlib.util.find_spec("pyspark") is None:
        raise OptionsError("the syphon runs on Spark, which is not installed: pairbus[spark]")
    ledger = None if wanted.ledger is None else ParquetLedger(wanted.ledger)
    options = SyphonOptions(
        primary=_address(primary),
        secondary=_address(secondary),
        shares=wanted.shares,
        ttl_keeps_running=wanted.ttl_keeps_running,
    )
    namespace = wanted.namespace or primary.host.split(".")[0]
    with ServiceBusAdministrationClient.from_connection_string(
        secondary.text, connection_verify=secondary.verify
    ) as manager:
        discovery = Listed(manager, namespace)
        _check(discovery, secondary)
        spark, is_own = local_session(wanted.master)
        show = _Show(as_json=wanted.as_json)
        job = Job(options, SparkRunner(spark), discovery, ledger=ledger, progress=show.round_ended)
        before = {
            number: signal.signal(number, lambda *_: job.stop())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            show.end(job.run(once=wanted.once))
        except (SyphonError, AzureError) as error:
            raise NamespaceError(str(error)) from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if is_own:
                spark.stop()


def _target(text: str | None, ca_file: Path | None, option: str, variable: str) -> Target:
    if not text:
        raise ConfigError(f"which namespace? Give {option} a connection string, or {variable}")
    return parse_target(text, ca_file)


def _address(target: Target) -> Address:
    return Address.from_connection_string(
        target.text, ca_file=None if target.ca_file is None else str(target.ca_file)
    )


def _check(discovery: Listed, secondary: Target) -> None:
    """Before Spark is started, which takes a while: may we, and is anybody there?"""
    try:
        discovery.queues()
    except AzureError as error:
        raise NamespaceError(
            f"the queues of the secondary {secondary.address} cannot be listed: "
            f"{' '.join(str(error).split())}"
        ) from error


class _Show:
    """Lines on stderr for people, now and then; on stdout one JSON object a round, if asked."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._said = 0.0
        self._moved = 0
        self._began = time.monotonic()

    def round_ended(self, ended: RoundEnded) -> None:
        counts = _counts(ended.receipts)
        self._moved += counts["moved"]
        if self._as_json:
            print(json.dumps(_as_dict(ended, counts)), flush=True)
            return
        now = time.monotonic()
        if now - self._said < PLAIN_SECONDS and not (counts["buried"] or ended.troubles):
            return
        self._said = now
        rate = counts["moved"] / max(ended.seconds, 0.001)
        waiting = f", {counts['waiting']} wait for their destination" if counts["waiting"] else ""
        buried = f", {counts['buried']} dead-lettered" if counts["buried"] else ""
        left = f"; more in {len(ended.pending)} queues" if ended.pending else ""
        print(
            f"round {ended.round}: {counts['moved']} brought home ({rate:,.0f}/s){waiting}{buried}"
            f"{left}; {self._moved} in all",
            file=sys.stderr,
            flush=True,
        )

    def end(self, receipts: list[Receipt]) -> None:
        counts = _counts(receipts)
        seconds = time.monotonic() - self._began
        if self._as_json:
            print(json.dumps({"ended": True, "seconds": round(seconds, 3), **counts}), flush=True)
            return
        print(
            f"{counts['moved']} brought home, {counts['buried']} dead-lettered, "
            f"{counts['expired']} expired, in {seconds:.1f} s"
        )


def _counts(receipts: Any) -> Counter[str]:
    counts: Counter[str] = Counter(moved=0, waiting=0, buried=0, expired=0)
    for receipt in receipts:
        counts[receipt.outcome.value] += receipt.count
    return counts


def _as_dict(ended: RoundEnded, counts: Counter[str]) -> dict[str, Any]:
    return {
        "round": ended.round,
        "seconds": round(ended.seconds, 3),
        **counts,
        "by_path": [
            {
                "queue": each.queue,
                "path": each.path,
                "outcome": each.outcome.value,
                "count": each.count,
                "bytes": each.bytes,
            }
            for each in ended.receipts
        ],
        "pending": list(ended.pending),
        "troubles": dict(ended.troubles),
    }
