"""Checks the rights of the syphon's credentials: Send on a primary, Listen on the secondary.

The service checks a key or an identity when it gets a token, and a right when a link is attached.
Neither is billed. So a missing right shows at the start, and not in the first outage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal

from azure.core.exceptions import AzureError

from pairbus.client.route.envelope import EnvelopeError
from pairbus.errors import NamespaceError
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.connection import attach_each
from pairbus.fast.token_cache import LoginFailed
from pairbus.syphon.long_poll import ANSWER_SECONDS
from pairbus.syphon.policy import Failure, failure_of
from pairbus.syphon.restore import restore

Right = Literal["Send", "Listen"]

# One refusal shows a missing right. The more entities, the more policies of entities are seen.
ENTITIES_MAX = 20


class MissingRight(NamespaceError):
    """The namespace refuses the credentials, or they lack a right."""


def check_right(
    address: Address, right: Right, entities: Callable[[], Iterable[str]], *, role: str
) -> str:
    """Returns what was checked. Raises MissingRight, or AzureError if the namespace does not
    answer.

    `entities` returns names of entities to try. Without any, only the token can be checked.
    `role`: "the primary" or "the secondary".
    """
    who = f"{role} {address.host}"
    with address.client(timeout_seconds=ANSWER_SECONDS) as client:
        try:
            client.check_token()
        except LoginFailed as error:
            raise MissingRight(f"cannot log in to {who}: {error}") from error
        except AzureError as error:
            if failure_of(error) is not Failure.UNAUTHORIZED:
                raise
            raise MissingRight(
                f"{who} refuses the credentials: {error}. {address.needs(right)}"
            ) from error
        tried = _attach(client, right, list(entities())[:ENTITIES_MAX], who)
    if not tried:
        return f"the key or identity; the {right} right cannot be checked before an entity is known"
    return f"the {right} right on {', '.join(tried)}"


def _attach(client: FastClient, right: Right, paths: Sequence[str], who: str) -> list[str]:
    if not paths:
        return []
    links = [
        client.sender(path) if right == "Send" else client.receiver(path, credit=1)
        for path in paths
    ]
    errors = attach_each(links)
    for path, error in zip(paths, errors, strict=True):
        if error is not None and failure_of(error) is Failure.UNAUTHORIZED:
            raise MissingRight(
                f"the credentials for {who} lack the {right} right on {path!r}: {error}"
            ) from error
    return [path for path, error in zip(paths, errors, strict=True) if error is None]


def destinations_in_backlog(secondary: Address, queues: Sequence[str]) -> list[str]:
    """The destinations of the first messages of these queues. Without those of a queue that fails,
    and empty if the secondary does not answer."""
    found: dict[str, None] = {}
    with suppress(AzureError), secondary.client(timeout_seconds=ANSWER_SECONDS) as client:
        for page in client.peek_each([(queue, 0, 1) for queue in queues[:ENTITIES_MAX]]):
            for data in page if isinstance(page, list) else ():
                with suppress(EnvelopeError):
                    found[restore(data, now_ms=0).path] = None
    return list(found)
