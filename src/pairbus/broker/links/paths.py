"""Parses an address such as `amqps://host/Orders/$DeadLetterQueue`, in all its spellings.

SDKs write full URIs, absolute paths or bare names, in upper or lower case. Pure text: the namespace
knows whether the entity exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pairbus.broker.messages.lifecycle import MailboxKind

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/]*")
LENGTH_MAX: Final = 1024
_SUFFIXES: Final = (
    ("/$transfer/$deadletterqueue", MailboxKind.TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", MailboxKind.DEAD_LETTER),
)
_MANAGEMENT: Final = "/$management"
CBS: Final = "$cbs"


@dataclass(frozen=True, slots=True)
class Path:
    entity: str
    """As it was written, without slashes at its ends."""
    kind: MailboxKind
    is_management: bool

    @property
    def is_cbs(self) -> bool:
        return self.entity.lower() == CBS

    def __str__(self) -> str:
        suffix = next((text for text, kind in _SUFFIXES if kind is self.kind), "")
        return self.entity + suffix + (_MANAGEMENT if self.is_management else "")


def parse(address: str) -> Path:
    """An address that is longer than any valid name is cut. It matches no entity."""
    address = address[:LENGTH_MAX]
    scheme = _SCHEME.match(address)
    rest = (address[scheme.end() :] if scheme else address).strip("/")
    is_management = rest.lower().endswith(_MANAGEMENT)
    if is_management:
        rest = rest[: -len(_MANAGEMENT)]
    for suffix, kind in _SUFFIXES:
        if rest.lower().endswith(suffix):
            return Path(rest[: -len(suffix)], kind, is_management)
    return Path(rest, MailboxKind.MAIN, is_management)
