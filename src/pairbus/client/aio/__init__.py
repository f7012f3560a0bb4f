"""The asyncio shell: the same files as in `blocking/`, with `await`."""
