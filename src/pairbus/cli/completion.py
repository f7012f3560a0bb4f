"""Names for the shell to complete: asked of the namespace, if it answers soon.

Whatever goes wrong completes to nothing: a shell's line is no place for complaints.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import typer

from pairbus.cli.target import ENVIRONMENT

_SECONDS_MAX: Final = 3.0


def complete_queue_or_topic(context: typer.Context, incomplete: str) -> list[str]:
    return _soon(lambda admin: [*_queues(admin), *_topics(admin)], context, incomplete)


def complete_subscription(context: typer.Context, incomplete: str) -> list[str]:
    topic = context.params.get("entity")
    if not isinstance(topic, str) or not topic:
        return []
    return _soon(lambda admin: _subscriptions(admin, topic), context, incomplete)


def _queues(admin: Any) -> list[str]:
    from pairbus.cli.kinds import Kind

    return [one.name for one in admin.all(Kind.QUEUE)]


def _topics(admin: Any) -> list[str]:
    from pairbus.cli.kinds import Kind

    return [one.name for one in admin.all(Kind.TOPIC)]


def _subscriptions(admin: Any, topic: str) -> list[str]:
    from pairbus.cli.kinds import Kind

    return [one.name for one in admin.all(Kind.SUBSCRIPTION, (topic,))]


def _soon(ask: Callable[[Any], list[str]], context: typer.Context, incomplete: str) -> list[str]:
    text = context.params.get("connection_string") or os.environ.get(ENVIRONMENT)
    ca_file = context.params.get("ca_file")
    found: list[str] = []

    # Before the clock runs: loading the SDK takes its time, but never for ever.
    from pairbus.cli.administration import administration
    from pairbus.cli.target import parse_target

    def work() -> None:
        try:
            with administration(parse_target(text, ca_file)) as admin:
                found.extend(name for name in ask(admin) if name.startswith(incomplete))
        except Exception:
            logging.getLogger(__name__).debug("no completion", exc_info=True)

    # A daemon, which may be left behind: a namespace that hangs must not hang the shell.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(_SECONDS_MAX)
    return sorted(found)
