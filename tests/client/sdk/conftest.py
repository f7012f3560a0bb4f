"""Fixtures for the border to the SDK: its two shells, and a broker to talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.shells import AsyncioShell, Shell, SyncShell


@pytest.fixture(scope="session")
def asyncio_shell() -> Iterator[AsyncioShell]:
    shell = AsyncioShell()
    yield shell
    shell.close()


@pytest.fixture(params=["sync", "asyncio"])
def shell(request: pytest.FixtureRequest, asyncio_shell: AsyncioShell) -> Shell:
    return asyncio_shell if request.param == "asyncio" else SyncShell()
