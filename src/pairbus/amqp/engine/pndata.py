"""Python values, errors and outcomes to and from Proton's `pn_data_t`, by way of their encoding.

Both sides speak AMQP's encoding, so bytes are the bridge, and the types of `values` come through
unchanged. For what is rare (attach, open, errors); transfers never pass here. The caller vouches
for the pointers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pairbus.amqp.codec.types import Described, Symbol
from pairbus.amqp.codec.values import decode, encode
from pairbus.amqp.engine.proton import ffi, lib
from pairbus.amqp.frames import error_info
from pairbus.amqp.outcomes import (
    ACCEPTED,
    NO_OUTCOME,
    RELEASED,
    AmqpError,
    Outcome,
    OutcomeKind,
)

_MAP_SIZE_MAX: Final = 1 << 20


def read(data: Any) -> Any:
    """The value in a pn_data_t, or None when there is none or it cannot be read."""
    if data == ffi.NULL:
        return None
    size = lib.pn_data_encoded_size(data)
    if not 0 < size <= _MAP_SIZE_MAX:
        return None
    buffer = ffi.new("char[]", size)
    if lib.pn_data_encode(data, buffer, size) != size:
        return None
    try:
        return decode(ffi.unpack(buffer, size))[0]
    except ValueError:
        return None


def write(data: Any, value: Any) -> None:
    encoded = encode(value)
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, encoded, len(encoded))
    lib.pn_data_rewind(data)


def read_map(data: Any) -> dict[str, object]:
    """A map with its symbol or string keys as `str`; anything else reads as an empty one."""
    value = read(data)
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(key, str)}


def symbol_map(mapping: Mapping[str, object]) -> dict[Any, object]:
    return {Symbol(key): value for key, value in mapping.items()}


def read_filter(data: Any) -> tuple[dict[str, object], frozenset[str]]:
    """The filters without their descriptors, and which of them had one."""
    filters = read_map(data)
    described = frozenset(key for key, item in filters.items() if isinstance(item, Described))
    for key in described:
        filters[key] = filters[key].value  # type: ignore[attr-defined]
    return filters, described


def text(pointer: Any) -> str | None:
    """A C string; what is not UTF-8 is shown as replacement characters, never an exception."""
    if pointer == ffi.NULL:
        return None
    decoded: str = ffi.string(pointer).decode("utf-8", "replace")
    return decoded


def read_condition(condition: Any) -> AmqpError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    return AmqpError(
        text(lib.pn_condition_get_name(condition)) or "",
        text(lib.pn_condition_get_description(condition)) or "",
        read_map(lib.pn_condition_info(condition)),
    )


def write_condition(condition: Any, error: AmqpError) -> None:
    lib.pn_condition_set_name(condition, _c_string(error.condition))
    lib.pn_condition_set_description(condition, _c_string(error.description))
    write(lib.pn_condition_info(condition), error_info(error))


def _c_string(value: str) -> bytes:
    return value.replace("\0", " ").encode("utf-8", "replace")


def read_outcome(delivery: Any) -> Outcome:
    """What the peer said last of a delivery; `delivery` is a live pn_delivery_t."""
    state = lib.pn_delivery_remote_state(delivery)
    if state == 0x24:
        return ACCEPTED
    if state == 0:
        return NO_OUTCOME
    if state == 0x26:
        return RELEASED
    remote = lib.pn_delivery_remote(delivery)
    if state == 0x25:
        return Outcome(
            OutcomeKind.REJECTED, error=read_condition(lib.pn_disposition_condition(remote))
        )
    if state == 0x27:
        return Outcome(
            OutcomeKind.MODIFIED,
            failed=bool(lib.pn_disposition_is_failed(remote)),
            undeliverable=bool(lib.pn_disposition_is_undeliverable(remote)),
            annotations=read_map(lib.pn_disposition_annotations(remote)) or None,
        )
    return Outcome(OutcomeKind.RECEIVED if state == 0x23 else OutcomeKind.OTHER)


def write_outcome(delivery: Any, outcome: Outcome) -> None:
    """Set what we say of a delivery; it goes out with the next update or settle."""
    kind = outcome.kind
    if kind is OutcomeKind.NONE or kind is OutcomeKind.OTHER:
        return
    local = lib.pn_delivery_local(delivery)
    if outcome.error is not None:
        write_condition(lib.pn_disposition_condition(local), outcome.error)
    if kind is OutcomeKind.MODIFIED:
        lib.pn_disposition_set_failed(local, outcome.failed)
        lib.pn_disposition_set_undeliverable(local, outcome.undeliverable)
        if outcome.annotations:
            write(lib.pn_disposition_annotations(local), symbol_map(outcome.annotations))
    lib.pn_delivery_update(delivery, int(kind))
