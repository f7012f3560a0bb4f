"""Fixtures for paired clients: two namespaces in two processes, shared by the tests of a worker.

A test may kill them or make them fail; afterwards they are healthy again. Each test has its own
entities and backlog queues. Every test runs twice, with the blocking and with the asyncio client.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.pairing.namespaces import Backstage, NamespaceProcess
from tests.pairing.shells import AsyncioShell, Shell, SyncShell
from tests.pairing.world import World, together

_numbers = itertools.count()


@pytest.fixture(scope="session")
def asyncio_shell() -> Iterator[AsyncioShell]:
    shell = AsyncioShell()
    yield shell
    shell.close()


@pytest.fixture(scope="session")
def backstage(asyncio_shell: AsyncioShell) -> Iterator[Backstage]:
    # Ends before the shell does, which it needs to close asyncio's clients.
    backstage = Backstage()
    yield backstage
    backstage.close()


@pytest.fixture(scope="session")
def namespaces(
    tmp_path_factory: pytest.TempPathFactory, backstage: Backstage
) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    folder = tmp_path_factory.mktemp("pair")
    pair = tuple(NamespaceProcess(name, folder, backstage) for name in ("primary", "secondary"))
    together(NamespaceProcess.start, pair)
    yield pair
    for namespace in pair:
        namespace.stop()
        assert "Traceback" not in namespace.log.read_text(), namespace.log.read_text()


@pytest.fixture(params=["sync", "asyncio"])
def shell(request: pytest.FixtureRequest, asyncio_shell: AsyncioShell) -> Shell:
    return asyncio_shell if request.param == "asyncio" else SyncShell()


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    shell: Shell,
    namespaces: tuple[NamespaceProcess, NamespaceProcess],
    backstage: Backstage,
) -> Iterator[World]:
    primary, secondary = namespaces
    words = re.findall("[a-z]+", request.node.originalname.removeprefix("test_"))
    name = "-".join([f"t{next(_numbers)}", shell.name, *words])[:50]
    world = World(shell=shell, primary=primary, secondary=secondary, name=name)
    yield world
    for namespace in namespaces:
        namespace.heal()
    backstage.soon(world.close)
