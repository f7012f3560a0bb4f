"""The official administration client, as the commands use it: by kind of entity, with clear errors.

Works alike on Azure and on a local broker. What the service says in exceptions of its SDK leaves
here as NamespaceError, with the entity and the namespace in the text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from azure.core import exceptions as core
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.cli.kinds import Kind, spoken
from pairbus.cli.reasons import why_unreachable
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError

_CONNECT_SECONDS_MAX: Final = 15
_ANSWER_SECONDS_MAX: Final = 60

_Answer = TypeVar("_Answer")


@contextmanager
def administration(target: Target) -> Iterator[Administration]:
    settings: dict[str, Any] = {
        "connection_verify": target.verify,
        "connection_timeout": _CONNECT_SECONDS_MAX,
        "read_timeout": _ANSWER_SECONDS_MAX,
    }
    if target.is_local:
        # Proxies and CA bundles of the environment are for others than this machine; and whoever
        # makes their own broker fail wants to see it, and not five retries later.
        settings |= {"use_env_settings": False, "retry_total": 0}
    try:
        client = ServiceBusAdministrationClient.from_connection_string(
            target.text.reveal(), **settings
        )
    except ValueError as error:
        raise NamespaceError(f"the connection string is not understood: {error}") from error
    with warnings.catch_warnings(), client:
        if target.verify is False:
            warnings.filterwarnings("ignore", "Unverified HTTPS request")
        yield Administration(client, target)


class Administration:
    """Entities by kind and path: `(Kind.RULE, ("events", "audit", "only-eu"))`."""

    def __init__(self, client: ServiceBusAdministrationClient, target: Target) -> None:
        self._client = client
        self._target = target

    def namespace_name(self) -> str:
        properties = self._ask("the namespace", self._client.get_namespace_properties)
        return str(properties.name)

    def all(self, kind: Kind, parents: Sequence[str] = ()) -> list[Any]:
        """The SDK's properties of all of them, by name."""
        return self._list(f"list_{kind}s", kind, parents)

    def all_counts(self, kind: Kind, parents: Sequence[str] = ()) -> list[Any]:
        return self._list(f"list_{kind}s_runtime_properties", kind, parents)

    def get(self, kind: Kind, path: Sequence[str]) -> Any:
        try:
            return self._call(f"get_{kind}", kind, path)
        except AttributeError as error:
            # The service answers with whatever has the name, and the SDK trips over a topic where
            # it expects a queue.
            raise NamespaceError(
                f"{spoken(kind, path)} is not there, at {self._target.address}: "
                "something else has that name"
            ) from core.ResourceNotFoundError(error=error)

    def get_counts(self, kind: Kind, path: Sequence[str]) -> Any:
        return self._call(f"get_{kind}_runtime_properties", kind, path)

    def create(self, kind: Kind, path: Sequence[str], **settings: Any) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        self._call(f"create_{kind}", kind, path, **given)

    def delete(self, kind: Kind, path: Sequence[str]) -> None:
        self._call(f"delete_{kind}", kind, path)

    def _list(self, method: str, kind: Kind, parents: Sequence[str]) -> list[Any]:
        whose = spoken(kind.parents[-1], parents) if parents else "the namespace"
        pages = getattr(self._client, method)
        # Read to the end here: its pages are fetched, and may fail, while it is walked.
        return self._ask(whose, lambda: list(pages(*parents)))

    def _call(self, method: str, kind: Kind, path: Sequence[str], **settings: Any) -> Any:
        call = getattr(self._client, method)
        return self._ask(spoken(kind, path), lambda: call(*path, **settings))

    def _ask(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        address = self._target.address
        try:
            return call()
        except core.ResourceNotFoundError as error:
            raise NamespaceError(f"{what} is not there, at {address}") from error
        except core.ResourceExistsError as error:
            raise NamespaceError(f"{what} exists already, at {address}") from error
        except core.ClientAuthenticationError as error:
            raise NamespaceError(
                f"{address} does not let policy {self._target.policy_name!r} in, which needs the "
                f"right key and Manage: {_detail(error)}"
            ) from error
        except core.HttpResponseError as error:
            raise NamespaceError(f"{what}: {address} says: {_detail(error)}") from error
        except core.AzureError as error:
            raise NamespaceError(
                f"{address} cannot be reached: {why_unreachable(error)}"
            ) from error


def _detail(error: core.HttpResponseError) -> str:
    return " ".join((error.message or str(error)).split())
