"""`pairbus send`: what a person types to send messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pairbus.cli.completion import complete_queue_or_topic
from pairbus.cli.options import AS_JSON, CA_FILE, CONNECTION_STRING
from pairbus.cli.target import parse_target


def _text(metavar: str, help: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


def send(
    entity: Annotated[
        str,
        typer.Argument(
            metavar="ENTITY", help="A queue or a topic.", autocompletion=complete_queue_or_topic
        ),
    ],
    body: Annotated[
        str | None,
        typer.Argument(metavar="BODY", help="The text; - or nothing: what comes on stdin."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        _text("FILE", "A file as the body, or to read lines from; may be repeated.", "--file"),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a message.")] = False,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help="Each line is a message as JSON, as `receive --json` and `peek --json` print it.",
        ),
    ] = False,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Send it so many times.")] = 1,
    property_: Annotated[
        list[str] | None,
        _text(
            "NAME[:TYPE]=VALUE",
            "An application property; a type of AMQP such as int, long, double, boolean, "
            "timestamp or uuid, or string. May be repeated.",
            "--property",
            "-p",
        ),
    ] = None,
    message_id: Annotated[str | None, _text("ID", "A new one each, unless given.")] = None,
    session: Annotated[str | None, _text("ID", "The session it belongs to.")] = None,
    subject: Annotated[str | None, _text("TEXT", "Its subject, or label.")] = None,
    content_type: Annotated[str | None, _text("TYPE", "Such as application/json.")] = None,
    correlation_id: Annotated[str | None, _text("ID", "What it answers.")] = None,
    reply_to: Annotated[str | None, _text("ENTITY", "Where an answer should go.")] = None,
    reply_to_session: Annotated[str | None, _text("ID", "And in which session.")] = None,
    to: Annotated[str | None, _text("TEXT", "Its address, for routing by rules.")] = None,
    partition_key: Annotated[str | None, _text("KEY", "Of a partitioned entity.")] = None,
    ttl: Annotated[str | None, _text("DURATION", "Time to live: 90s, 5m, 2h, 7d.")] = None,
    scheduled: Annotated[
        str | None, _text("WHEN", "When it appears: 2030-12-31T23:59:59Z, or in 10m.")
    ] = None,
    connection_string: CONNECTION_STRING = None,
    ca_file: CA_FILE = None,
    as_json: AS_JSON = False,
) -> None:
    """Send one message or many to a queue or a topic.

    Returns when the namespace has acknowledged them. With --json-lines, the options say what a line
    does not. Ends with 0 if all were taken, 1 if the namespace refused or did not answer, and then
    tells how many were taken; 2 if the words are wrong, 130 if it is interrupted.

    \b
    Examples:
      pairbus send orders "Hello"
      pairbus send orders --file order.json --content-type application/json --subject new
      pairbus send orders "later" -p amount:int=5 --session s1 --ttl 1h --scheduled 10m
      seq 1000 | pairbus send orders --lines
      pairbus peek orders --json | pairbus send copies --json-lines
    """
    from pairbus.cli.messages.send_work import Wanted, run

    run(
        parse_target(connection_string, ca_file),
        Wanted(
            entity=entity,
            body=body,
            files=tuple(file or ()),
            lines=lines,
            json_lines=json_lines,
            count=count,
            properties=tuple(property_ or ()),
            ttl=ttl,
            scheduled=scheduled,
            said={
                "messageId": message_id,
                "sessionId": session,
                "subject": subject,
                "contentType": content_type,
                "correlationId": correlation_id,
                "replyTo": reply_to,
                "replyToSessionId": reply_to_session,
                "to": to,
                "partitionKey": partition_key,
            },
        ),
        as_json=as_json,
    )
