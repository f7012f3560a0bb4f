"""Opening a connection: what is asked for before the service has answered."""

from __future__ import annotations

import socket
import threading

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.amqp.frames import AMQP_HEADER
from pairbus.amqp.sasl import Handshake, SaslServer
from pairbus.fast.client import FastClient


def test_the_links_for_tokens_are_asked_for_together_with_the_connection():
    """Each round trip counts if the service is far away. The SDK does the same."""
    found = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_sasl_only, args=(server, found))
        thread.start()
        client = FastClient(
            f"127.0.0.1:{server.getsockname()[1]}",
            AzureNamedKeyCredential("any", "key"),
            use_tls=False,
            timeout_seconds=30.0,
        )
        with pytest.raises(ServiceBusConnectionError):
            client.open()
        thread.join(30)
        client.close()
    assert found.startswith(AMQP_HEADER)
    assert found.count(b"$cbs") >= 2


def answer_sasl_only(server, found):
    """Reads until the links are asked for, says nothing, and hangs up."""
    connection, _ = server.accept()
    with connection:
        handshake = Handshake(SaslServer())
        while handshake.identity is None:
            handshake.receive(connection.recv(65_536))
            connection.sendall(handshake.take_output())
        connection.settimeout(20.0)
        while found.count(b"$cbs") < 2 and (data := connection.recv(65_536)):
            found += data
