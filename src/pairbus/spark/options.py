"""The options of the data source: texts in, checked values out.

Spark passes strings, with names in any case. A wrong option is an OptionsError that names the
option, its value and what is expected; it never quotes a secret.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pairbus.errors import OptionsError
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.connection_cache import OF_THIS_PROCESS
from pairbus.fast.connection_string import ConnectionString, check_entity_path
from pairbus.fast.identity import Identity
from pairbus.fast.peek import Peeker

PEEK, PEEK_LOCK, RECEIVE_AND_DELETE = "peek", "peekLock", "receiveAndDelete"
MODES: Final = (PEEK, PEEK_LOCK, RECEIVE_AND_DELETE)
SUB_QUEUES: Final = {
    "deadLetter": "$DeadLetterQueue",
    "transferDeadLetter": "$Transfer/$DeadLetterQueue",
}

_WHERE: Final = (
    "connectionString",
    "connectionString.env",
    "namespace",
    "credential",
    "caFile",
    "port",
    "timeoutSeconds",
)
READ: Final = (
    *_WHERE,
    "queue",
    "topic",
    "subscription",
    "subQueue",
    "receiveMode",
    "fromSequenceNumber",
    "toSequenceNumber",
    "includeScheduled",
    "maxMessages",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "maxWaitSeconds",
    "maxLockedWaitSeconds",
    "maxLockRenewalSeconds",
    "partitions",
)
WRITE: Final = (*_WHERE, "queue", "topic", "retries", "retrySeconds")
# Options of a query that are Spark's own.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})

_LONG_MAX: Final = 2**63 - 1
_TRIGGER_MESSAGES: Final = 10_000
_TRIGGER_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    address: Address
    path: str
    """The path of the entity, including `/$DeadLetterQueue`."""
    mode: str
    from_sequence: int | None
    """None: from the first. -1: only new messages."""
    to_sequence: int | None
    """The last one to read; only in a batch."""
    include_scheduled: bool
    messages_max: int | None
    trigger_messages_max: int | None
    trigger_bytes_max: int
    wait_seconds: float
    locked_wait_seconds: float
    renewal_seconds: float
    partitions: int
    timeout_seconds: float

    def client(self) -> FastClient:
        return self.address.client(timeout_seconds=self.timeout_seconds)

    def peeker(self) -> Peeker:
        return Peeker(self.client(), self.path)

    @contextlib.contextmanager
    def lent_peeker(self) -> Iterator[Peeker]:
        """A peeker on a cached connection: this process keeps it for a while, for the next reader
        with the same address. Nothing is locked in between.
        """
        cache = OF_THIS_PROCESS
        # A hash, so that the cache holds no secret. Of an environment variable, only the name
        # is hashed.
        user = hashlib.sha256(pickle.dumps((self.address, self.timeout_seconds))).hexdigest()
        lease = cache.lend(user, self.address, timeout_seconds=self.timeout_seconds)
        is_clean = False
        try:
            yield Peeker(lease.client, self.path)
            is_clean = True
        finally:
            cache.give_back(lease, is_clean=is_clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    address: Address
    path: str | None
    """The queue or topic for rows without a destination of their own."""
    retries: int
    retry_seconds: float
    timeout_seconds: float


def read_options(texts: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    given = _OptionTexts(texts, READ)
    address = _address(given)
    mode = given.word("receiveMode", MODES, PEEK)
    from_sequence, to_sequence = _range(given, mode, streaming)
    per_trigger = given.whole("maxMessagesPerTrigger", least=1)
    in_all = given.whole("maxMessages", least=1)
    if streaming:
        given.only_if("maxMessages", False, "for a batch; use maxMessagesPerTrigger for a stream")
        if per_trigger is None and mode != PEEK:
            per_trigger = _TRIGGER_MESSAGES
    else:
        given.only_if("maxMessagesPerTrigger", False, "for a stream; use maxMessages for a batch")
        if mode == PEEK_LOCK:
            raise OptionsError(
                "option receiveMode: 'peekLock' needs a stream, because a batch never learns when "
                "its rows are safe. Use spark.readStream, with trigger(availableNow=True) to read "
                "the available messages once, or receiveMode 'peek'"
            )
    held = streaming and mode != PEEK
    for name in ("maxBytesPerTrigger", "maxLockedWaitSeconds", "maxLockRenewalSeconds"):
        given.only_if(name, held, "for a stream with receiveMode 'peekLock' or 'receiveAndDelete'")
    return ReadOptions(
        address=address,
        path=_source_path(given, address),
        mode=mode,
        from_sequence=from_sequence,
        to_sequence=to_sequence,
        include_scheduled=given.flag("includeScheduled"),
        messages_max=in_all,
        trigger_messages_max=per_trigger,
        trigger_bytes_max=given.whole("maxBytesPerTrigger", _TRIGGER_BYTES, least=1),
        wait_seconds=given.seconds("maxWaitSeconds", 2.0, most=600.0),
        locked_wait_seconds=given.seconds("maxLockedWaitSeconds", 330.0, most=86_400.0),
        renewal_seconds=given.seconds("maxLockRenewalSeconds", 3600.0, most=7 * 86_400.0),
        partitions=given.whole("partitions", 1, least=1, most=10_000),
        timeout_seconds=_timeout_seconds(given),
    )


def write_options(texts: Mapping[str, str], *, has_destination: bool) -> WriteOptions:
    given = _OptionTexts(texts, WRITE)
    address = _address(given)
    path = _target_path(given, address)
    if path is None and not has_destination:
        raise OptionsError(
            "option queue or topic is missing: set one of them, or give the rows a column "
            "'destination'"
        )
    return WriteOptions(
        address=address,
        path=path,
        retries=given.whole("retries", 3, least=0, most=100),
        retry_seconds=given.seconds("retrySeconds", 1.0, most=600.0),
        timeout_seconds=_timeout_seconds(given),
    )


def _timeout_seconds(given: _OptionTexts) -> float:
    return given.seconds("timeoutSeconds", 60.0, least=1.0, most=600.0)


# -- where ------------------------------------------------------------------------------------


def _address(given: _OptionTexts) -> Address:
    ways = [
        name
        for name in ("connectionString", "connectionString.env", "namespace")
        if given.has(name)
    ]
    if len(ways) != 1:
        found = " and ".join(ways) if ways else "none"
        raise OptionsError(
            "expected one of the options connectionString, connectionString.env and namespace, not "
            f"{found}"
        )
    port = given.whole("port", least=1, most=65_535)
    ca_file = given.text("caFile")
    if ways == ["namespace"]:
        return _with_identity(given, port, ca_file)
    given.only_if(
        "credential", False, "for the option namespace; a connection string contains its own"
    )
    if ways == ["connectionString.env"]:
        name = given.text("connectionString.env") or ""
        return Address.from_env(name, ca_file=ca_file, port=port)
    try:
        text = given.text("connectionString") or ""
        return Address.from_connection_string(text, ca_file=ca_file, port=port)
    except OptionsError as error:
        raise OptionsError(f"option connectionString: {error}") from None


def _with_identity(given: _OptionTexts, port: int | None, ca_file: str | None) -> Address:
    name, namespace = given.text("credential"), given.text("namespace") or ""
    try:
        identity = Identity.from_environment() if name is None else Identity.named(name)
    except OptionsError as error:
        raise OptionsError(f"option credential: {error}") from None
    try:
        string = ConnectionString.of_host(namespace, identity)
    except OptionsError:
        # The text is not quoted: it may be a connection string or a key.
        raise OptionsError(
            "option namespace: expected the host of a namespace, such as "
            "contoso.servicebus.windows.net"
        ) from None
    identity.check_installed()
    return Address(string, ca_file, port)


def _source_path(given: _OptionTexts, address: Address) -> str:
    queue, topic = _queue_or_topic(given)
    subscription = given.path("subscription")
    if queue is None and topic is None:
        only = address.entity_path
        queue, topic = (only, None) if subscription is None else (None, only)
    if queue is None and topic is None:
        raise OptionsError(
            "option queue is missing: expected a queue, or a topic and a subscription"
        )
    if topic is not None and subscription is None:
        raise OptionsError(
            f"option subscription is missing: a topic such as {topic!r} is read from one of its "
            "subscriptions"
        )
    if queue is not None and subscription is not None:
        raise OptionsError(
            f"option subscription: {subscription!r} belongs to a topic, but the option queue is "
            f"{queue!r}; use the option topic"
        )
    path = queue if queue is not None else f"{topic}/Subscriptions/{subscription}"
    _check_entity_path(path, address)
    sub_queue = given.word("subQueue", tuple(SUB_QUEUES), "")
    return f"{path}/{SUB_QUEUES[sub_queue]}" if sub_queue else path or ""


def _target_path(given: _OptionTexts, address: Address) -> str | None:
    queue, topic = _queue_or_topic(given)
    path = queue or topic or address.entity_path
    if path is not None:
        _check_entity_path(path, address)
    return path


def _queue_or_topic(given: _OptionTexts) -> tuple[str | None, str | None]:
    queue, topic = given.path("queue"), given.path("topic")
    if queue is not None and topic is not None:
        raise OptionsError(
            f"options queue and topic: expected one of them, not both {queue!r} and {topic!r}"
        )
    return queue, topic


def _check_entity_path(path: str, address: Address) -> None:
    """Refuse an entity that the connection string does not allow, as early as possible.

    An environment variable may not be set here yet. Then the client checks it.
    """
    if isinstance(address.source, ConnectionString):
        check_entity_path(path, address.source.entity_path)


def _range(given: _OptionTexts, mode: str, streaming: bool) -> tuple[int | None, int | None]:
    for name in ("fromSequenceNumber", "toSequenceNumber", "includeScheduled"):
        given.only_if(name, mode == PEEK, "for receiveMode 'peek'")
    given.only_if("toSequenceNumber", not streaming, "for a batch; a stream has no end")
    first: int | None = None
    word = given.text("fromSequenceNumber")
    if word is not None and word.lower() == "latest":
        if not streaming:
            raise OptionsError("option fromSequenceNumber: 'latest' is for a stream only")
        first = -1
    elif word is not None and word.lower() != "earliest":
        first = given.whole(
            "fromSequenceNumber", least=0, most=_LONG_MAX, also=", 'earliest' or 'latest'"
        )
    last = given.whole("toSequenceNumber", least=0, most=_LONG_MAX)
    if first is not None and last is not None and last < first:
        raise OptionsError(
            f"option toSequenceNumber: {last} is before fromSequenceNumber, which is {first}"
        )
    return first, last


# -- texts ------------------------------------------------------------------------------------


class _OptionTexts:
    """The options as given, by names in any case."""

    def __init__(self, texts: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._texts = {str(name).lower(): text for name, text in texts.items()}
        by_name = {name.lower(): name for name in known}
        for name in self._texts:
            if name in by_name or name in _SPARKS or name.startswith("spark."):
                continue
            if name == "path":
                raise OptionsError(
                    "option path: load() and save() take no path here; use the option queue or "
                    "topic"
                )
            near = difflib.get_close_matches(name, by_name, 1)
            hint = f"did you mean {by_name[near[0]]}?" if near else f"known are {', '.join(known)}"
            raise OptionsError(f"option {name} is unknown; {hint}")

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        text = self._texts.get(name.lower())
        if text is None:
            return None
        if not text.strip():
            raise OptionsError(f"option {name} is empty; remove it, or give it a value")
        return text.strip()

    def path(self, name: str) -> str | None:
        text = self.text(name)
        return None if text is None else text.strip("/")

    def only_if(self, name: str, fits: bool, use: str) -> None:
        if self.has(name) and not fits:
            raise OptionsError(f"option {name} is {use}")

    def word(self, name: str, words: tuple[str, ...], otherwise: str) -> str:
        text = self.text(name)
        if text is None:
            return otherwise
        for word in words:
            if word.lower() == text.lower():
                return word
        raise OptionsError(f"option {name}: expected {', '.join(words)}, not {text!r}")

    def flag(self, name: str) -> bool:
        return self.word(name, ("true", "false"), "false") == "true"

    def whole(
        self,
        name: str,
        otherwise: int | None = None,
        *,
        least: int,
        most: int = 2**31 - 1,
        also: str = "",
    ) -> Any:
        found = self._number(name, int, least, most, "a whole number", also)
        return otherwise if found is None else found

    def seconds(self, name: str, otherwise: float, *, most: float, least: float = 0.0) -> float:
        found: float | None = self._number(name, float, least, most, "a number of seconds")
        return otherwise if found is None else found

    def _number(
        self,
        name: str,
        parse: Callable[[str], Any],
        least: float,
        most: float,
        what: str,
        also: str = "",
    ) -> Any:
        """None if the option is not set. `also`: what else is valid."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = parse(text)
            if least <= number <= most:
                return number
        except (ValueError, OverflowError):
            pass
        has_limit = most < 2**31 - 1
        span = f"from {least:g} to {most:g}" if has_limit else f"of at least {least:g}"
        raise OptionsError(f"option {name}: expected {what} {span}{also}, not {text!r}")
