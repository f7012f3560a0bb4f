"""`pairbus outbox`: lists, shows, sends and deletes the messages in the file of an outbox.

For the operator, when the application does not run any more: while it runs, it has the file locked.
A message is sent before it is deleted. If the command is killed in between, the message is sent
again the next time, under the same id.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.cli.entity_path import EntityPath
from pairbus.cli.message_client import BatchFailed, connect, explain_errors, send_batch
from pairbus.cli.messages.message_json import (
    MessageJson,
    format_time,
    to_json_if_readable,
    unreadable,
)
from pairbus.cli.messages.table import escape_control, print_message
from pairbus.cli.output import (
    format_count,
    format_size,
    make_table,
    print_json,
    print_more_note,
    print_rows,
    progress,
    was_or_were,
)
from pairbus.cli.shared_options import (
    AS_JSON,
    IS_SURE,
    ConnectionOptions,
    argument,
    command_group,
    confirm,
    count_option,
    flag,
    flatten_options,
    option,
    option_group,
)
from pairbus.cli.signals import Stop, graceful_stop
from pairbus.cli.target import Target
from pairbus.client.outbox_file import OutboxFile, StoredMessage
from pairbus.errors import NamespaceError, OutboxError, UsageError
from pairbus.fast.rows import UnreadableMessage, read

if TYPE_CHECKING:
    from pairbus.fast.client import FastClient

_PART_COUNT: Final = 100

app = command_group(
    "outbox",
    "List, show, send and delete the messages in the file of an outbox.\n\n"
    "Stop the application first: while it runs, it has the file locked. When it starts again, it "
    "sends by itself what waits in the file. A held message is one that it does not send any more: "
    "a namespace refused it, or it is older than max_age.\n\n"
    "Exit codes: 0 success, 1 the file cannot be used, the namespace refused or did not answer, or "
    "messages are left, 2 usage error, 130 interrupted.\n\n"
    "\b\n"
    "Examples:\n"
    "  pairbus outbox list outbox.db\n"
    "  pairbus outbox drain outbox.db -c contoso.servicebus.windows.net",
)

FILE = argument("FILE", "File of the outbox.")


@option_group
class SelectOptions:
    """Which messages of the file."""

    entity: str | None = option("ENTITY", "Only messages for this queue or topic.")
    held: bool = flag("Only held messages.", "--held")
    message_id: str | None = option("ID", "Only messages with this message id.")

    def matches(self, message: StoredMessage) -> bool:
        if self.entity is not None and message.entity.lower() != self.entity.lower():
            return False
        if self.message_id is not None and message.message_id != self.message_id:
            return False
        return message.held is not None or not self.held


@app.command("list")
@flatten_options
def list_(
    file: Path = FILE,
    *,
    select: SelectOptions,
    count: int = count_option("Maximum number of messages (default: 100).", default=100),
    as_json: bool = AS_JSON,
) -> None:
    """List the messages in the file, oldest first.

    \b
    Examples:
      pairbus outbox list outbox.db
      pairbus outbox list outbox.db --held --json
    """
    with _opened(file) as outbox:
        found = list(islice(filter(select.matches, outbox.messages()), count + 1))
    if as_json:
        for message in found[:count]:
            print_message(_summary(message), as_json=True)
    else:
        table = make_table("stored", "entity", "message id", "state", right=["size"])
        for message in found[:count]:
            state = "waits" if message.held is None else f"held: {message.held}"
            texts = map(escape_control, (message.entity, message.message_id, state))
            table.add_row(_stored(message), *texts, format_size(len(message.amqp)))
        print_rows(table, if_empty=f"no matching messages in {file}")
    if len(found) > count:
        print_more_note(count)


@app.command()
@flatten_options
def show(
    file: Path = FILE,
    *,
    select: SelectOptions,
    count: int = count_option("Maximum number of messages (default: 10).", default=10),
    as_json: bool = AS_JSON,
) -> None:
    """Show messages in full: properties and body.

    \b
    Example:
      pairbus outbox show outbox.db --message-id 1200
    """
    with _opened(file) as outbox:
        found = list(islice(filter(select.matches, outbox.messages()), count))
    for message in found:
        print_message(_summary(message) | _content(message), as_json=as_json)
    if not found:
        raise OutboxError(f"{file} has no matching message")


@app.command()
@flatten_options
def drain(
    file: Path = FILE,
    *,
    select: SelectOptions,
    primary_name: str | None = option(
        "NAME", "Name of the primary in the file, if it is not the first label of its host."
    ),
    connection: ConnectionOptions,
    as_json: bool = AS_JSON,
) -> None:
    """Send messages to the primary, oldest first, and delete each one that it accepts.

    Sends the messages that wait, or with --held those that are held. The policy needs the Send
    right.

    \b
    Examples:
      pairbus outbox drain outbox.db -c contoso.servicebus.windows.net
      pairbus outbox drain outbox.db --held --entity orders
    """
    target = connection.target
    with (
        _opened(file) as outbox,
        connect(target) as client,
        graceful_stop() as stop,
        progress("Sending") as advance,
    ):
        _check_namespace(outbox, target, primary_name)
        result = _send_all(client, target, outbox, select, stop, advance)
    if as_json:
        print_json({"drained": result.done, "left": result.left})
    else:
        print(f"sent {format_count(result.done)}")
    stop.exit()
    if result.left:
        raise NamespaceError(
            f"{format_count(result.left)} {was_or_were(result.left)} not sent: "
            f"{'; '.join(result.failures.values())}"
        )


@app.command()
@flatten_options
def purge(
    file: Path = FILE,
    *,
    select: SelectOptions,
    dry_run: bool = flag("Show how many messages; delete nothing.", "--dry-run"),
    is_sure: bool = IS_SURE,
    as_json: bool = AS_JSON,
) -> None:
    """Delete messages permanently. They were acknowledged to the application, and are lost.

    \b
    Examples:
      pairbus outbox purge outbox.db --held --dry-run
      pairbus outbox purge outbox.db --message-id 1200 --yes
    """
    with _opened(file) as outbox:
        count = sum(map(select.matches, outbox.messages()))
        if count and not is_sure and not dry_run:
            confirm(f"Delete {format_count(count)} of {file}?")
        if not dry_run:
            for part in _parts(filter(select.matches, outbox.messages())):
                outbox.delete(part)
    if as_json:
        print_json({"purged": 0 if dry_run else count, "dryRun": dry_run})
    elif dry_run:
        print(f"{format_count(count)} would be deleted; nothing was changed")
    else:
        print(f"deleted {format_count(count)}")


# -- the file ------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[OutboxFile]:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder: give the file of the outbox")
    outbox = OutboxFile(path)
    try:
        outbox.open()
        yield outbox
    finally:
        outbox.close()


def _parts(messages: Iterator[StoredMessage]) -> Iterator[list[StoredMessage]]:
    """Small enough for the memory: the file may be large."""
    while part := list(islice(messages, _PART_COUNT)):
        yield part


def _check_namespace(outbox: OutboxFile, target: Target, name: str | None) -> None:
    owner, given = outbox.namespace, name or target.host.split(".")[0]
    if owner.lower() != given.lower():
        raise UsageError(
            f"the messages in {outbox.path} are for namespace {owner!r}, and this is {given!r}; if "
            f"they are the same, add --primary-name {owner}"
        )


# -- sending -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Result:
    done: int = 0
    left: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """By entity in lower case: why its next message was not sent. The rest of them waits, to keep
    its order.
    """


def _send_all(
    client: FastClient,
    target: Target,
    outbox: OutboxFile,
    select: SelectOptions,
    stop: Stop,
    advance: Callable[[int], None],
) -> _Result:
    result = _Result()
    wanted = (
        message
        for message in outbox.messages()
        if select.matches(message) and select.held is (message.held is not None)
    )
    for part in _parts(wanted):
        for entity in dict.fromkeys(message.entity.lower() for message in part):
            own = [message for message in part if message.entity.lower() == entity]
            if stop.is_requested or entity in result.failures:
                result.left += len(own)
                continue
            accepted, failure = _send(client, target, outbox, own)
            result.done += accepted
            result.left += len(own) - accepted
            if failure:
                result.failures[entity] = failure
            advance(accepted)
    return result


def _send(
    client: FastClient, target: Target, outbox: OutboxFile, messages: Sequence[StoredMessage]
) -> tuple[int, str]:
    """Sends messages of one entity, and deletes those that were accepted. Returns how many, and why
    not the others; empty if all were.
    """
    path = EntityPath(entity=messages[0].entity)
    failure = ""
    accepted = messages
    try:
        with explain_errors(target, path, right="Send"):
            batch = [message.amqp for message in messages]
            send_batch(client.sender(path.path), batch, target=target, entity=path)
    except BatchFailed as failed:
        accepted = [message for at, message in enumerate(messages) if at in failed.accepted]
        failure = failed.text("")
    except NamespaceError as error:
        accepted, failure = [], str(error)
    # If the process dies here, they are sent again, under the same ids.
    outbox.delete(accepted)
    return len(accepted), failure


# -- messages for people and programs ------------------------------------------------------------


def _stored(message: StoredMessage) -> str:
    return format_time(message.stored_ms * 1000)


def _summary(message: StoredMessage) -> MessageJson:
    summary: MessageJson = {
        "entity": message.entity,
        "messageId": message.message_id,
        "stored": _stored(message),
        "size": len(message.amqp),
        "state": "waits" if message.held is None else "held",
    }
    return summary if message.held is None else summary | {"reason": message.held}


def _content(message: StoredMessage) -> MessageJson:
    try:
        found = to_json_if_readable(read(message.amqp, entity=message.entity))
    except UnreadableMessage as error:
        found = unreadable(message.amqp, None, error)
    return {name: value for name, value in found.items() if value is not None and name != "state"}
