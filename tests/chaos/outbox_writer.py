"""Stores and deletes messages in the file of an outbox, and notes after each change how far the log
of the disk had come.

    python -m tests.chaos.outbox_writer FILE DISK_LOG NOTES
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from pairbus.client.outbox_file import OutboxFile

CHANGES = 250


def main(path: str, log: str, notes: str) -> None:
    choice = random.Random(1)
    file = OutboxFile(Path(path), namespace="contoso")
    with open(notes, "w", buffering=1) as said:

        def note(what: str, *ids: str) -> None:
            print(os.stat(log).st_size, what, *ids, file=said)

        number = 0
        for _ in range(CHANGES):
            if choice.random() < 0.6:
                ids = [str(number + at) for at in range(choice.randint(1, 3))]
                number += len(ids)
                note("storing", *ids)
                file.put("orders", [(id_, body_of(id_)) for id_ in ids])
                note("stored", *ids)
            else:
                found = file.oldest("orders", count=3, bytes_max=10**6)
                note("deleting", *(each.message_id for each in found))
                file.delete(found)
                note("deleted", *(each.message_id for each in found))
    os._exit(0)  # the file is not closed


def body_of(id_: str) -> bytes:
    choice = random.Random(id_)
    return choice.randbytes(choice.choice((50, 3000, 9000)))


if __name__ == "__main__":
    main(*sys.argv[1:])
