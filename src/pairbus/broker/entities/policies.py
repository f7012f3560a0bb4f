"""Shared access policies: keys, and the rights that they grant."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

DEFAULT_POLICY_NAME: Final = "RootManageSharedAccessKey"
DEFAULT_KEY: Final = "SAS_KEY_VALUE"
"""The well-known key of the official emulator: accepted on loopback, refused elsewhere."""


class Right(StrEnum):
    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A shared access key and its rights. Manage includes the other two."""

    name: str
    key: str = field(repr=False)
    rights: frozenset[Right]
    secondary_key: str | None = field(default=None, repr=False)
    """A second valid key, so that you can rotate the keys one after the other."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if self.secondary_key is None else (self.key, self.secondary_key)

    def allows(self, right: Right) -> bool:
        return right in self.rights or Right.MANAGE in self.rights


def default_policy() -> Policy:
    return Policy(name=DEFAULT_POLICY_NAME, key=DEFAULT_KEY, rights=frozenset(Right))
