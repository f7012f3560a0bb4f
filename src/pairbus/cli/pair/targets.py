"""The options that say which namespaces form a pair."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from pairbus.cli.administration import administration_client
from pairbus.cli.http import metrics_url
from pairbus.cli.output import format_count
from pairbus.cli.shared_options import option, option_group
from pairbus.cli.target import ENVIRONMENT, Target, parse_target, split_targets
from pairbus.errors import UsageError
from pairbus.fast.address import Address

ENTITIES_MAX: Final = 20
SECONDARY: Final = "secondary"
"""The role of that namespace. A primary's role is `primary`, with its name if there are several."""


@option_group
class PairOptions:
    # Not typer's `envvar`: that would split the variable at every space, also inside of a
    # connection string with a shared access signature.
    primary: list[str] | None = option(
        "TEXT",
        "Connection string of the primary, or its host name, to log in without a key "
        f"(default: {ENVIRONMENT}). Repeat it for each primary that has its "
        "backlog on this secondary; in the variable, separate them by spaces.",
    )
    secondary: str | None = option(
        "TEXT",
        "Connection string or host name of the secondary (default: PAIRBUS_SECONDARY).",
        envvar="PAIRBUS_SECONDARY",
        show_envvar=False,
    )
    primary_name: list[str] | None = option(
        "NAME",
        "Name of the primary in the paths of its backlog queues; repeat it for each "
        "primary, in the same order (default: the first label of the primary's host).",
    )
    primary_ca_file: list[Path] | None = option(
        "FILE",
        "Certificate authority of the primary; repeat it for each primary, or give one for all.",
    )
    secondary_ca_file: Path | None = option("FILE", "Certificate authority of the secondary.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTargets:
    primaries: Mapping[str, Target]
    """By their names in the paths of their backlog queues."""
    secondary: Target | None
    names: tuple[str, ...]
    """The names of all primaries, including those that are not given."""


@option_group
class ObserveOptions(PairOptions):
    """The pair to look at, and its processes."""

    metrics: list[str] | None = option(
        "URL",
        "Prometheus metrics of a client or a syphon; repeat it for each (default: "
        "PAIRBUS_METRICS, separated by spaces).",
        envvar="PAIRBUS_METRICS",
        show_envvar=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPair:
    """The namespaces and processes that are asked about a pair."""

    targets: Mapping[str, Target]
    """By their roles in the pair."""
    primary_names: tuple[str, ...] | None
    """The primaries whose backlog queues are shown; None: all."""
    urls: tuple[str, ...]
    """Where clients and syphons publish metrics."""


def observe(given: PairTargets, options: ObserveOptions) -> ObservedPair:
    """Raises UsageError."""
    roles = {
        f"primary {name}" if len(given.primaries) > 1 else "primary": target
        for name, target in given.primaries.items()
    }
    if given.secondary is not None:
        roles[SECONDARY] = given.secondary
    urls = tuple(metrics_url(url) for text in options.metrics or () for url in text.split())
    if not roles and not urls:
        raise UsageError(
            "which namespaces? Put their connection strings or host names into PAIRBUS_PRIMARY and "
            "PAIRBUS_SECONDARY, or give them with --primary and --secondary"
        )
    return ObservedPair(targets=roles, primary_names=given.names or None, urls=urls)


def parse_pair(options: PairOptions) -> PairTargets:
    """Returns the namespaces that are given. Raises UsageError."""
    texts = [
        text
        for given in options.primary or [os.environ.get(ENVIRONMENT, "")]
        for text in split_targets(given)
    ]
    names = tuple(options.primary_name or ())
    files = options.primary_ca_file or []
    given = format_count(len(texts), "primary", "primaries")
    if texts and names and len(names) != len(texts):
        raise UsageError(
            f"{given} but {format_count(len(names), 'time')} --primary-name: give it once for each "
            "primary, in the same order, or not at all"
        )
    if len(files) > 1 and len(files) != len(texts):
        raise UsageError(
            f"{given} but {format_count(len(files), 'time')} --primary-ca-file: give one for all, "
            "or one for each primary, in the same order"
        )
    primaries: dict[str, Target] = {}
    for index, text in enumerate(texts):
        file = files[index] if len(files) > 1 else files[0] if files else None
        target = _parse(text, file, "primary")
        name = names[index] if names else target.host.split(".")[0]
        if name.lower() in map(str.lower, primaries):
            raise UsageError(
                f"two primaries have the name {name!r}, so their backlog queues have the same "
                "paths: give each its own --primary-name"
            )
        primaries[name] = target
    secondary = None
    if options.secondary and options.secondary.strip():
        secondary = _parse(options.secondary, options.secondary_ca_file, SECONDARY)
        for primary in primaries.values():
            if primary.address.lower() == secondary.address.lower():
                raise UsageError(f"primary and secondary are the same namespace, {primary.address}")
    return PairTargets(primaries=primaries, secondary=secondary, names=names or tuple(primaries))


def address_of(target: Target) -> Address:
    """For the syphon's own connections."""
    return Address.from_connection_string(
        target.text.reveal(),
        ca_file=None if target.ca_file is None else str(target.ca_file.resolve()),
    )


def some_entities(target: Target) -> list[str]:
    """Queues and topics to try a right on. Empty if the policy may not list them."""
    from azure.core.exceptions import AzureError

    if target.entity_path is not None:
        return [target.entity_path]
    found: list[str] = []
    with suppress(AzureError), administration_client(target, retry_total=0) as client:
        found = [one.name for one in islice(client.list_queues(), ENTITIES_MAX)]
        found = found or [one.name for one in islice(client.list_topics(), ENTITIES_MAX)]
    return found


def _parse(text: str, ca_file: Path | None, role: str) -> Target:
    try:
        return parse_target(text, ca_file, ca_option=f"--{role}-ca-file")
    except UsageError as error:
        raise UsageError(f"the {role}: {error}") from None
