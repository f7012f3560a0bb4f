"""What is counted where it is not plain: when asking for messages has ended without one.

A receiver asks by granting credit. Its poll ends when it takes the credit back, when it detaches,
and when it asks for the same again. If nothing was given, that is one receive, as it is to the
service. All of that is read from what both ends of a link can see, so a receiver that counts by
the same rule comes to the same number.
"""

from __future__ import annotations

from typing import Final

from pairbus.cost.meter import Tally

NAMESPACE: Final = "$namespace"
"""Stands for the entity where an operation has none, such as a listing of queues."""


class Poll:
    """Of one receiver's link, which tells whether it has given anything since it was last asked."""

    __slots__ = ("_credit", "_is_open", "_tally", "_was_answered")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._is_open = False
        self._was_answered = False
        self._credit = 0

    def asked(self, credit: int, *, gave: bool, drain: bool) -> None:
        """The receiver has granted so much, counted from now; none ends the poll."""
        if credit <= 0:
            self.over(gave=gave)
        elif not self._is_open:
            self._is_open, self._credit = True, credit
        elif gave:
            self._was_answered, self._credit = True, credit
        elif not drain:
            # More credit after an answer is the same poll going on: the answers to the earlier
            # credit may still have been on their way when it was granted.
            if not self._was_answered or credit <= self._credit:
                self._tally.empty_receive += 1
            self._credit = credit

    def over(self, *, gave: bool) -> None:
        if self._is_open and not gave and not self._was_answered:
            self._tally.empty_receive += 1
        self._is_open = self._was_answered = False
