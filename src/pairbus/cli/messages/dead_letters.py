"""`pairbus dead-letters`: what a person types about messages that were put aside."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from pairbus.cli.completion import complete_queue_or_topic
from pairbus.cli.messages.peek import WHERE
from pairbus.cli.options import (
    AS_JSON,
    CA_FILE,
    CONNECTION_STRING,
    ENTITY,
    SUBSCRIPTION,
    command_group,
    confirm,
)
from pairbus.cli.target import parse_target
from pairbus.errors import UsageError

app = command_group(
    "dead-letters",
    "List, show, resubmit and purge the dead letters of a queue or a subscription.\n\n"
    "All commands take the same filter: what is said must all be true. The namespace is that of "
    "--connection-string, or of PAIRBUS_PRIMARY in the environment. Ends with 0 if all went well, "
    "1 if the namespace refused or did not answer, 2 if the words are wrong, and 130 if it is "
    "interrupted.",
)


def _text(metavar: str, help: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


TRANSFER = Annotated[
    bool, typer.Option("--transfer", help="Of the transfer dead-letter queue: not forwarded.")
]
REASON = Annotated[str | None, _text("TEXT", "Put aside for this reason.")]
SUBJECT = Annotated[str | None, _text("TEXT", "With this subject.")]
PROPERTIES = Annotated[
    list[str] | None,
    _text("NAME[:TYPE]=VALUE", "With this property; may be repeated.", "--property", "-p"),
]
OLDER = Annotated[str | None, _text("DURATION", "Enqueued longer ago: 90s, 5m, 2h, 7d.")]
NEWER = Annotated[str | None, _text("DURATION", "Enqueued since: 90s, 5m, 2h, 7d.")]
SEQUENCE = Annotated[list[str] | None, _text("NUMBERS", "With these sequence numbers: 5,7,10-20.")]
DRY_RUN = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done, and to which.")
]
MOST = Annotated[int | None, typer.Option(min=1, metavar="N", help="How many at most; all.")]


@app.command("list")
def list_(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    reason: REASON = None,
    subject: SUBJECT = None,
    property_: PROPERTIES = None,
    older_than: OLDER = None,
    newer_than: NEWER = None,
    sequence: SEQUENCE = None,
    where: WHERE = None,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 100,
    transfer: TRANSFER = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """List dead letters, without locking or changing them.

    \b
    Examples:
      pairbus dead-letters list orders
      pairbus dead-letters list events audit --reason MaxDeliveryCountExceeded
      pairbus dead-letters list orders --where "amount > 1000" --older-than 1d --json
    """
    given = _given(locals())
    from pairbus.cli.messages.dead_letter_work import show_list

    show_list(*given, count=count, as_json=as_json)


@app.command()
def show(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    reason: REASON = None,
    subject: SUBJECT = None,
    property_: PROPERTIES = None,
    older_than: OLDER = None,
    newer_than: NEWER = None,
    sequence: SEQUENCE = None,
    where: WHERE = None,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 10,
    transfer: TRANSFER = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Show all of some dead letters: properties, reason, description and body.

    \b
    Example:
      pairbus dead-letters show orders --sequence 1200
    """
    given = _given(locals())
    from pairbus.cli.messages.dead_letter_work import show_whole

    show_whole(*given, count=count, as_json=as_json)


@app.command()
def resubmit(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ENTITY",
            help="Where to. Default: the queue, or of a subscription its topic, and so all of the "
            "topic's subscriptions whose rules match.",
            show_default=False,
            autocompletion=complete_queue_or_topic,
        ),
    ] = None,
    reason: REASON = None,
    subject: SUBJECT = None,
    property_: PROPERTIES = None,
    older_than: OLDER = None,
    newer_than: NEWER = None,
    sequence: SEQUENCE = None,
    where: WHERE = None,
    count: MOST = None,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give them new message ids, and do not keep theirs.")
    ] = False,
    keep_ids: Annotated[
        bool,
        typer.Option("--keep-ids", help="Keep them unseen: it has no duplicate detection."),
    ] = False,
    dry_run: DRY_RUN = False,
    transfer: TRANSFER = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Send dead letters again, as they were, and remove them when that is acknowledged.

    The copy has the same message id, body and properties, without what was added when it was put
    aside; its time to live begins anew, and a schedule that has passed is left out. Who dies
    between the two has sent what is still a dead letter, too: nothing is lost. An entity with
    duplicate detection would drop an id that it has seen within its window, so such messages are
    refused without --new-ids; to see that takes Manage, or your word with --keep-ids.

    \b
    Examples:
      pairbus dead-letters resubmit orders --dry-run
      pairbus dead-letters resubmit orders --reason MaxDeliveryCountExceeded
      pairbus dead-letters resubmit events audit --sequence 5,7 --to repairs
    """
    given = _given(locals())
    from pairbus.cli.messages.dead_letter_work import resubmit as work

    if new_ids and keep_ids:
        raise UsageError("--new-ids and --keep-ids exclude each other")
    ids: Literal["new", "keep", "check"] = "new" if new_ids else "keep" if keep_ids else "check"
    work(*given, to=to, count=count, ids=ids, dry_run=dry_run, as_json=as_json)


@app.command()
def purge(
    entity: ENTITY,
    subscription: SUBSCRIPTION = None,
    reason: REASON = None,
    subject: SUBJECT = None,
    property_: PROPERTIES = None,
    older_than: OLDER = None,
    newer_than: NEWER = None,
    sequence: SEQUENCE = None,
    where: WHERE = None,
    count: MOST = None,
    dry_run: DRY_RUN = False,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    transfer: TRANSFER = False,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Delete dead letters for good.

    \b
    Examples:
      pairbus dead-letters purge orders --older-than 30d --dry-run
      pairbus dead-letters purge orders --yes
    """
    given = _given(locals())
    from pairbus.cli.messages.dead_letter_work import purge as work

    ask = None if is_sure else confirm
    work(*given, count=count, dry_run=dry_run, confirm=ask, as_json=as_json)


def _given(words: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The namespace, the place and the filter, which all commands have by the same names."""
    from pairbus.cli.messages.entity_path import SubQueue, parse_entity_path
    from pairbus.cli.messages.filter import Choice, parse_filter

    sub_queue = SubQueue.TRANSFER_DEAD_LETTER if words["transfer"] else SubQueue.DEAD_LETTER
    place = parse_entity_path(words["entity"], words["subscription"], sub_queue)
    filter = parse_filter(
        Choice(
            reason=words["reason"],
            subject=words["subject"],
            properties=words["property_"] or (),
            older_than=words["older_than"],
            newer_than=words["newer_than"],
            numbers=words["sequence"] or (),
            where=words["where"],
        )
    )
    return parse_target(words["connection_string"], words["ca_file"]), place, filter
