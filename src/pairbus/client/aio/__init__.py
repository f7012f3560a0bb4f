"""The asyncio shell: the same files, with `await`."""
