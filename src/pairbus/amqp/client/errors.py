"""The errors of the blocking client. `error` is the peer's AMQP error, if there is one.

ClientError
├── ConnectionLost    it could not be opened, or it has ended: its links are gone
├── LinkLost          the peer refused or ended one link; the connection stays open
└── PeerSilent        (also TimeoutError) no answer came in time
"""

from __future__ import annotations

from pairbus.amqp.outcomes import AmqpError


class ClientError(Exception):
    def __init__(self, message: str, error: AmqpError | None = None) -> None:
        super().__init__(f"{message}: {error}" if error else message)
        self.error = error
        """What the peer said."""


class ConnectionLost(ClientError):
    """Nothing more can be done on this connection."""


class LinkLost(ClientError):
    """Nothing more can be done on this link."""


class PeerSilent(ClientError, TimeoutError):
    """No answer came in time. It is unknown whether the peer has handled the request."""
