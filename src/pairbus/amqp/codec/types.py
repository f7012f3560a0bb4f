"""Python types for the AMQP types that Python has no own type for.

They subclass what they wrap, so that `Symbol("a") == "a"` and a map can be asked for either; only
encoding cares for the difference. Plain str, bytes, bool, None, UUID, float (double), int (long),
list and dict stand for themselves. Nothing is checked here: `encode` refuses what does not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


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
    """For those who like to say it: a plain int is a long, and long decodes to a plain int."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC."""

    __slots__ = ()


class Float(float):
    """Four bytes; a plain float is AMQP's double."""

    __slots__ = ()


class Decimal32(bytes):
    """The raw IEEE 754 bytes: we pass decimals on and never calculate with them."""

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
    """A list whose elements share one type; `code` is their constructor, None: see the first."""

    __slots__ = ("code", "descriptor")

    def __init__(
        self, items: Iterable[Any] = (), *, code: int | None = None, descriptor: Any = None
    ) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor
