"""The SDK's administration client as the commands use it: by kind of entity, with clear errors.

It works the same on Azure and on a local broker. This module turns the SDK's exceptions into
NamespaceError, with the entity and the namespace in the text. The SDK takes half a second to load,
so it is imported when a command connects, not for `--help`.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pairbus.cli.loading import interrupt_ends_process
from pairbus.cli.target import Target, cannot_reach, login_failure, why_unreachable
from pairbus.errors import NamespaceError, UsageError

if TYPE_CHECKING:
    from azure.core.exceptions import HttpResponseError
    from azure.servicebus.management import ServiceBusAdministrationClient

_CONNECT_SECONDS_MAX: Final = 15
_ANSWER_SECONDS_MAX: Final = 60

_Answer = TypeVar("_Answer")


class EntityKind(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    RULE = "rule"

    @property
    def parents(self) -> tuple[EntityKind, ...]:
        """The kinds of the parents, whose names come before the name of the entity."""
        return {
            EntityKind.SUBSCRIPTION: (EntityKind.TOPIC,),
            EntityKind.RULE: (EntityKind.TOPIC, EntityKind.SUBSCRIPTION),
        }.get(self, ())


def describe(kind: EntityKind, path: Sequence[str]) -> str:
    """`rule 'only-eu' of subscription 'events/audit'`"""
    *parents, own = path
    return f"{kind} {own!r}" + (f" of {kind.parents[-1]} {'/'.join(parents)!r}" if parents else "")


class EntityNotFound(NamespaceError):
    """The namespace has no entity of this kind and name."""


class AccessDenied(NamespaceError):
    """The key is wrong, its policy lacks the Manage right, or the identity lacks the role."""


def administration_client(target: Target, kind: Any = None, **settings: Any) -> Any:
    """The SDK's client, or one of its `kind`. Raises UsageError."""
    if kind is None:
        with interrupt_ends_process():
            from azure.servicebus.management import ServiceBusAdministrationClient as kind

    settings = {
        "connection_verify": target.verify,
        "connection_timeout": _CONNECT_SECONDS_MAX,
        "read_timeout": _ANSWER_SECONDS_MAX,
        **settings,
    }
    if target.verify is False:
        # For all threads and for good, because a command has its own process. A filter for a block
        # of code would end for all threads with the first block.
        warnings.filterwarnings("ignore", "Unverified HTTPS request")
    if target.is_local:
        # Ignore the environment's proxies and CA bundles: they are not for local connections.
        settings["use_env_settings"] = False
    try:
        if target.identity is not None:
            credential = target.credential()
            return kind(target.address, credential, **settings)
        text = target.text.reveal()
        return kind.from_connection_string(text, **settings)
    except ValueError as error:
        raise UsageError(f"the SDK does not understand the connection string: {error}") from error


@contextmanager
def administration(target: Target, *, seconds: float | None = None) -> Iterator[Administration]:
    """With `seconds`, it waits that long for an answer, and asks once."""
    # Do not retry: a fault of a local broker should show at once, not after five retries.
    settings: dict[str, Any] = {"retry_total": 0} if target.is_local or seconds else {}
    if seconds is not None:
        settings |= {"connection_timeout": seconds, "read_timeout": seconds}
    with administration_client(target, **settings) as client:
        yield Administration(client, target)


def queues_and_topics(admin: Administration) -> list[str]:
    return [*admin.names(EntityKind.QUEUE), *admin.names(EntityKind.TOPIC)]


def names_within_timeout(
    target: Target, list_names: Callable[[Administration], list[str]], *, seconds: float
) -> list[str]:
    """The names, or none if the namespace refuses or does not answer within this time."""
    import azure.servicebus.management  # noqa: F401  # takes a while: load it before the time limit starts

    def ask() -> list[str]:
        with administration(target) as admin:
            return list_names(admin)

    return answer_within(seconds, ask) or []


def answer_within(seconds: float, ask: Callable[[], _Answer]) -> _Answer | None:
    """None if it fails or takes longer."""
    answers: list[_Answer] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception:
            logging.getLogger(__name__).debug("no answer", exc_info=True)

    # A daemon thread, so that a hanging namespace does not keep the process from ending.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    return answers[0] if answers else None


class Administration:
    """Entities by kind and path: `(EntityKind.RULE, ("events", "audit", "only-eu"))`."""

    def __init__(self, client: ServiceBusAdministrationClient, target: Target) -> None:
        self._client = client
        self._target = target

    def namespace_name(self) -> str:
        properties = self._ask("the namespace", self._client.get_namespace_properties)
        return str(properties.name)

    def all(self, kind: EntityKind, parents: Sequence[str] = ()) -> list[Any]:
        """The SDK's properties of all entities of a kind, by name."""
        return self._list(f"list_{kind}s", kind, parents)

    def all_counts(self, kind: EntityKind, parents: Sequence[str] = ()) -> list[Any]:
        return self._list(f"list_{kind}s_runtime_properties", kind, parents)

    def names(self, kind: EntityKind, *parents: str) -> list[str]:
        return [properties.name for properties in self.all(kind, parents)]

    def get(self, kind: EntityKind, path: Sequence[str]) -> Any:
        try:
            return self._call(f"get_{kind}", kind, path)
        except AttributeError as error:
            # The service answers with whatever has the name, and the SDK fails on a topic where it
            # expects a queue.
            raise EntityNotFound(
                f"{describe(kind, path)} does not exist in {self._target.address}: another kind of "
                "entity has that name"
            ) from error

    def get_counts(self, kind: EntityKind, path: Sequence[str]) -> Any:
        return self._call(f"get_{kind}_runtime_properties", kind, path)

    def create(self, kind: EntityKind, path: Sequence[str], **settings: Any) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        try:
            self._call(f"create_{kind}", kind, path, **given)
        except EntityNotFound as error:  # it is new, so a parent is missing
            parent = describe(kind.parents[-1], path[:-1])
            raise EntityNotFound(f"{parent} does not exist in {self._target.address}") from error
        except ValueError as error:  # the SDK makes a URL of `forward_to`
            raise UsageError(f"{describe(kind, path)} cannot be created: {error}") from error

    def delete(self, kind: EntityKind, path: Sequence[str]) -> None:
        self._call(f"delete_{kind}", kind, path)

    def _list(self, method: str, kind: EntityKind, parents: Sequence[str]) -> list[Any]:
        _check_encoding(parents)
        whose = describe(kind.parents[-1], parents) if parents else "the namespace"
        pages = getattr(self._client, method)
        # Read all pages here: each page is a separate request, which may fail.
        return self._ask(whose, lambda: list(pages(*parents)))

    def _call(self, method: str, kind: EntityKind, path: Sequence[str], **settings: Any) -> Any:
        _check_encoding(path)
        call = getattr(self._client, method)
        return self._ask(describe(kind, path), lambda: call(*path, **settings))

    def _ask(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        with explain_answers(self._target, what):
            return call()


def _check_encoding(names: Sequence[str]) -> None:
    """A byte of the command line that is not UTF-8 is half of a surrogate pair here."""
    for name in names:
        if re.search("[\ud800-\udfff]", name):
            raise UsageError(f"{name!r} is not a valid name of an entity: it is not UTF-8")


@contextmanager
def explain_answers(target: Target, what: str) -> Iterator[None]:
    """Turns the SDK's errors into NamespaceError. `what`: the subject of the request."""
    from azure.core import exceptions as core

    address = target.address
    try:
        yield
    except core.ResourceNotFoundError as error:
        raise EntityNotFound(f"{what} does not exist in {address}") from error
    except core.ResourceExistsError as error:
        raise NamespaceError(f"{what} already exists in {address}") from error
    except core.ClientAuthenticationError as error:
        raise AccessDenied(login_failure(error, target) or target.rejection("Manage")) from error
    except core.HttpResponseError as error:
        text = _answer_text(error, target)
        raise NamespaceError(f"{what}: {address} answered: {text}") from error
    except core.AzureError as error:
        raise NamespaceError(cannot_reach(target, why_unreachable(error))) from error


def _answer_text(error: HttpResponseError, target: Target) -> str:
    """Without the body of the answer, which is XML, and without a number that says no more than the
    text. Microsoft's support asks for the tracking id; a local broker's is of no use.
    """
    text = " ".join((error.message or str(error)).split())
    text = re.sub(r"^SubCode=\d+\. ", "", text)
    return re.sub(r"\.? TrackingId:.*", "", text) if target.is_local else text
