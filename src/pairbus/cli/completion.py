"""Names of entities for shell completion, if the namespace answers in time.

A failure completes to nothing, because error messages would disturb the shell's prompt.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

import typer

from pairbus.cli.administration import Administration, EntityKind, administration
from pairbus.cli.target import ENVIRONMENT, Target, parse_target

_SECONDS_MAX: Final = 3.0


def complete_queue_or_topic(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, queues_and_topics)


def complete_subscription(context: typer.Context, incomplete: str) -> list[str]:
    topic = context.params.get("entity")
    if not isinstance(topic, str) or not topic:
        return []
    return _complete(context, incomplete, lambda admin: admin.names(EntityKind.SUBSCRIPTION, topic))


def queues_and_topics(admin: Administration) -> list[str]:
    return [*admin.names(EntityKind.QUEUE), *admin.names(EntityKind.TOPIC)]


def names_within_timeout(
    target: Target, list_names: Callable[[Administration], list[str]], *, seconds: float
) -> list[str]:
    """The names, or none if the namespace refuses or does not answer within this time."""
    import azure.servicebus.management  # noqa: F401  # takes a while: load it before the time limit starts

    found: list[str] = []

    def work() -> None:
        try:
            with administration(target) as admin:
                found.extend(list_names(admin))
        except Exception:
            logging.getLogger(__name__).debug("cannot list names", exc_info=True)

    # A daemon thread, so that a hanging namespace does not block the shell.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    return list(found)


def _complete(
    context: typer.Context, incomplete: str, list_names: Callable[[Administration], list[str]]
) -> list[str]:
    text = context.params.get("connection_string") or os.environ.get(ENVIRONMENT)
    try:
        target = parse_target(text, context.params.get("ca_file"))
    except Exception:
        return []
    found = names_within_timeout(target, list_names, seconds=_SECONDS_MAX)
    return sorted(name for name in found if name.startswith(incomplete))
