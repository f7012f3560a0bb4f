"""The verdict on a run: enters the journals into an account. Pure: entries in, counts out."""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.demo.account import Account, Verdict
from pairbus.verify.journal import Entry, Fact


def judge(entries: Iterable[Entry], *, late_seconds: float) -> Verdict:
    account = Account()
    for entry in entries:
        id_ = entry.message_id
        match entry.fact:
            case Fact.ATTEMPT:
                account.attempt(id_)
            case Fact.ACKNOWLEDGED:
                account.acknowledge(id_, at=entry.at)
            case Fact.FAILED:
                account.fail(id_)
            case Fact.RECEIVED | Fact.DAMAGED:
                account.deliver(
                    id_,
                    at=entry.at,
                    session_id=entry.session_id,
                    order=entry.order,
                    is_damaged=entry.fact is Fact.DAMAGED,
                )
                account.attempt_removal(id_)
                # A receiver may be killed at any time, so nobody knows how long it has held it.
                account.give_back(id_)
            case Fact.DEAD_LETTERED | Fact.LEFT:
                account.find(id_, is_dead=entry.fact is Fact.DEAD_LETTERED)
            case Fact.UNKNOWN:
                pass  # as if the send had never returned
    return account.verdict(late_seconds=late_seconds)
