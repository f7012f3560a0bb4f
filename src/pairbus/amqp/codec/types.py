"""Python types for the AMQP types that Python lacks.

They subclass what they wrap, so `Symbol("a") == "a"` and both find the same key of a map; only
encoding distinguishes them. Plain str, bytes, bool, None, UUID, float (double), int (long), list
and dict are themselves. Nothing is checked here: `encode` refuses a value that does not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


class Symbol(str):
    __slots__ = ()


class Char(str):
    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    """The explicit form: a plain int is a long as well, and a long decodes to a plain int."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC."""

    __slots__ = ()


class Float(float):
    """Four bytes; a plain float is AMQP's double."""

    __slots__ = ()


class Decimal32(bytes):
    """The raw IEEE 754 bytes: decimals are passed on and never used in calculations."""

    __slots__ = ()


class Decimal64(bytes):
    __slots__ = ()


class Decimal128(bytes):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    descriptor: Any
    value: Any


class Array(list[Any]):
    """A list whose elements share one type. `code` is its constructor; None: that of the first."""

    __slots__ = ("code", "descriptor")

    def __init__(
        self, items: Iterable[Any] = (), *, code: int | None = None, descriptor: Any = None
    ) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor
