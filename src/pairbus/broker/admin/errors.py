"""What a request is refused with: a status and a sentence that is fit to be shown.

The form it takes on the wire is `pairbus.broker.port.http`'s business.
"""

from __future__ import annotations

from pairbus.errors import BrokerError


class Refused(BrokerError):
    """The request cannot be done, or not by this client."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


def bad_request(detail: str) -> Refused:
    return Refused(400, f"SubCode=40000. {detail}")


def not_found(what: str) -> Refused:
    return Refused(404, f"SubCode=40400. Not Found. There is no {what}")


def conflict(detail: str) -> Refused:
    return Refused(409, f"SubCode=40900. Conflict. {detail}")
