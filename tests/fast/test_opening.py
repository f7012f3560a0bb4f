"""Opening a connection: what is asked for before the service has answered."""

from __future__ import annotations

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.amqp.frames import AMQP_HEADER
from pairbus.amqp.sasl import Handshake, SaslServer
from pairbus.fast.client import FastClient
from tests.fast.world import listening


def test_the_links_for_tokens_are_asked_for_together_with_the_connection():
    """Each round trip counts if the service is far away. The SDK does the same."""
    found = bytearray()

    def answer_sasl_only(peer):
        """Reads until the links are asked for, says nothing, and hangs up."""
        handshake = Handshake(SaslServer())
        while found.count(b"$cbs") < 2 and (data := peer.recv(65_536)):
            found.extend(data)
            handshake.receive(data)
            if not handshake.done:
                peer.sendall(handshake.take_output())

    with listening(answer_sasl_only) as port:
        key = AzureNamedKeyCredential("any", "key")
        client = FastClient(f"127.0.0.1:{port}", key, use_tls=False, timeout_seconds=30.0)
        with pytest.raises(ServiceBusConnectionError):
            client.open()
        client.close()
    assert AMQP_HEADER in found
    assert found.count(b"$cbs") >= 2
