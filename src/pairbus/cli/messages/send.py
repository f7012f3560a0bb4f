"""`pairbus send`: makes messages of its input, and sends them in batches.

The messages are sent in order, one batch at a time, so that after a failure it is known what was
sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from pairbus.cli.entity_path import EntityPath, parse_entity_path
from pairbus.cli.message_client import BatchFailed, connect, explain_errors, send_batch
from pairbus.cli.messages.message_json import Row, from_json, parse_property
from pairbus.cli.messages.send_input import InputOptions, Stdin, read_rows
from pairbus.cli.output import format_count, print_json, progress
from pairbus.cli.parse import parse_duration, parse_time
from pairbus.cli.shared_options import (
    AS_JSON,
    ConnectionOptions,
    argument,
    complete_queue_or_topic,
    flatten_options,
    option,
    option_group,
)
from pairbus.cli.signals import graceful_stop
from pairbus.cli.target import Target
from pairbus.errors import NamespaceError, OutputError, UsageError
from pairbus.fast.compose import RowError, message_of
from pairbus.json_style import camel_case_keys

_BATCH_COUNT_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 1024 * 1024


@option_group
class MessageOptions:
    """Properties of every message; the names are those of the JSON keys."""

    message_id: str | None = option("ID", "Message id (default: a new one for each message).")
    session_id: str | None = option("ID", "Session that the message belongs to.")
    subject: str | None = option("TEXT", "Subject (label).")
    content_type: str | None = option("TYPE", "Content type, such as application/json.")
    correlation_id: str | None = option("ID", "Correlation id.")
    reply_to: str | None = option("ENTITY", "Entity that replies should go to.")
    reply_to_session_id: str | None = option("ID", "Session that replies should go to.")
    to: str | None = option("TEXT", "Address of the receiver, for routing by rules.")
    partition_key: str | None = option("KEY", "Partition key, for a partitioned entity.")


PROPERTY = option(
    "NAME[:TYPE]=VALUE",
    "Application property; may be repeated. TYPE is an AMQP type such as int, long, "
    "double, boolean, timestamp or uuid (default: string).",
    "--property",
    "-p",
)


@flatten_options
def send(
    entity: str = argument("ENTITY", "Queue or topic.", autocompletion=complete_queue_or_topic),
    *,
    source: InputOptions,
    message: MessageOptions,
    property_: list[str] | None = PROPERTY,
    ttl: str | None = option("DURATION", "Time to live, as in 90s, 5m, 2h or 7d."),
    scheduled: str | None = option(
        "TIME", "When the message becomes visible: 2030-12-31T23:59:59Z, or 10m from now."
    ),
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Send messages to a queue or a topic.

    It returns when the namespace has accepted all of them. If it fails, it says how many were
    accepted. With --json-lines, an option applies to lines that do not set its property. On Ctrl-C,
    it sends the whole lines that are in a pipe, and ends. The policy needs the Send right.

    Exit codes: 0 success, 1 the namespace refused or did not answer, 2 usage error, 130
    interrupted.

    \b
    Examples:
      pairbus send orders "Hello"
      pairbus send orders --file order.json --content-type application/json
      pairbus send orders "later" --scheduled 10m --ttl 1h -p amount:int=5
      pairbus send sorted "first" --session-id s1
      seq 1000 | pairbus send orders --lines
      pairbus peek orders --json | pairbus send copies --json-lines
    """
    target = connection.target
    path = parse_entity_path(entity)
    if not path.accepts_messages:
        raise UsageError(f"{entity!r} does not accept messages: send to {path.entity!r}")
    source.check()
    if message.message_id is not None and source.total != 1:
        raise UsageError("--message-id is for a single message, and there may be several")
    defaults = _defaults(message, property_ or (), ttl, scheduled, now=datetime.now(UTC))
    sent = _send_all(target, path, source, defaults)
    try:
        if as_json:
            print_json({"entity": path.entity, "sent": sent})
        else:
            print(f"sent {format_count(sent)} to {path.entity!r}")
        sys.stdout.flush()
    except (OutputError, BrokenPipeError) as error:
        is_pipe = isinstance(error, BrokenPipeError)
        reason = "cannot write to stdout: Broken pipe" if is_pipe else error
        raise OutputError(f"{reason}; sent {format_count(sent)}") from error


