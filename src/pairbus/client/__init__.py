"""The paired client: keeps an application sending while its namespace is down.

    sender.py     each call of a sender, as a generator of steps
    send.py       where the messages of a call go; steps.py has the steps and their drivers
    tasks.py      what the background does, as generators
    timing.py     every period and time limit
    route/        decides where messages go, pure
    sdk/          the only code that depends on Azure's SDK
    blocking/     the shell with threads
    aio/          the shell with asyncio: the same files

Both shells share these modules: `pairing.py` (the router under one lock), `state.py`, `pool.py`,
`backlog_batch.py`, `billing.py`, `checks.py`, `observers.py`, `outbox.py` and `outbox_file.py`,
`syphon.py`.
"""
