"""What an idle paired entity holds in memory, next to what the SDK's own sender does.

Run by pairing.py as a process of its own. Counts what Python has allocated and still holds
(tracemalloc), which is exact where resident memory comes in pages. Senders are made and not opened.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pairing_ends
from loop import LoadError
from pairing_ends import Ends, Shell, done

READY_SECONDS_MAX = 60.0


def main() -> None:
    parser = pairing_ends.parser(__doc__)
    parser.add_argument("--entities", type=int, required=True)
    options = parser.parse_args()
    ends = Ends.given(options)
    paths = [f"entity-{number}" for number in range(options.entities)]
    asyncio.run(_measure(ends, ends.shell(options.shell), paths))


async def _measure(ends: Ends, shell: Shell, paths: list[str]) -> None:
    lazy, ready = shell.unpaired(), shell.unpaired()
    await done(lazy.pair_namespace(shell.options(secondary_connections="lazy")))
    found = _of_senders(shell.plain(ends.primary), lazy, paths)
    settings = shell.options()
    # Opens one connection, and imports what that needs.
    await done(ready.pair_namespace(settings))
    await done(settings.secondary_namespace_manager.close())
    with _held() as held:
        await _until_ready(ready, paths)
    connections = len(ready.pairing.backlog_queues) - 1
    of_entities = found["state"] * len(paths)
    pairing_ends.answer(found | {"connection": (held[0] - of_entities) / connections})


def _of_senders(plain: Any, paired: Any, paths: list[str]) -> dict[str, float]:
    """Bytes per entity: of senders, plain and paired, and of what stays when those are gone."""
    for client in (plain, paired):  # what the first one of a kind makes for all
        client.get_queue_sender("another")
    with _held() as plain_senders:
        senders = [plain.get_queue_sender(path) for path in paths]
    del senders
    with _held() as state:
        with _held() as paired_senders:
            senders = [paired.get_queue_sender(path) for path in paths]
        del senders
    return {
        "plain_sender": plain_senders[0] / len(paths),
        "paired_sender": paired_senders[0] / len(paths),
        "state": state[0] / len(paths),
    }


async def _until_ready(client: Any, paths: list[str]) -> None:
    """There are so many entities that every backlog queue is used, and each gets a connection."""
    for path in paths:
        client.get_queue_sender(path)
    pairing, end = client.pairing, time.monotonic() + READY_SECONDS_MAX
    while not all(pairing.pool.has_ready(queue) for queue in pairing.backlog_queues):
        if time.monotonic() > end:
            raise LoadError("the connections to the backlog queues did not become ready")
        await asyncio.sleep(0.1)


@contextmanager
def _held() -> Iterator[list[float]]:
    """The bytes that were allocated within and not given back."""
    is_outermost = not tracemalloc.is_tracing()
    if is_outermost:
        tracemalloc.start()
    held = [0.0]
    before = _allocated()
    yield held
    held[0] = _allocated() - before
    if is_outermost:
        tracemalloc.stop()


def _allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    main()