def _send_all(target: Target, path: EntityPath, source: InputOptions, defaults: Row) -> int:
    stdin = Stdin()
    messages = _encode(read_rows(source, stdin), defaults)
    sent = in_flight = 0
    try:
        with (
            connect(target) as client,
            graceful_stop(is_idle=lambda: not stdin.is_pipe_in_use, on_request=stdin.end) as stop,
            explain_errors(target, path, right="Send"),
            progress("Sending", source.total) as advance,
        ):
            sender = client.sender(path.entity)
            for batch in _batches(messages, stdin):
                in_flight = len(batch)
                try:
                    send_batch(sender, batch, target=target, entity=path)
                except BatchFailed as failed:
                    sent += len(failed.accepted)
                    is_partial = sent or failed.unanswered
                    before = f"sent {format_count(sent)}, then:" if is_partial else ""
                    raise NamespaceError(failed.text(before)) from failed
                sent += len(batch)
                in_flight = 0
                advance(len(batch))
    except (KeyboardInterrupt, SystemExit):
        _print_interrupted(sent, in_flight)
        raise
    except UsageError as error:  # in a later line or file
        if not sent:
            raise
        raise UsageError(f"{error}; sent {format_count(sent)} before it") from error
    if stop.is_requested:
        _print_interrupted(sent, 0, stdin.unfinished_bytes)
        stop.exit()
    return sent


def _print_interrupted(sent: int, in_flight: int, unfinished_bytes: int = 0) -> None:
    doubt = f"; {in_flight:,} more may have arrived" if in_flight else ""
    if unfinished_bytes:
        size = format_count(unfinished_bytes, "byte")
        doubt = f", without the {size} of an unfinished line"
    print(f"pairbus: interrupted, sent {format_count(sent)}{doubt}", file=sys.stderr)


# -- from the input to messages ------------------------------------------------------------------


def _defaults(
    message: MessageOptions,
    properties: Iterable[str],
    ttl: str | None,
    scheduled: str | None,
    *,
    now: datetime,
) -> Row:
    """The properties that the options set on every message."""
    given = {name: value for name, value in asdict(message).items() if value is not None}
    row = from_json(camel_case_keys(given), "the options")
    del row["body"]
    if properties:
        row["applicationProperties"] = dict(map(parse_property, properties))
    if ttl is not None:
        row["timeToLive"] = round(parse_duration(ttl, "--ttl").total_seconds() * 1000)
        if not row["timeToLive"]:
            raise UsageError(f"--ttl {ttl!r}: must be at least 1ms")
    if scheduled is not None:
        row["scheduledEnqueueTime"] = parse_time(scheduled, "--scheduled", now=now)
    _message(row, "the options")  # reports errors in the options before anything is sent
    return row


def _encode(rows: Iterable[tuple[str, Row]], defaults: Row) -> Iterator[bytes]:
    for where, row in rows:
        properties = {
            **defaults.get("applicationProperties", {}),
            **row.get("applicationProperties", {}),
        }
        yield _message(defaults | row | {"applicationProperties": properties}, where)


def _message(row: Row, where: str) -> bytes:
    if row.get("messageId") is None:
        row = row | {"messageId": str(uuid4())}
    try:
        return message_of(row, now_ms=round(datetime.now(UTC).timestamp() * 1000))
    except RowError as error:
        raise UsageError(f"{where}: {error.column}: {error.fault}") from error


def _batches(messages: Iterable[bytes], stdin: Stdin) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    try:
        for message in messages:
            batch.append(message)
            size += len(message)
            if len(batch) >= _BATCH_COUNT_MAX or size >= _BATCH_BYTES_MAX or stdin.is_dry():
                yield batch
                batch, size = [], 0
    except UsageError:
        # A bad line ends the command. The lines before it are sent, so its number shows how far it
        # got.
        if batch:
            yield batch
        raise
    if batch:
        yield batch
