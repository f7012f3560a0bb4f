"""The billed operations of a syphon and its tasks, by namespace. `docs/cost.md` has the rules."""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.cost.meter import Meter, MeterReading


class SyphonUsage:
    """Use it in one thread. Any thread may call `readings`."""

    def __init__(self, *, since: float) -> None:
        self._since = since
        self._meters: dict[str, Meter] = {}

    def meter_of(self, namespace: str) -> Meter:
        """The meter for the clients of this namespace."""
        known = self._meters.get(namespace)
        if known is None:
            known = self._meters[namespace] = Meter(namespace, since=self._since)
        return known

    def add(self, readings: Iterable[MeterReading]) -> None:
        """Add the operations that a task has counted."""
        for reading in readings:
            self.meter_of(reading.namespace).add(reading)

    def readings(self) -> tuple[MeterReading, ...]:
        return tuple(meter.read() for meter in self._meters.copy().values())
