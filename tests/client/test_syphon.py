"""The plug of the syphon: which one a pairing starts, and the error if there is none."""

from __future__ import annotations

import importlib.util

import pytest

from pairbus.client.sdk.pairing_errors import PairingError, SyphonNotInstalled
from pairbus.client.syphon import Syphon, SyphonContext, syphon_for
from tests.client.fakes import options


class Working:
    def start(self, context: SyphonContext) -> None: ...

    def stop(self, *, timeout_seconds: float) -> None: ...


class Unstoppable:
    def start(self, context: SyphonContext) -> None: ...


@pytest.mark.req("A-06")
def test_senders_run_no_syphon() -> None:
    assert syphon_for(options(), "contoso") is None


@pytest.mark.req("A-06")
def test_one_that_is_handed_in_is_taken() -> None:
    syphon = Working()

    assert syphon_for(options(enable_syphon=True, syphon=syphon), "contoso") is syphon
    assert isinstance(syphon, Syphon)


def test_one_that_cannot_be_stopped_is_refused() -> None:
    with pytest.raises(PairingError, match="Unstoppable lacks one of them") as caught:
        syphon_for(options(enable_syphon=True, syphon=Unstoppable()), "contoso")
    assert caught.value.namespace == "contoso"


@pytest.mark.req("A-06")
def test_one_that_is_not_installed_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "pyspark" else found(name, *more),
    )

    with pytest.raises(
        SyphonNotInstalled, match=r"run `pip install 'pairbus\[spark\]'`, or pair with"
    ):
        syphon_for(options(enable_syphon=True), "contoso")


def test_the_default_syphon_can_be_loaded_more_than_once_in_a_process() -> None:
    """The module `pairbus.syphon.background` must not be hidden by another name of its package."""
    pytest.importorskip("pyspark")
    first, second = (syphon_for(options(enable_syphon=True), "contoso") for _ in range(2))

    assert isinstance(first, Syphon)
    assert isinstance(second, Syphon)
    assert first is not second
    assert type(first) is type(second)
